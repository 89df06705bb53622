// SPDX-License-Identifier: Apache-2.0
//
// The catalogue of a committed attempt, of any size: an index of its parts, and sections, each with
// the shards of some tensors whose names follow each other. A section is a file of its own unless
// it is the only one and small. The log has the digest of the index, and the index those of the
// sections. A reader reads the sections that it is asked for.
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

namespace varve {

// How a catalogue is cut. Other numbers are for tests.
struct CatalogueCut {
  size_t inline_bytes = size_t{256} << 10;  // up to here the only section lies in the index
  size_t section_bytes = size_t{8} << 20;   // about; the shards of one tensor stay together
};

// The files of the catalogue of an attempt in a root whose digests have this seed.
struct CataloguePlaceOnDisk {
  std::filesystem::path root;
  uint64_t seed = 0;
  AttemptId attempt = 0;
};

// Writes the catalogue, which is sorted, of an attempt with these parts. Gives the digest of the
// index; durable when it returns. What was written is known to be readable: kInvalidArgument says
// what would not be.
Result<Digest> WriteIndexedCatalogue(const CataloguePlaceOnDisk& place, const Catalogue& catalogue,
                                     const std::map<uint32_t, GroupPart>& parts,
                                     const CatalogueCut& cut = {});

// Thread rule: any thread. What it returns is valid as long as it lives.
class CatalogueReader {
 public:
  // Of a committed attempt, whose catalogue has an index or is one file. kCorruption: a file is not
  // there, or is not what the log says.
  static Result<std::unique_ptr<CatalogueReader>> Open(const CataloguePlaceOnDisk& place,
                                                       const GroupAttempt& attempt);

  // By rank. Their digests of catalogues are gone when there is an index.
  const std::map<uint32_t, GroupPart>& parts() const { return parts_; }
  const std::vector<CatalogueItem>& items() const { return items_; }
  // All shards of a name; none: there is no such tensor.
  Result<std::span<const CatalogueShard>> Find(std::string_view name) const;
  // All shards whose names begin with `prefix`, in their order; more than one span where they lie
  // in several sections. No span is empty. An empty prefix: all shards.
  Result<std::vector<std::span<const CatalogueShard>>> FindByPrefix(std::string_view prefix) const;
  // One after the other they hold all shards, by name, rank, shard.
  size_t num_sections() const { return sections_.size(); }
  Result<std::span<const CatalogueShard>> Section(size_t number) const;
  // That have been read so far.
  size_t num_sections_read() const;

 private:
  struct SectionFile {
    std::string first;  // name
    Digest digest;
    bool is_read = false;                // guarded by mutex_, as the next
    std::vector<CatalogueShard> shards;  // constant once it is read
  };

  explicit CatalogueReader(CataloguePlaceOnDisk place) : place_(std::move(place)) {}
  Status LoadOneFile(const GroupAttempt& attempt);
  Status LoadIndex(const GroupAttempt& attempt);
  void AddRead(std::vector<CatalogueShard> shards);
  Status ReadSection(size_t number, SectionFile* section) const;
  // The number of sections that do not begin behind `name`.
  size_t NumNotBehind(std::string_view name) const;

  const CataloguePlaceOnDisk place_;
  std::map<uint32_t, GroupPart> parts_;
  std::vector<CatalogueItem> items_;
  mutable std::mutex mutex_;
  mutable std::vector<SectionFile> sections_;  // their number and names are constant
};

}  // namespace varve
