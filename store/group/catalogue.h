// SPDX-License-Identifier: Apache-2.0
//
// Says where the parts of a checkpoint are. Catalogues are files of each attempt in
// ROOT/catalogues. Each rank writes one of its own part before it says that it is prepared. The
// coordinator makes one of all before it commits (catalogue_index.h). Their digests are in the log,
// so that what is read is what was meant. Plain values. All functions are stateless.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "store/group/group_record.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal {

struct CatalogueShard : TensorSpec {  // without role, derived_from and alias_of
  uint32_t rank = 0;
  uint32_t shard = 0;  // the rank's own number for it
  Digest content;  // digest of its bytes. Equal shards have equal digests, because all members have
                   // one seed
  bool operator==(const CatalogueShard&) const = default;
};

// The same, borrowed.
struct CatalogueShardView : TensorView {
  uint32_t rank = 0;
  Digest content;
};

struct CatalogueItem {
  std::string name;
  uint32_t rank = 0;
  bool operator==(const CatalogueItem&) const = default;
};

struct Catalogue {
  std::vector<CatalogueShard> shards;  // by name, rank, shard
  std::vector<CatalogueItem> items;    // by name, rank
  bool operator==(const Catalogue&) const = default;

  void Sort();
};

// Appends what tells a layout from every other one. The bytes stay in this process.
void AppendLayoutKey(const ShardLayout& layout, std::string* bytes);

std::vector<CatalogueShardView> ViewsOf(const Catalogue& catalogue);
// In the order of a Catalogue.
std::string EncodeCatalogue(std::span<const CatalogueShardView> shards,
                            std::span<const CatalogueItem> items);
inline std::string EncodeCatalogue(const Catalogue& catalogue) {
  return EncodeCatalogue(ViewsOf(catalogue), catalogue.items);
}
// kCorruption: it is not a catalogue, is out of order, has an impossible shape, or names a rank
// that is not below `num_ranks`.
Result<Catalogue> DecodeCatalogue(std::string_view bytes, uint32_t num_ranks);

// kCorruption: it is out of order, or names a rank that is not below `num_ranks`.
Status CheckCatalogue(const Catalogue& catalogue, uint32_t num_ranks);
// kCorruption: it has no valid dtype, or an impossible shape.
Status CheckCatalogueShard(const CatalogueShard& shard);

// The largest size of a file.
inline constexpr size_t kMaxCatalogueBytes = size_t{1} << 30;
// kCorruption: the file is missing, or has another digest.
Result<std::string> ReadCatalogueBytes(const std::filesystem::path& path, uint64_t seed,
                                       const Digest& digest);

// One file. It holds the list of one rank's part, or, in a group of version 1, the catalogue of an
// attempt. The root's digests have this seed.
class CatalogueFile {
 public:
  CatalogueFile(const std::filesystem::path& root, uint64_t seed, AttemptId attempt,
                std::optional<uint32_t> rank = {});

  // The file is durable when this returns its digest. kInvalidArgument: it could not be read again.
  Result<Digest> Write(std::span<const CatalogueShardView> shards,
                       std::span<const CatalogueItem> items) const;
  Status Remove() const;
  // kCorruption: the file is missing, or has another digest.
  Result<Catalogue> Read(const Digest& digest, uint32_t num_ranks) const;

 private:
  std::filesystem::path path_;
  uint64_t seed_;
};

// Returns the files in ROOT/catalogues, each with its attempt, or 0 if it belongs to none.
Result<std::vector<std::pair<std::filesystem::path, AttemptId>>> ListCatalogues(
    const std::filesystem::path& root);
// True when a committed attempt needs this file, which ListCatalogues has returned.
bool IsWholeCatalogue(const std::filesystem::path& file);

}  // namespace varve::internal
