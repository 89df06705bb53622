// SPDX-License-Identifier: Apache-2.0
#include "store/sharded_reader.h"

#include "store/regions.h"

namespace varve {

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
  std::vector<TensorInfo> list;
  for (const StoredShard& shard : shards) list.push_back(MakeTensorInfo(shard));
  return list;
}

Result<std::vector<TensorInfo>> ShardedReader::List() const {
  VARVE_ASSIGN_OR_RETURN(std::vector<TensorInfo> shards, ListShards());
  return JoinShards(std::move(shards));
}

Status ShardedReader::Read(std::string_view name, std::span<std::byte> out) const {
  return ReadMany(std::vector<ReadRequest>{{.name = name, .out = out}});
}

Status ShardedReader::ReadSlice(std::string_view name, std::span<const Range> slice,
                                std::span<std::byte> out) const {
  return ReadMany(std::vector<ReadRequest>{{.name = name, .out = out, .slice = slice}});
}

}  // namespace varve
