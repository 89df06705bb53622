// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint as it is stored: its shards with the store that each lies in. What compares or
// copies checkpoints asks for this, and so need not know whether one store has them or the members
// of a group.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/format/record.h"
#include "varve/checkpoint.h"

namespace varve {

class StoreImpl;

struct StoredShard {
  std::string name;
  uint32_t number = 0;               // of the checkpoint's shards of this name
  const StoreImpl* store = nullptr;  // lives as long as the reader
  uint64_t save_id = 0;              // of the save, in that store
  TensorRecord record;
  std::optional<uint32_t> rank;  // that holds it, in a group
};

// Infos of tensors or shards. Without details they have no number of chunks, role, alias_of and
// derived_from.
struct Outline {
  std::vector<TensorInfo> infos;
  bool has_details = true;
};

// What OpenCheckpoint returns is one.
class ShardedReader : public CheckpointReader {
 public:
  // By name, then number; of one name when one is given, which is kNotFound when there is none.
  virtual Result<std::vector<StoredShard>> FindStored(std::string_view name = {}) const = 0;
  // Those whose names begin with `prefix`, which is not empty; perhaps none. Reads no others.
  virtual Result<std::vector<StoredShard>> FindByPrefix(std::string_view prefix) const = 0;
  // Runs a read of what FindStored tells, in one state of the store, and perhaps again. kNotFound:
  // the checkpoint has gone meanwhile.
  virtual Status WithFrozenView(const std::function<Status()>& read) const = 0;

  Result<std::vector<TensorInfo>> List() const final;
  Result<std::vector<TensorInfo>> ListShards() const final;
  // As ListShards, or what is known of it without opening a member of a group.
  virtual Result<Outline> OutlineShards() const;
  // The tensors of List whose names match. The cost is that of the names that begin with what
  // precedes the first star. A plain name that is not there is kNotFound.
  Result<std::vector<TensorInfo>> ListMatching(std::string_view glob) const;
  Status Read(std::string_view name, std::span<std::byte> out) const final;
  Status ReadSlice(std::string_view name, std::span<const Range> slice,
                   std::span<std::byte> out) const final;
};

TensorInfo MakeTensorInfo(StoredShard shard);

}  // namespace varve
