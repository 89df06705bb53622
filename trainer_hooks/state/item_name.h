// SPDX-License-Identifier: Apache-2.0
//
// Under which name an item of a training state is stored. An item of the whole job keeps its name,
// that of a rank gets the rank in front: "rank_00003/NAME". Functions are stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "varve/result.h"

namespace varve {

struct ItemName {
  std::string name;
  std::optional<uint32_t> rank;  // unset: of the whole job
  bool operator==(const ItemName&) const = default;
};

// kInvalidArgument: no legal name, alone or with its rank, or a name of the whole job that would be
// read as that of a rank.
Result<std::string> EncodeItemName(const ItemName& item);
// The reverse. What EncodeItemName cannot have made is a name of the whole job.
ItemName DecodeItemName(std::string_view stored);

}  // namespace varve
