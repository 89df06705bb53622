// SPDX-License-Identifier: Apache-2.0
#include "store/group/catalogue_index.h"

#include <flatbuffers/flatbuffers.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/coding.h"
#include "base/util.h"
#include "store/format/group_file.h"
#include "store/format/stored_layout.h"
#include "store/format/verified_buffer.h"
#include "store/group/snapshot.h"
#include "store/schema/group_generated.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;
using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

Status DamagedIndex(const std::string& what) { return Status::Corruption("catalogue: " + what); }

std::string BytesOf(FlatBufferBuilder* builder) {
  return {reinterpret_cast<const char*>(builder->GetBufferPointer()), builder->GetSize()};
}

// --- a section ---

// Returns a shard's shape and layout as a key, because many shards have them in common. The key
// stays in this process.
std::string PlaceKey(const CatalogueShard& shard) {
  std::string key;
  AppendLittle(shard.layout.has_value(), &key);
  if (shard.layout.has_value()) {
    AppendLayoutKey(*shard.layout, &key);
  } else {
    for (const int64_t size : shard.shape) AppendLittle(size, &key);
  }
  return key;
}

// Takes shards in their order.
class SectionBuilder {
 public:
  void Add(const CatalogueShard& shard) {
    if (shard.name != name_ || entries_.empty()) FinishTensor();
    name_ = shard.name;
    const auto next = static_cast<uint32_t>(places_.size());
    const auto [place, is_new] = numbers_.try_emplace(PlaceKey(shard), next);
    if (is_new) places_.push_back(EncodePlace(shard));
    entries_.emplace_back(fb::Digest(shard.content.lo, shard.content.hi), shard.rank, shard.shard,
                          place->second, static_cast<uint8_t>(shard.dtype));
  }

  // The approximate bytes of what it has taken.
  size_t num_bytes() const {
    return builder_.GetSize() + entries_.size() * sizeof(fb::CatalogueEntry);
  }

  Offset<fb::CatalogueSection> Finish() {
    FinishTensor();
    const auto places = builder_.CreateVector(places_);
    return fb::CreateCatalogueSection(builder_, places, builder_.CreateVector(tensors_));
  }

  FlatBufferBuilder* builder() { return &builder_; }

 private:
  Offset<fb::CataloguePlace> EncodePlace(const CatalogueShard& shard) {
    if (shard.layout.has_value()) {
      return fb::CreateCataloguePlace(builder_, 0, EncodeLayout(*shard.layout, &builder_));
    }
    return fb::CreateCataloguePlace(builder_, builder_.CreateVector(shard.shape));
  }

  void FinishTensor() {
    if (entries_.empty()) return;
    const auto name = builder_.CreateString(name_);
    const auto entries = builder_.CreateVectorOfStructs(entries_);
    tensors_.push_back(fb::CreateCatalogueEntries(builder_, name, entries));
    entries_.clear();
  }

  FlatBufferBuilder builder_;
  std::unordered_map<std::string, uint32_t> numbers_;  // of places
  std::vector<Offset<fb::CataloguePlace>> places_;
  std::vector<Offset<fb::CatalogueEntries>> tensors_;
  std::string name_;  // of the entries
  std::vector<fb::CatalogueEntry> entries_;
};

struct Place {
  std::vector<int64_t> shape;
  std::optional<ShardLayout> layout;
};

Result<Place> DecodePlace(const fb::CataloguePlace& in) {
  Place place;
  if (in.layout() == nullptr) {
    if (!AreAligned(in.shape())) return DamagedIndex("a shape is not aligned");
    if (in.shape() != nullptr) place.shape.assign(in.shape()->begin(), in.shape()->end());
    return place;
  }
  Result<ShardLayout> layout = DecodeLayout(*in.layout());
  if (!layout.ok()) return layout.status().WithContext("catalogue");
  place.shape = layout->LocalShape();
  place.layout = *std::move(layout);
  return place;
}

