// SPDX-License-Identifier: Apache-2.0
//
// The families and table files that a manifest names, without RocksDB. Each record of a manifest
// (manifest_log.h) is a VersionEdit: tags and values as varints. To ask RocksDB takes opening the
// whole database once more, which was half of what opening a store for reading took.
//
// This knows the tags that RocksDB writes for a store, and says nothing about a manifest with
// another one, so a newer RocksDB costs time and no answer. Stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace varve::internal {

struct ManifestTables {
  struct Table {
    uint32_t family = 0;  // a key of `families`
    uint64_t level = 0;
    uint64_t bytes = 0;
    std::string tag;  // of a sealed store (sealer.h). Else empty

    bool operator==(const Table&) const = default;
  };
  std::map<uint32_t, std::string> families;  // names by number, and "default" is 0
  std::map<uint64_t, Table> tables;          // by number: 12 is 000012.sst

  // Returns the names of all table files.
  std::set<std::string> FileNames() const;
  // Returns the numbers of the tables of each family that has some, by its name.
  std::map<std::string, std::set<uint64_t>> ByFamily() const;
};

// Returns the name of a table file in `db`: 000012.sst.
std::string TableFileName(uint64_t number);

// Walks through the states of a manifest: one after each record, or after each atomic group. Calls
// `visit(state, end)` for the last state whose record ends at or before `from`, and for each later
// one. Returns where the record of the last state ends: what follows it is not whole. nullopt: ask
// RocksDB. The manifest has a record that this does not understand.
using VisitState = std::function<void(const ManifestTables& state, size_t end)>;
std::optional<size_t> VisitManifestStates(std::string_view log, size_t from,
                                          const VisitState& visit);
// Returns where the changes end that are whole in a part of a manifest. The part starts with a
// whole change, `offset` bytes behind the start of the manifest. Empty: it has none, or a record
// that this does not understand.
std::vector<size_t> EndsOfChanges(std::string_view part, size_t offset);
// Returns the last state. nullopt: ask RocksDB. The manifest has an end or a record that this does
// not understand.
std::optional<ManifestTables> DecodeManifest(std::string_view log);
// The same for the manifest that CURRENT names. A writer may work meanwhile, and nullopt may mean
// that it was just writing. `store` is the path of the store.
std::optional<ManifestTables> ReadManifestTables(const std::filesystem::path& store);
// The bytes of that manifest as far as they were there, and those of CURRENT. nullopt: it cannot be
// read, or it is too long.
struct ManifestText {
  std::string current;
  std::string log;
};
std::optional<ManifestText> ReadManifestText(const std::filesystem::path& store);

}  // namespace varve::internal
