// SPDX-License-Identifier: Apache-2.0
#include "store/read/sharded_reader.h"

#include <array>

#include "base/glob.h"
#include "store/shards/regions.h"

namespace varve {
namespace {

std::vector<TensorInfo> MakeTensorInfos(const std::vector<StoredShard>& shards) {
  std::vector<TensorInfo> infos;
  for (const StoredShard& shard : shards) infos.push_back(MakeTensorInfo(shard));
  return infos;
}

}  // namespace

TensorInfo MakeTensorInfo(const StoredShard& shard) {
  const TensorRecord& record = shard.record;
  return {.name = shard.name,
          .shard = shard.number,
          .dtype = record.dtype,
          .shape = record.shape,
          .logical_bytes = record.LogicalBytes(),
          .num_chunks = record.NumChunks(),
          .num_shards = 1,
          .role = record.role,
          .alias_of = record.alias_of,
          .derived_from = record.derived_from,
          .content = {record.content.lo, record.content.hi},
          .layout = record.layout};
}

Result<std::vector<TensorInfo>> ShardedReader::ListShards() const {
  VARVE_ASSIGN_OR_RETURN(const auto shards, FindStored());
  return MakeTensorInfos(shards);
}

Result<std::vector<TensorInfo>> ShardedReader::ListMatching(std::string_view glob) const {
  const std::string_view prefix = glob.substr(0, glob.find('*'));
  const bool by_prefix = IsGlob(glob) && !prefix.empty();
  VARVE_ASSIGN_OR_RETURN(std::vector<StoredShard> shards,
                         by_prefix ? FindByPrefix(prefix) : FindStored(prefix));
  std::erase_if(shards, [&](const StoredShard& shard) { return !MatchesGlob(glob, shard.name); });
  return JoinShards(MakeTensorInfos(shards));
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

}  // namespace varve
