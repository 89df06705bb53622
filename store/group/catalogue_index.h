// SPDX-License-Identifier: Apache-2.0
//
// The catalogue of a committed attempt, of any size. It has an index of its parts, and sections. A
// section holds the shards of some consecutive names of tensors. It is its own file, unless it is
// the only one and small. The log has the digest of the index, and the index has those of the
// sections. A reader reads only the sections that it needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/group/catalogue.h"
#include "store/group/group_state.h"
#include "varve/result.h"

namespace varve::internal {

// How a catalogue is cut. Tests use other numbers.
struct CatalogueCut {
  size_t inline_bytes = size_t{256} << 10;  // up to here the only section lies in the index
  size_t section_bytes = size_t{8}
                         << 20;  // approximately, because the shards of one tensor stay together
};

// Where the files of an attempt's catalogue lie: in a root whose digests have this seed.
struct CataloguePlaceOnDisk {
  std::filesystem::path root;
  uint64_t seed = 0;
  AttemptId attempt = 0;
};

// Writes the catalogue of an attempt with these parts. The catalogue must be sorted. Returns the
// digest of the index. Everything is durable then, and known to be readable. kInvalidArgument says
// what would not be readable.
Result<Digest> WriteIndexedCatalogue(const CataloguePlaceOnDisk& place, const Catalogue& catalogue,
                                     const std::map<uint32_t, GroupPart>& parts,
                                     const CatalogueCut& cut = {});

// Thread rule: any thread. What it returns is valid as long as the reader lives.
class CatalogueReader {
 public:
  // Opens the catalogue of a committed attempt. It has an index or is one file. kCorruption: a file
  // is missing, or differs from what the log says.
  static Result<std::unique_ptr<CatalogueReader>> Open(const CataloguePlaceOnDisk& place,
                                                       const GroupAttempt& attempt);

  // Returns the parts by rank. If there is an index, they have no digests of catalogues.
  const std::map<uint32_t, GroupPart>& parts() const { return parts_; }
  const std::vector<CatalogueItem>& items() const { return items_; }
  // Returns all shards of a name, or an empty span when there is no such tensor.
  Result<std::span<const CatalogueShard>> Find(std::string_view name) const;
  // Returns all shards whose names start with `prefix`, in order. Each section that has some gives
  // a span, and none is empty. An empty prefix gives all shards.
  Result<std::vector<std::span<const CatalogueShard>>> FindByPrefix(std::string_view prefix) const;
  // The number of sections. Taken in order, sections hold all shards by name, rank, shard.
  size_t num_sections() const { return sections_.size(); }
  Result<std::span<const CatalogueShard>> Section(size_t number) const;
  // The number of sections that have been read so far.
  size_t num_sections_read() const;

 private:
  struct SectionFile {
    std::string first;  // name
    Digest digest;
    bool is_read = false;                // guarded by mutex_, as is the next
    std::vector<CatalogueShard> shards;  // constant once it is read
  };

  explicit CatalogueReader(CataloguePlaceOnDisk place) : place_(std::move(place)) {}
  Status LoadOneFile(const GroupAttempt& attempt);
  Status LoadIndex(const GroupAttempt& attempt);
  void AddRead(std::vector<CatalogueShard> shards);
  Status ReadSection(size_t number, SectionFile* section) const;
  // Returns the number of sections that start at or before `name`.
  size_t NumNotBehind(std::string_view name) const;

  const CataloguePlaceOnDisk place_;
  std::map<uint32_t, GroupPart> parts_;
  std::vector<CatalogueItem> items_;
  mutable std::mutex mutex_;
  mutable std::vector<SectionFile> sections_;  // their number and names are constant
};

}  // namespace varve::internal
