// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint as it is stored: its shards, each with the store that holds it. Code that compares
// or copies checkpoints uses this, so it works alike for one store and for the members of a group.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/format/record.h"
#include "varve/checkpoint.h"

namespace varve {
class Store;
}  // namespace varve

namespace varve::internal {

class StoreImpl;

struct StoredShard {
  std::string name;
  uint32_t number = 0;               // of the checkpoint's shards of this name
  const StoreImpl* store = nullptr;  // lives as long as the reader
  uint64_t save_id = 0;              // of the save, in that store
  TensorRecord record;
  std::optional<uint32_t> rank;  // the rank that holds it, in a group
};

class ShardedReader : public CheckpointReader {
 public:
  // As Store::OpenCheckpoint, of any store.
  static Result<std::unique_ptr<ShardedReader>> Open(const Store& store, std::string_view run,
                                                     uint64_t step);

  // Returns all shards by name, then number. With a `name`, it returns the shards of that name, and
  // kNotFound when there are none.
  virtual Result<std::vector<StoredShard>> FindStored(std::string_view name = {}) const = 0;
  // Returns the shards whose names start with `prefix`, which must not be empty. There may be none.
  // It reads no others.
  virtual Result<std::vector<StoredShard>> FindByPrefix(std::string_view prefix) const = 0;
  // Runs a read of what FindStored has returned, on one state of the store. It may run it again.
  // kNotFound: the checkpoint was removed meanwhile.
  virtual Status WithFrozenView(const std::function<Status()>& read) const = 0;

  Result<std::vector<TensorInfo>> List() const override;
  Result<std::vector<TensorInfo>> ListShards() const override;
  // Returns the shards whose names match. The cost is that of the names that start with the text
  // before the first star. kNotFound: a plain name does not exist.
  Result<std::vector<StoredShard>> FindMatching(std::string_view glob) const;
  // Returns the tensors of List whose names match, as FindMatching does.
  Result<std::vector<TensorInfo>> ListMatching(std::string_view glob) const;
  Status Read(std::string_view name, std::span<std::byte> out) const override;
  Status ReadSlice(std::string_view name, std::span<const Range> slice,
                   std::span<std::byte> out) const override;
};

TensorInfo MakeTensorInfo(StoredShard shard);

}  // namespace varve::internal
