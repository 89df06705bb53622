// SPDX-License-Identifier: Apache-2.0
//
// What a step keeps of a checkpoint of torch.distributed.checkpoint besides tensors: an item for
// each value, named as the value is, and one item that lists them. varve.torch.VarveStorageWriter
// writes the same. Stateless.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace varve::internal::cli {

// JSON: which items are values, and what DCP's planner wants back.
inline constexpr char kDcpItem[] = "dcp.metadata";

std::string BuildDcpItem(std::span<const std::string> values, std::string_view planner_json);

}  // namespace varve::internal::cli