// `num_bytes` is the size of the buffer that holds it, which limits its content.
Result<std::vector<CatalogueShard>> DecodeSection(const fb::CatalogueSection& in, size_t num_bytes,
                                                  uint32_t num_ranks) {
  std::vector<Place> places;
  if (in.places() != nullptr) {
    for (const fb::CataloguePlace* packed : *in.places()) {
      VARVE_ASSIGN_OR_RETURN(Place place, DecodePlace(*packed));
      places.push_back(std::move(place));
    }
  }
  Catalogue catalogue;
  if (in.tensors() == nullptr) return catalogue.shards;
  for (const fb::CatalogueEntries* tensor : *in.tensors()) {
    const std::string name = tensor->name()->str();
    if (tensor->entries() == nullptr || tensor->entries()->size() == 0) {
      return DamagedIndex("tensor " + name + " has no shard");
    }
    if (!AreAligned(tensor->entries())) {
      return DamagedIndex("the shards of tensor " + name + " are not aligned");
    }
    // No two tensors have their entries, or their names, at the same place.
    const size_t used =
        (catalogue.shards.size() + tensor->entries()->size()) * sizeof(fb::CatalogueEntry);
    if (used > num_bytes || name.size() > kMaxNameBytes) {
      return DamagedIndex("tensor " + name.substr(0, kMaxNameBytes) +
                          " is larger than the section");
    }
    for (const fb::CatalogueEntry* entry : *tensor->entries()) {
      if (entry->place() >= places.size()) {
        return DamagedIndex("tensor " + name + " names place " + std::to_string(entry->place()) +
                            " of " + std::to_string(places.size()));
      }
      const Place& place = places[entry->place()];
      CatalogueShard shard{{.name = name,
                            .dtype = static_cast<DType>(entry->dtype()),
                            .shape = place.shape,
                            .layout = place.layout},
                           entry->rank(),
                           entry->shard(),
                           {entry->content().lo(), entry->content().hi()}};
      VARVE_RETURN_IF_ERROR(CheckCatalogueShard(shard));
      catalogue.shards.push_back(std::move(shard));
    }
  }
  VARVE_RETURN_IF_ERROR(CheckCatalogue(catalogue, num_ranks));
  return std::move(catalogue.shards);
}

// A section that is a buffer of its own.
Result<std::vector<CatalogueShard>> DecodeSection(std::string_view bytes, uint32_t num_ranks) {
  const VerifiedBuffer<fb::CatalogueSection> buffer(bytes);
  if (buffer.root() == nullptr) return DamagedIndex("a section is not a well-formed flatbuffer");
  return DecodeSection(*buffer.root(), bytes.size(), num_ranks);
}

// --- the index ---

struct SectionRef {
  std::string first;
  Digest digest;
};

struct Index {
  std::map<uint32_t, GroupPart> parts;
  std::vector<CatalogueItem> items;
  std::optional<std::vector<CatalogueShard>> section;
  std::vector<SectionRef> sections;
};

std::string EncodeIndex(const Catalogue& catalogue, const std::map<uint32_t, GroupPart>& parts,
                        SectionBuilder* section, const std::vector<SectionRef>& sections) {
  FlatBufferBuilder* const builder = section->builder();
  const bool is_inline = sections.empty();
  const Offset<fb::CatalogueSection> inline_section =
      is_inline ? section->Finish() : Offset<fb::CatalogueSection>();
  std::vector<fb::GroupPart> packed_parts;
  for (const auto& [rank, part] : parts) packed_parts.push_back(PackPart(part));
  std::vector<Offset<fb::CatalogueItem>> items;
  for (const CatalogueItem& item : catalogue.items) {
    items.push_back(fb::CreateCatalogueItem(*builder, builder->CreateString(item.name), item.rank));
  }
  std::vector<Offset<fb::CatalogueSectionFile>> files;
  for (const SectionRef& ref : sections) {
    const fb::Digest digest(ref.digest.lo, ref.digest.hi);
    files.push_back(
        fb::CreateCatalogueSectionFile(*builder, builder->CreateString(ref.first), &digest));
  }
  const auto part_vector = builder->CreateVectorOfStructs(packed_parts);
  const auto item_vector = builder->CreateVector(items);
  const auto file_vector = builder->CreateVector(files);
  builder->Finish(
      fb::CreateCatalogueIndex(*builder, part_vector, item_vector, inline_section, file_vector));
  return BytesOf(builder);
}

