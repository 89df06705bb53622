// SPDX-License-Identifier: Apache-2.0
//
// The public interface of a store throws nothing. The classes here are what callers get: each
// derives from a class that does the work, and turns what that class throws into an error. Code in
// these classes' bases may so use the standard library as it is. A call that is added to Store,
// CheckpointReader or CheckpointWriter is added here, too.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/guarded.h"
#include "varve/store.h"

namespace varve::internal {

template <typename Base>
class GuardedWriter final : public Base {
 public:
  using Base::Base;
  Status Put(const TensorView& view) override {
    return Guarded("putting a tensor", [&] { return Base::Put(view); });
  }
  Status PutBytes(std::string_view name, std::span<const std::byte> value) override {
    return Guarded("putting an item", [&] { return Base::PutBytes(name, value); });
  }
  Status SetTrainerProgress(const TrainerProgress& state) override {
    return Guarded("putting the trainer's progress",
                   [&] { return Base::SetTrainerProgress(state); });
  }
  Status SetTopology(const Topology& topology) override {
    return Guarded("putting the topology", [&] { return Base::SetTopology(topology); });
  }
  Status SetMetric(std::string_view name, double value) override {
    return Guarded("putting a metric", [&] { return Base::SetMetric(name, value); });
  }
  Status AddTag(std::string_view tag) override {
    return Guarded("putting a tag", [&] { return Base::AddTag(tag); });
  }
  Result<SaveReport> Commit() override {
    return Guarded("committing", [&] { return Base::Commit(); });
  }
  void Abandon() override {
    Guarded("abandoning a save", [&] {
      Base::Abandon();
      return Status::Ok();
    }).IgnoreError();
  }
};

template <typename Base>
class GuardedReader final : public Base {
 public:
  using Base::Base;
  Result<std::vector<TensorInfo>> List() const override {
    return Guarded("listing tensors", [&] { return Base::List(); });
  }
  Result<std::vector<TensorInfo>> ListShards() const override {
    return Guarded("listing shards", [&] { return Base::ListShards(); });
  }
  Result<ShardOutline> OutlineShards() const override {
    return Guarded("listing shards", [&] { return Base::OutlineShards(); });
  }
  Result<TensorInfo> Find(std::string_view name, uint32_t shard) const override {
    return Guarded("finding a tensor", [&] { return Base::Find(name, shard); });
  }
  Status Read(std::string_view name, std::span<std::byte> out) const override {
    return Guarded("reading a tensor", [&] { return Base::Read(name, out); });
  }
  Status ReadSlice(std::string_view name, std::span<const Range> slice,
                   std::span<std::byte> out) const override {
    return Guarded("reading a slice", [&] { return Base::ReadSlice(name, slice, out); });
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    return Guarded("reading tensors", [&] { return Base::ReadMany(requests); });
  }
  Result<std::vector<std::string>> ListBytes() const override {
    return Guarded("listing items", [&] { return Base::ListBytes(); });
  }
  Result<std::vector<std::byte>> ReadBytes(std::string_view name) const override {
    return Guarded("reading an item", [&] { return Base::ReadBytes(name); });
  }
  Result<std::optional<TrainerProgress>> ReadTrainerProgress() const override {
    return Guarded("reading the trainer's progress", [&] { return Base::ReadTrainerProgress(); });
  }
  Result<std::optional<TrainerProgress>> ReadTrainerProgressFor(uint32_t rank) const override {
    return Guarded("reading the trainer's progress",
                   [&] { return Base::ReadTrainerProgressFor(rank); });
  }
  Result<std::optional<Topology>> ReadTopology() const override {
    return Guarded("reading the topology", [&] { return Base::ReadTopology(); });
  }
};

template <typename Base>
class GuardedStore final : public Base {
 public:
  using Base::Base;
  ~GuardedStore() override {
    if constexpr (requires { this->StopThreads(); }) this->StopThreads();
  }
  Result<std::vector<RunInfo>> ListRuns() const override {
    return Guarded("listing runs", [&] { return Base::ListRuns(); });
  }
  Result<std::vector<CheckpointInfo>> ListCheckpoints(std::string_view run) const override {
    return Guarded("listing steps", [&] { return Base::ListCheckpoints(run); });
  }
  Result<KnownCheckpoints> ListKnownCheckpoints() const override {
    return Guarded("listing steps", [&] { return Base::ListKnownCheckpoints(); });
  }
  Result<std::optional<uint64_t>> LatestStep(std::string_view run) const override {
    return Guarded("finding the latest step", [&] { return Base::LatestStep(run); });
  }
  Result<uint64_t> FindTag(std::string_view run, std::string_view tag) const override {
    return Guarded("finding a tag", [&] { return Base::FindTag(run, tag); });
  }
  Status SetMetrics(const CheckpointId& id, const std::map<std::string, double>& metrics) override {
    return Guarded("setting metrics", [&] { return Base::SetMetrics(id, metrics); });
  }
  Status SetTag(const CheckpointId& id, std::string_view tag) override {
    return Guarded("setting a tag", [&] { return Base::SetTag(id, tag); });
  }
  Status RemoveTag(std::string_view run, std::string_view tag) override {
    return Guarded("removing a tag", [&] { return Base::RemoveTag(run, tag); });
  }
  Result<uint64_t> Fork(std::string_view run, std::string_view new_run,
                        std::optional<uint64_t> at) override {
    return Guarded("forking", [&] { return Base::Fork(run, new_run, at); });
  }
  Result<RewindReport> Rewind(std::string_view run, uint64_t to) override {
    return Guarded("rewinding", [&] { return Base::Rewind(run, to); });
  }
  Result<std::vector<TensorChange>> Log(std::string_view run,
                                        std::string_view tensor) const override {
    return Guarded("reading the history of a tensor", [&] { return Base::Log(run, tensor); });
  }
  Result<CheckpointDiff> Diff(const CheckpointId& before, const CheckpointId& after,
                              const DiffOptions& options) const override {
    return Guarded("comparing steps", [&] { return Base::Diff(before, after, options); });
  }
  Result<std::vector<SaveReport>> CopyTo(Store* destination, std::span<const CheckpointId> ids,
                                         const CopyOptions& options) const override {
    return Guarded("copying", [&] { return Base::CopyTo(destination, ids, options); });
  }
  Result<uint64_t> BytesFreedByDrop(std::span<const CheckpointId> ids) const override {
    return Guarded("foreseeing a drop", [&] { return Base::BytesFreedByDrop(ids); });
  }
  Result<DropForecast> ForecastDrop(std::span<const CheckpointId> ids) const override {
    return Guarded("foreseeing a drop", [&] { return Base::ForecastDrop(ids); });
  }
  Result<DropReport> Drop(std::span<const CheckpointId> ids, const DropOptions& options) override {
    return Guarded("dropping", [&] { return Base::Drop(ids, options); });
  }
  Result<ReclaimReport> Reclaim(const ReclaimOptions& options) override {
    return Guarded("reclaiming", [&] { return Base::Reclaim(options); });
  }
  Result<CheckReport> Check(const CheckOptions& options) const override {
    return Guarded("checking", [&] { return Base::Check(options); });
  }
  Result<StoreStats> Stats() const override {
    return Guarded("counting", [&] { return Base::Stats(); });
  }
  Status CatchUp() const override {
    return Guarded("catching up", [&] { return Base::CatchUp(); });
  }
};

}  // namespace varve::internal
