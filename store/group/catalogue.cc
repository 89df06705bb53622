// SPDX-License-Identifier: Apache-2.0
#include "store/group/catalogue.h"

#include <flatbuffers/flatbuffers.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>
#include <tuple>

#include "base/coding.h"
#include "base/util.h"
#include "store/format/group_file.h"
#include "store/format/stored_layout.h"
#include "store/format/verified_buffer.h"
#include "store/schema/group_generated.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

Status Damaged(const std::string& what) { return Status::Corruption("catalogue: " + what); }

auto Key(const CatalogueShard& s) { return std::tie(s.name, s.rank, s.shard); }
auto Key(const CatalogueItem& i) { return std::tie(i.name, i.rank); }

Result<CatalogueShard> DecodeShard(const std::string& name, const fb::CatalogueShard& in) {
  CatalogueShard shard{{.name = name}, in.rank(), in.shard(), {}};
  shard.dtype = static_cast<DType>(in.dtype());
  if (!AreAligned(in.shape())) return Damaged("the shape of tensor " + name + " is not aligned");
  if (in.shape() != nullptr) shard.shape.assign(in.shape()->begin(), in.shape()->end());
  VARVE_RETURN_IF_ERROR(CheckCatalogueShard(shard));
  if (in.content() != nullptr) shard.content = {in.content()->lo(), in.content()->hi()};
  if (in.layout() == nullptr) return shard;
  Result<ShardLayout> layout = DecodeLayout(*in.layout());
  if (!layout.ok()) return layout.status().WithContext("catalogue: tensor " + name);
  if (layout->LocalShape() != shard.shape) {
    return Damaged("tensor " + name + ": the shape does not fit the layout " + ToString(*layout));
  }
  shard.layout = *std::move(layout);
  return shard;
}

template <typename Entry>
Status CheckOrder(const std::vector<Entry>& entries, uint32_t num_ranks) {
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].rank >= num_ranks) {
      return Damaged(entries[i].name + " is of rank " + std::to_string(entries[i].rank) +
                     ", expected less than " + std::to_string(num_ranks));
    }
    if (i > 0 && Key(entries[i - 1]) >= Key(entries[i])) {
      return Damaged(entries[i].name + " is out of order");
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckCatalogueShard(const CatalogueShard& shard) {
  if (DTypeBits(shard.dtype) == 0) {
    return Damaged("tensor " + shard.name + " has dtype " +
                   std::to_string(static_cast<int>(shard.dtype)));
  }
  const Result<uint64_t> bytes = NumBytes(shard.dtype, shard.shape);
  if (bytes.ok()) return Status::Ok();
  return Damaged("tensor " + shard.name + ": " + bytes.status().message());
}

Status CheckCatalogue(const Catalogue& catalogue, uint32_t num_ranks) {
  VARVE_RETURN_IF_ERROR(CheckOrder(catalogue.shards, num_ranks));
  return CheckOrder(catalogue.items, num_ranks);
}

void AppendLayoutKey(const ShardLayout& layout, std::string* bytes) {
  AppendLittle(layout.global_shape.size(), bytes);
  for (const int64_t size : layout.global_shape) AppendLittle(size, bytes);
  for (const std::vector<Segment>& axis : layout.axes) {
    AppendLittle(axis.size(), bytes);
    for (const Segment& segment : axis) {
      AppendLittle(segment.begin, bytes);
      AppendLittle(segment.length, bytes);
      AppendLittle(segment.is_padding, bytes);
    }
  }
  AppendLittle(layout.flat ? layout.flat->begin : -1, bytes);
  AppendLittle(layout.flat ? layout.flat->end : -1, bytes);
}

void Catalogue::Sort() {
  std::sort(shards.begin(), shards.end(),
            [](const auto& a, const auto& b) { return Key(a) < Key(b); });
  std::sort(items.begin(), items.end(),
            [](const auto& a, const auto& b) { return Key(a) < Key(b); });
}

std::vector<CatalogueShardView> ViewsOf(const Catalogue& catalogue) {
  std::vector<CatalogueShardView> views;
  views.reserve(catalogue.shards.size());
  for (const CatalogueShard& shard : catalogue.shards) {
    views.push_back({shard.View(), shard.rank, shard.content});
    views.back().shard = shard.shard;
  }
  return views;
}

std::string EncodeCatalogue(std::span<const CatalogueShardView> all,
                            std::span<const CatalogueItem> named) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<fb::CatalogueTensor>> tensors;
  for (size_t begin = 0; begin < all.size();) {
    const std::string_view name = all[begin].name;
    std::vector<flatbuffers::Offset<fb::CatalogueShard>> shards;
    size_t end = begin;
    for (; end < all.size() && all[end].name == name; ++end) {
      const CatalogueShardView& s = all[end];
      const fb::Digest content(s.content.lo, s.content.hi);
      const auto shape = builder.CreateVector(s.shape.data(), s.shape.size());
      flatbuffers::Offset<fb::ShardLayout> layout;
      if (s.layout != nullptr) layout = EncodeLayout(*s.layout, &builder);
      shards.push_back(fb::CreateCatalogueShard(
          builder, s.rank, s.shard, static_cast<uint8_t>(s.dtype), shape, layout, &content));
    }
    const auto shard_vector = builder.CreateVector(shards);
    tensors.push_back(fb::CreateCatalogueTensor(
        builder, builder.CreateString(name.data(), name.size()), shard_vector));
    begin = end;
  }
  std::vector<flatbuffers::Offset<fb::CatalogueItem>> items;
  for (const CatalogueItem& item : named) {
    items.push_back(fb::CreateCatalogueItem(builder, builder.CreateString(item.name), item.rank));
  }
  const auto tensor_vector = builder.CreateVector(tensors);
  builder.Finish(fb::CreateCatalogue(builder, tensor_vector, builder.CreateVector(items)));
  return {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()};
}