Result<Index> DecodeIndex(std::string_view bytes) {
  const VerifiedBuffer<fb::CatalogueIndex> buffer(bytes);
  if (buffer.root() == nullptr) return DamagedIndex("the index is not a well-formed flatbuffer");
  const fb::CatalogueIndex& in = *buffer.root();
  Index index;
  if (!AreAligned(in.parts())) return DamagedIndex("the parts of its ranks are not aligned");
  if (in.parts() != nullptr) {
    uint32_t rank = 0;
    for (const fb::GroupPart* part : *in.parts()) index.parts[rank++] = UnpackPart(*part);
  }
  const auto num_ranks = static_cast<uint32_t>(index.parts.size());
  Catalogue items;
  if (in.items() != nullptr) {
    for (const fb::CatalogueItem* item : *in.items()) {
      items.items.push_back({item->name()->str(), item->rank()});
    }
  }
  VARVE_RETURN_IF_ERROR(CheckCatalogue(items, num_ranks));
  index.items = std::move(items.items);
  if (in.section() != nullptr) {
    VARVE_ASSIGN_OR_RETURN(index.section, DecodeSection(*in.section(), bytes.size(), num_ranks));
  }
  if (in.sections() != nullptr) {
    for (const fb::CatalogueSectionFile* file : *in.sections()) {
      SectionRef ref{.first = file->first()->str(), .digest = {}};
      if (file->digest() != nullptr) ref.digest = {file->digest()->lo(), file->digest()->hi()};
      if (!index.sections.empty() && index.sections.back().first >= ref.first) {
        return DamagedIndex("section " + std::to_string(index.sections.size()) +
                            " is out of order");
      }
      index.sections.push_back(std::move(ref));
    }
  }
  if (index.section.has_value() != index.sections.empty()) {
    return DamagedIndex("it has " + std::to_string(index.sections.size()) +
                        " sections as files, and " + (index.section.has_value() ? "one" : "none") +
                        " in the index");
  }
  return index;
}

fs::path IndexPath(const CataloguePlaceOnDisk& place) {
  return CataloguesFolder(place.root) / std::to_string(place.attempt);
}
fs::path SectionPath(const CataloguePlaceOnDisk& place, size_t number) {
  fs::path path = IndexPath(place);
  return path += ".p" + std::to_string(number);
}

// Writes a catalogue section by section, and remembers the sections for the index.
class IndexedWriter {
 public:
  IndexedWriter(const CataloguePlaceOnDisk& place, const Catalogue& catalogue,
                const std::map<uint32_t, GroupPart>& parts, const CatalogueCut& cut)
      : place_(place), catalogue_(catalogue), parts_(parts), cut_(cut) {}

  Result<Digest> Run() {
    const std::span<const CatalogueShard> shards = catalogue_.shards;
    for (size_t i = 0; i < shards.size(); ++i) {
      const bool is_new = i == 0 || shards[i].name != shards[i - 1].name;
      if (is_new && section_->num_bytes() > cut_.section_bytes) {
        VARVE_RETURN_IF_ERROR(WriteSection(shards.subspan(begin_, i - begin_)));
        begin_ = i;
      }
      section_->Add(shards[i]);
    }
    const std::span<const CatalogueShard> last = shards.subspan(begin_);
    if (refs_.empty() && section_->num_bytes() <= cut_.inline_bytes) return WriteIndex(last);
    VARVE_RETURN_IF_ERROR(WriteSection(last));
    return WriteIndex({});
  }

 private:
  static Status Unreadable(const fs::path& path, const std::string& why) {
    return Status::InvalidArgument(path.string() +
                                   ": not written, because it could not be read again: " + why);
  }

  // Checks that a reader makes of the bytes what was meant.
  template <typename Decoded>
  static Status Compare(const fs::path& path, const Result<Decoded>& decoded, bool same) {
    if (!decoded.ok()) return Unreadable(path, decoded.status().message());
    return same ? Status::Ok() : Unreadable(path, "it would give something else");
  }

