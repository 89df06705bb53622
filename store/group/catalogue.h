// SPDX-License-Identifier: Apache-2.0
//
// Where the parts of a checkpoint are: files of each attempt in ROOT/catalogues. Each rank writes
// one of its own part before it says that it is prepared; the coordinator makes one of them all
// before it commits (catalogue_index.h). Their digests are in the log, so that what is read is what
// was meant. Plain values; all functions are stateless.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/digest.h"
#include "store/group/group_record.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve {

struct CatalogueShard : TensorSpec {  // without role, derived_from and alias_of
  uint32_t rank = 0;
  uint32_t shard = 0;  // as the rank has numbered it
  Digest content;      // of its bytes: equal for equal shards, all members have one seed
  bool operator==(const CatalogueShard&) const = default;
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

std::string EncodeCatalogue(const Catalogue& catalogue);
// kCorruption: not one, out of order, a rank that is not below `num_ranks`, an impossible shape.
Result<Catalogue> DecodeCatalogue(std::string_view bytes, uint32_t num_ranks);

// kCorruption: out of order, or a rank that is not below `num_ranks`.
Status CheckCatalogue(const Catalogue& catalogue, uint32_t num_ranks);
// kCorruption: no dtype, or an impossible shape.
Status CheckCatalogueShard(const CatalogueShard& shard);

// A file is not larger.
inline constexpr size_t kMaxCatalogueBytes = size_t{1} << 30;
// kCorruption: the file is not there, or not what has this digest.
Result<std::string> ReadCatalogueBytes(const std::filesystem::path& path, uint64_t seed,
                                       const Digest& digest);

// One file: the list of one rank's part, or, in a group of version 1, the catalogue of an attempt.
// The digests of the root have this seed.
class CatalogueFile {
 public:
  CatalogueFile(const std::filesystem::path& root, uint64_t seed, AttemptId attempt,
                std::optional<uint32_t> rank = {});

  // Durable when it returns its digest. kInvalidArgument: it could not be read again.
  Result<Digest> Write(const Catalogue& catalogue) const;
  Status Remove() const;
  // kCorruption: it is not there, or not what has this digest.
  Result<Catalogue> Read(const Digest& digest, uint32_t num_ranks) const;

 private:
  std::filesystem::path path_;
  uint64_t seed_;
};

// The files in ROOT/catalogues with the attempt that each is of; 0: of none.
Result<std::vector<std::pair<std::filesystem::path, AttemptId>>> ListCatalogues(
    const std::filesystem::path& root);
// Whether a file that ListCatalogues gave is one that a committed attempt needs.
bool IsWholeCatalogue(const std::filesystem::path& file);

}  // namespace varve
