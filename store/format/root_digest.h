// SPDX-License-Identifier: Apache-2.0
//
// The root digest of a step (docs/format.md). It covers all its tensors by name, then shard, so a
// change to any of their records shows. Stateless.
#pragma once

#include <string>
#include <string_view>

#include "store/format/record.h"

namespace varve::internal {

// Appends what the root digest hashes of one shard.
void AppendToRoot(std::string_view name, uint32_t shard, const TensorRecordView& record,
                  std::string* root);

}  // namespace varve::internal
