// SPDX-License-Identifier: Apache-2.0
//
// The families and table files that a manifest names, without RocksDB. Each record of a manifest
// (manifest_log.h) is a VersionEdit: tags and values as varints. To ask RocksDB takes opening the
// whole database once more, which was half of what opening a store for reading took.
//
// This knows the tags that RocksDB writes for a store, and says nothing about a manifest with
// another one, so a newer RocksDB costs time and no answer. Stateless.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace varve::internal {

struct ManifestTables {
  struct Table {
    uint32_t family = 0;  // a key of `families`
    uint64_t level = 0;
    uint64_t bytes = 0;

    bool operator==(const Table&) const = default;
  };
  std::map<uint32_t, std::string> families;  // names by number, and "default" is 0
  std::map<uint64_t, Table> tables;          // by number: 12 is 000012.sst

  // Returns the names of all table files.
  std::set<std::string> FileNames() const;
};

// nullopt: ask RocksDB. The manifest has an end or a record that this does not understand.
std::optional<ManifestTables> DecodeManifest(std::string_view log);
// The same for the manifest that CURRENT names. A writer may work meanwhile, and nullopt may mean
// that it was just writing. `store` is the path of the store.
std::optional<ManifestTables> ReadManifestTables(const std::filesystem::path& store);

}  // namespace varve::internal
