// SPDX-License-Identifier: Apache-2.0
//
// The files of a catalogue that has an index. Each target writes its input as one file, and makes
// the digests that name it right.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/util.h"
#include "store/group/catalogue_index.h"
#include "tests/fuzz/targets.h"

namespace varve::internal::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDigestSeed = 3;
constexpr AttemptId kAttempt = 5;
constexpr uint32_t kNumParts = 4;
constexpr std::string_view kFirst = "layer.0.weight";

// A root in memory.
class Root {
 public:
  static const Root& Get() {
    static const Root root;
    return root;
  }

  const CataloguePlaceOnDisk& place() const { return place_; }
  fs::path Index() const { return place_.root / "catalogues" / std::to_string(kAttempt); }
  fs::path Section() const { return Index().string() + ".p0"; }

 private:
  Root() : place_{ScratchFolder() / "root", kDigestSeed, kAttempt} {
    fs::create_directories(Index().parent_path());
  }

  const CataloguePlaceOnDisk place_;
};

std::map<uint32_t, GroupPart> Parts() {
  std::map<uint32_t, GroupPart> parts;
  for (uint32_t rank = 0; rank < kNumParts; ++rank) {
    parts[rank] = {.member = 70 + rank, .root = {rank, 1}, .num_tensors = 1, .logical_bytes = 128};
  }
  return parts;
}

// Opens what lies there, and reads all that it names.
void OpenAndRead(const Digest& index) {
  GroupAttempt attempt;
  attempt.committed = true;
  attempt.catalogue = index;
  std::vector<MemberId> members;
  for (const auto& [rank, part] : Parts()) {
    members.push_back(part.member);
    attempt.crew_totals.Add(part);
  }
  attempt.crew.members = std::make_shared<const std::vector<MemberId>>(std::move(members));
  const auto reader = CatalogueReader::Open(Root::Get().place(), attempt);
  if (!reader.ok()) return;
  for (size_t i = 0; i < (*reader)->num_sections(); ++i) (void)(*reader)->Section(i);
  (void)(*reader)->Find(kFirst);
}

void ReadIndex(std::span<const std::byte> input) {
  WriteFile(Root::Get().Index(), AsString(input));
  OpenAndRead(ComputeDigest(kDigestSeed, input));
}

// The index and, when it is not in the index, the section of a catalogue with three shapes.
std::pair<std::string, std::string> Files(size_t inline_bytes) {
  Catalogue catalogue;
  for (uint32_t rank = 0; rank < kNumParts; ++rank) {
    CatalogueShard shard{
        {.name = std::string(kFirst), .dtype = DType::kF32, .shape = {8, 4}}, rank, 0, {rank, 1}};
    if (rank > 1) {
      const int64_t begin = int64_t{8} * (rank - 2);
      shard.layout = ShardLayout{
          .global_shape = {16, 4}, .axes = {{{begin, 8, false}}, {{0, 4, false}}}, .flat = {}};
    }
    catalogue.shards.push_back(shard);
  }
  catalogue.items.push_back({"loader", 1});
  const auto digest = WriteIndexedCatalogue(Root::Get().place(), catalogue, Parts(),
                                            {.inline_bytes = inline_bytes, .section_bytes = 1});
  if (!digest.ok()) std::abort();
  return {ReadFile(Root::Get().Index()), inline_bytes == 0 ? ReadFile(Root::Get().Section()) : ""};
}

// The index of Files(0), which names its section by a digest, gets that of the input.
void ReadSection(std::span<const std::byte> input) {
  static const auto files = Files(0);
  const auto bytes_of = [](std::string_view section) {
    const Digest digest = ComputeDigest(kDigestSeed, AsBytes(section));
    std::string bytes(sizeof(digest.lo) + sizeof(digest.hi), '\0');
    std::memcpy(bytes.data(), &digest.lo, sizeof(digest.lo));
    std::memcpy(bytes.data() + sizeof(digest.lo), &digest.hi, sizeof(digest.hi));
    return bytes;
  };
  std::string index = files.first;
  const std::string digest = bytes_of(files.second);
  const size_t at = index.find(digest);
  if (at == std::string::npos) std::abort();
  index.replace(at, digest.size(), bytes_of(AsString(input)));
  WriteFile(Root::Get().Section(), AsString(input));
  WriteFile(Root::Get().Index(), index);
  OpenAndRead(ComputeDigest(kDigestSeed, AsBytes(index)));
}

}  // namespace

std::vector<FuzzTarget> CatalogueTargets() {
  return {{"catalogue_index", ReadIndex, {Files(1 << 20).first, Files(0).first}},
          {"catalogue_section", ReadSection, {Files(0).second}}};
}

}  // namespace varve::internal::fuzz
