// SPDX-License-Identifier: Apache-2.0
//
// Shard layouts as flatbuffers (store/schema/shard_layout.fbs), for all records that have one.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include "store/schema/shard_layout_generated.h"
#include "varve/result.h"
#include "varve/shard_layout.h"

namespace varve::internal {

flatbuffers::Offset<fb::ShardLayout> EncodeLayout(const ShardLayout& layout,
                                                  flatbuffers::FlatBufferBuilder* builder);
// kCorruption says what is wrong. Precondition: the buffer was verified.
Result<ShardLayout> DecodeLayout(const fb::ShardLayout& in);

}  // namespace varve::internal
