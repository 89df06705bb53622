// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint of which only some tensors can be seen. A diff of two such checkpoints costs as much
// as these tensors do, however many others there are.
//
// Thread rule: as ShardedReader.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/read/sharded_reader.h"

namespace varve::internal::cli {

using NameSet = std::set<std::string, std::less<>>;

class ChosenTensors : public ShardedReader {
 public:
  // The reader must outlive this object. Names that it lacks are passed over.
  ChosenTensors(const ShardedReader& all, NameSet names) : all_(all), names_(std::move(names)) {}

  Result<std::vector<StoredShard>> FindStored(std::string_view name = {}) const override;
  Result<std::vector<StoredShard>> FindByPrefix(std::string_view prefix) const override;

  const CheckpointInfo& info() const override { return all_.info(); }
  Result<TensorInfo> Find(std::string_view name, uint32_t shard) const override {
    return all_.Find(name, shard);
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    return all_.ReadMany(requests);
  }
  Result<std::vector<std::string>> ListBytes() const override { return all_.ListBytes(); }
  Result<std::vector<std::byte>> ReadBytes(std::string_view name) const override {
    return all_.ReadBytes(name);
  }
  Result<std::optional<TrainerProgress>> ReadTrainerProgress() const override {
    return all_.ReadTrainerProgress();
  }
  Result<std::optional<Topology>> ReadTopology() const override { return all_.ReadTopology(); }
  Status WithFrozenView(const std::function<Status()>& read) const override {
    return all_.WithFrozenView(read);
  }

 private:
  const ShardedReader& all_;
  const NameSet names_;
};

}  // namespace varve::internal::cli