  Result<Digest> Write(const fs::path& path, std::string_view bytes) const {
    if (bytes.size() > kMaxCatalogueBytes) {
      return Unreadable(path, "it has " + std::to_string(bytes.size()) +
                                  " bytes, expected at most " + std::to_string(kMaxCatalogueBytes));
    }
    VARVE_RETURN_IF_ERROR(WriteFileAtomically(path, bytes));
    return ComputeDigest(place_.seed, AsBytes(bytes));
  }

  // Writes the section and starts the next.
  Status WriteSection(std::span<const CatalogueShard> shards) {
    section_->builder()->Finish(section_->Finish());
    const std::string bytes = BytesOf(section_->builder());
    section_ = std::make_unique<SectionBuilder>();
    const fs::path path = SectionPath(place_, refs_.size());
    const auto decoded = DecodeSection(bytes, num_ranks());
    VARVE_RETURN_IF_ERROR(Compare(path, decoded,
                                  decoded.ok() && std::equal(decoded->begin(), decoded->end(),
                                                             shards.begin(), shards.end())));
    VARVE_ASSIGN_OR_RETURN(const Digest digest, Write(path, bytes));
    refs_.push_back({shards.front().name, digest});
    return Status::Ok();
  }

  // `shards` are those of the section that lies in the index.
  Result<Digest> WriteIndex(std::span<const CatalogueShard> shards) {
    const std::string bytes = EncodeIndex(catalogue_, parts_, section_.get(), refs_);
    const auto decoded = DecodeIndex(bytes);
    const bool same = decoded.ok() && decoded->items == catalogue_.items &&
                      decoded->parts.size() == parts_.size() &&
                      decoded->sections.size() == refs_.size() &&
                      (!decoded->section.has_value() ||
                       std::equal(decoded->section->begin(), decoded->section->end(),
                                  shards.begin(), shards.end()));
    VARVE_RETURN_IF_ERROR(Compare(IndexPath(place_), decoded, same));
    return Write(IndexPath(place_), bytes);
  }

  uint32_t num_ranks() const { return static_cast<uint32_t>(parts_.size()); }

  const CataloguePlaceOnDisk& place_;
  const Catalogue& catalogue_;
  const std::map<uint32_t, GroupPart>& parts_;
  const CatalogueCut& cut_;
  std::unique_ptr<SectionBuilder> section_ = std::make_unique<SectionBuilder>();
  size_t begin_ = 0;  // of the shards of the section
  std::vector<SectionRef> refs_;
};

}  // namespace

Result<Digest> WriteIndexedCatalogue(const CataloguePlaceOnDisk& place, const Catalogue& catalogue,
                                     const std::map<uint32_t, GroupPart>& parts,
                                     const CatalogueCut& cut) {
  return IndexedWriter(place, catalogue, parts, cut).Run();
}

Result<std::unique_ptr<CatalogueReader>> CatalogueReader::Open(const CataloguePlaceOnDisk& place,
                                                               const GroupAttempt& attempt) {
  std::unique_ptr<CatalogueReader> reader(new CatalogueReader(place));
  VARVE_RETURN_IF_ERROR(attempt.has_index() ? reader->LoadIndex(attempt)
                                            : reader->LoadOneFile(attempt));
  return reader;
}

Status CatalogueReader::LoadOneFile(const GroupAttempt& attempt) {
  parts_ = attempt.parts;
  const uint32_t num_ranks = parts_.empty() ? 0 : parts_.rbegin()->first + 1;
  VARVE_ASSIGN_OR_RETURN(
      Catalogue catalogue,
      CatalogueFile(place_.root, place_.seed, place_.attempt).Read(attempt.catalogue, num_ranks));
  items_ = std::move(catalogue.items);
  AddRead(std::move(catalogue.shards));
  return Status::Ok();
}