Result<Catalogue> DecodeCatalogue(std::string_view bytes, uint32_t num_ranks) {
  const VerifiedBuffer<fb::Catalogue> buffer(bytes);
  if (buffer.root() == nullptr) return Damaged("not a well-formed flatbuffer");
  Catalogue catalogue;
  if (const auto* tensors = buffer.root()->tensors()) {
    for (const fb::CatalogueTensor* tensor : *tensors) {
      if (tensor->shards() == nullptr) continue;
      for (const fb::CatalogueShard* in : *tensor->shards()) {
        VARVE_ASSIGN_OR_RETURN(CatalogueShard shard, DecodeShard(tensor->name()->str(), *in));
        catalogue.shards.push_back(std::move(shard));
      }
    }
  }
  if (const auto* items = buffer.root()->items()) {
    for (const fb::CatalogueItem* item : *items) {
      catalogue.items.push_back({item->name()->str(), item->rank()});
    }
  }
  VARVE_RETURN_IF_ERROR(CheckCatalogue(catalogue, num_ranks));
  return catalogue;
}

Result<std::string> ReadCatalogueBytes(const fs::path& path, uint64_t seed, const Digest& digest) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) return Status::Corruption(path.string() + " cannot be read: " + error.message());
  if (size > kMaxCatalogueBytes) {
    return Status::Corruption(path.string() + ": " + std::to_string(size) +
                              " bytes, expected at most " + std::to_string(kMaxCatalogueBytes));
  }
  VARVE_ASSIGN_OR_RETURN(std::string bytes, ReadSmallFile(path, size));
  const Digest found = ComputeDigest(seed, AsBytes(bytes));
  if (found == digest) return bytes;
  return Status::Corruption(path.string() + ": digest is " + ToHex(found) + ", expected " +
                            ToHex(digest));
}

CatalogueFile::CatalogueFile(const fs::path& root, uint64_t seed, AttemptId attempt,
                             std::optional<uint32_t> rank)
    : path_(CataloguesFolder(root) / std::to_string(attempt)), seed_(seed) {
  if (rank.has_value()) path_ += "." + std::to_string(*rank);
}

Result<Digest> CatalogueFile::Write(std::span<const CatalogueShardView> shards,
                                    std::span<const CatalogueItem> items) const {
  const std::string bytes = EncodeCatalogue(shards, items);
  const auto readable = DecodeCatalogue(bytes, std::numeric_limits<uint32_t>::max());
  if (!readable.ok() || bytes.size() > kMaxCatalogueBytes) {
    return Status::InvalidArgument(
        path_.string() + ": not written, because it could not be read again: " +
        (readable.ok() ? std::to_string(bytes.size()) + " bytes, expected at most " +
                             std::to_string(kMaxCatalogueBytes)
                       : readable.status().message()));
  }
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(path_, bytes));
  return ComputeDigest(seed_, AsBytes(bytes));
}

Status CatalogueFile::Remove() const {
  std::error_code error;
  fs::remove(path_, error);
  if (!error) return Status::Ok();
  return Status::IOError("cannot remove " + path_.string() + ": " + error.message());
}

Result<Catalogue> CatalogueFile::Read(const Digest& digest, uint32_t num_ranks) const {
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, ReadCatalogueBytes(path_, seed_, digest));
  Result<Catalogue> catalogue = DecodeCatalogue(bytes, num_ranks);
  if (!catalogue.ok()) return catalogue.status().WithContext(path_.string());
  return catalogue;
}

Result<std::vector<std::pair<fs::path, AttemptId>>> ListCatalogues(const fs::path& root) {
  std::vector<std::pair<fs::path, AttemptId>> files;
  std::error_code error;
  fs::directory_iterator it(CataloguesFolder(root), error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    AttemptId attempt = 0;
    std::from_chars(name.data(), name.data() + name.size(), attempt);
    files.emplace_back(it->path(), attempt);
  }
  if (!error) return files;
  return Status::IOError("cannot list " + CataloguesFolder(root).string() + ": " + error.message());
}

bool IsWholeCatalogue(const fs::path& file) {
  return !file.has_extension() || file.extension().string().starts_with(".p");
}

}  // namespace varve::internal
