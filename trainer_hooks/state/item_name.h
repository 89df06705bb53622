// SPDX-License-Identifier: Apache-2.0
//
// The name under which an item of a training state is stored. An item of the whole job keeps its
// name. An item of a rank gets the rank in front: "rank_00003/NAME". Functions are stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "varve/result.h"

namespace varve::internal {

struct ItemName {
  std::string_view name;         // borrowed
  std::optional<uint32_t> rank;  // unset: of the whole job
  bool operator==(const ItemName&) const = default;
};

// kInvalidArgument: the name is not legal, alone or with its rank, or it is a name of the whole job
// that would be read as one of a rank.
Result<std::string> EncodeItemName(const ItemName& item);
// The reverse. A name that EncodeItemName cannot have made belongs to the whole job.
ItemName DecodeItemName(std::string_view stored);

}  // namespace varve::internal
