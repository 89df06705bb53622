// SPDX-License-Identifier: Apache-2.0
#include "store/read/sharded_reader.h"

#include <array>
#include <utility>

#include "base/glob.h"
#include "base/guarded.h"
#include "store/shards/regions.h"
#include "varve/store.h"

namespace varve::internal {

namespace {

// There may be a million: what a shard owns moves into its info and is not held twice.
std::vector<TensorInfo> MakeTensorInfos(std::vector<StoredShard> shards) {
  std::vector<TensorInfo> infos;
  infos.reserve(shards.size());
  for (StoredShard& shard : shards) infos.push_back(MakeTensorInfo(std::move(shard)));
  return infos;
}

}  // namespace

TensorInfo MakeTensorInfo(StoredShard shard) {
  TensorRecord& record = shard.record;
  const ChunkGeometry geometry = record.Geometry();
  TensorInfo info{std::move(static_cast<TensorSpec&>(record))};
  info.name = std::move(shard.name);
  info.shard = shard.number;
  info.logical_bytes = geometry.LogicalBytes();
  info.num_chunks = geometry.NumChunks();
  info.content = {record.content.lo, record.content.hi};
  return info;
}

Result<std::unique_ptr<ShardedReader>> ShardedReader::Open(const Store& store, std::string_view run,
                                                           uint64_t step) {
  return Guarded("opening a checkpoint", [&] { return store.OpenShards(run, step); });
}

Result<std::vector<TensorInfo>> ShardedReader::ListShards() const {
  VARVE_ASSIGN_OR_RETURN(auto shards, FindStored());
  return MakeTensorInfos(std::move(shards));
}

Result<std::vector<StoredShard>> ShardedReader::FindMatching(std::string_view glob) const {
  const std::string_view prefix = glob.substr(0, glob.find('*'));
  const bool by_prefix = IsGlob(glob) && !prefix.empty();
  VARVE_ASSIGN_OR_RETURN(std::vector<StoredShard> shards,
                         by_prefix ? FindByPrefix(prefix) : FindStored(prefix));
  std::erase_if(shards, [&](const StoredShard& shard) { return !MatchesGlob(glob, shard.name); });
  return shards;
}

Result<std::vector<TensorInfo>> ShardedReader::ListMatching(std::string_view glob) const {
  VARVE_ASSIGN_OR_RETURN(std::vector<StoredShard> shards, FindMatching(glob));
  return JoinShards(MakeTensorInfos(std::move(shards)));
}

Result<std::vector<TensorInfo>> ShardedReader::List() const {
  VARVE_ASSIGN_OR_RETURN(std::vector<TensorInfo> shards, ListShards());
  return JoinShards(std::move(shards));
}

Status ShardedReader::Read(std::string_view name, std::span<std::byte> out) const {
  return ReadMany(std::array{ReadRequest::Tensor(name, out)});
}

Status ShardedReader::ReadSlice(std::string_view name, std::span<const Range> slice,
                                std::span<std::byte> out) const {
  return ReadMany(std::array{ReadRequest::Tensor(name, out, slice)});
}

}  // namespace varve::internal
