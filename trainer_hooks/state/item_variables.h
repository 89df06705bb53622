// SPDX-License-Identifier: Apache-2.0
//
// Items that stand for variables of the trainer. Functions are stateless.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "varve/state_item.h"

namespace varve::internal {

// Returns "item NAME", or "item NAME of rank 3".
std::string ItemText(const StateItem& item);

// Reads all variables into `value`. The items then stand for no variable any more. The error names
// the item. kInvalidArgument: it has more bytes than fit into an item.
Status ReadVariables(std::vector<StateItem>* items);

// What a load does with the items of a checkpoint.
struct ItemPlan {
  // The new items of the target. `value` holds the bytes that a variable gets.
  std::vector<StateItem> items;
  std::vector<size_t> fills;        // the items whose variables get bytes, as indices in `items`
  std::vector<StateItem> missing;   // the items whose variables get none
  std::vector<std::string> faults;  // each names an item whose variable does not take its bytes
};
// `stored` are the items of the checkpoint.
ItemPlan PlanItems(const std::vector<StateItem>& target, std::vector<StateItem> stored);
// Fills the variables and returns the new items of the target.
std::vector<StateItem> FillVariables(ItemPlan plan);

}  // namespace varve::internal