Status CatalogueReader::LoadIndex(const GroupAttempt& attempt) {
  const fs::path path = IndexPath(place_);
  VARVE_ASSIGN_OR_RETURN(const std::string bytes,
                         ReadCatalogueBytes(path, place_.seed, attempt.catalogue));
  Result<Index> index = DecodeIndex(bytes);
  if (!index.ok()) return index.status().WithContext(path.string());
  parts_ = std::move(index->parts);
  GroupTotals totals;
  std::vector<MemberId> members;
  for (const auto& [rank, part] : parts_) {
    totals.Add(part);
    members.push_back(part.member);
  }
  if (members != *attempt.crew.members || totals != attempt.crew_totals) {
    return Status::Corruption(path.string() + ": its parts are not those that the log says");
  }
  items_ = std::move(index->items);
  if (index->section.has_value()) AddRead(*std::move(index->section));
  for (SectionRef& ref : index->sections) {
    sections_.push_back({.first = std::move(ref.first), .digest = ref.digest, .shards = {}});
  }
  return Status::Ok();
}

void CatalogueReader::AddRead(std::vector<CatalogueShard> shards) {
  std::string first = shards.empty() ? "" : shards[0].name;
  sections_.push_back(
      {.first = std::move(first), .digest = {}, .is_read = true, .shards = std::move(shards)});
}

Status CatalogueReader::ReadSection(size_t number, SectionFile* section) const {
  const fs::path path = SectionPath(place_, number);
  VARVE_ASSIGN_OR_RETURN(const std::string bytes,
                         ReadCatalogueBytes(path, place_.seed, section->digest));
  auto shards = DecodeSection(bytes, static_cast<uint32_t>(parts_.size()));
  if (!shards.ok()) return shards.status().WithContext(path.string());
  const bool is_last = number + 1 == sections_.size();
  if (shards->empty() || shards->front().name != section->first ||
      (!is_last && shards->back().name >= sections_[number + 1].first)) {
    return Status::Corruption(path.string() + ": its names are not those that the index says");
  }
  section->shards = *std::move(shards);
  section->is_read = true;
  return Status::Ok();
}

Result<std::span<const CatalogueShard>> CatalogueReader::Section(size_t number) const {
  const std::lock_guard lock(mutex_);
  SectionFile& section = sections_[number];
  if (!section.is_read) VARVE_RETURN_IF_ERROR(ReadSection(number, &section));
  return std::span<const CatalogueShard>(section.shards);
}

size_t CatalogueReader::NumNotBehind(std::string_view name) const {
  const auto behind = std::upper_bound(
      sections_.begin(), sections_.end(), name,
      [](std::string_view wanted, const SectionFile& s) { return wanted < s.first; });
  return static_cast<size_t>(behind - sections_.begin());
}

Result<std::vector<std::span<const CatalogueShard>>> CatalogueReader::FindByPrefix(
    std::string_view prefix) const {
  std::vector<std::span<const CatalogueShard>> found;
  const size_t behind = NumNotBehind(prefix);
  for (size_t i = behind == 0 ? 0 : behind - 1; i < num_sections(); ++i) {
    const std::string_view first = sections_[i].first;
    if (first > prefix && !first.starts_with(prefix)) break;
    VARVE_ASSIGN_OR_RETURN(const std::span<const CatalogueShard> shards, Section(i));
    const auto begin = std::partition_point(shards.begin(), shards.end(),
                                            [&](const auto& s) { return s.name < prefix; });
    const auto end = std::partition_point(
        begin, shards.end(), [&](const auto& s) { return s.name.starts_with(prefix); });
    if (begin != end) found.emplace_back(begin, end);
  }
  return found;
}

Result<std::span<const CatalogueShard>> CatalogueReader::Find(std::string_view name) const {
  struct ByName {
    bool operator()(const CatalogueShard& s, std::string_view wanted) const {
      return s.name < wanted;
    }
    bool operator()(std::string_view wanted, const CatalogueShard& s) const {
      return wanted < s.name;
    }
  };
  const size_t behind = NumNotBehind(name);
  if (behind == 0) return std::span<const CatalogueShard>();
  VARVE_ASSIGN_OR_RETURN(const std::span<const CatalogueShard> shards, Section(behind - 1));
  const auto [begin, end] = std::equal_range(shards.begin(), shards.end(), name, ByName());
  return shards.subspan(static_cast<size_t>(begin - shards.begin()),
                        static_cast<size_t>(end - begin));
}

size_t CatalogueReader::num_sections_read() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(sections_.begin(), sections_.end(), [](const auto& s) { return s.is_read; }));
}

}  // namespace varve::internal
