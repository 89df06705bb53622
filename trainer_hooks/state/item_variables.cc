// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/item_variables.h"

#include <map>
#include <set>
#include <utility>

#include "base/guarded.h"
#include "store/save/validate_view.h"

namespace varve::internal {

Status WrongItemSize(size_t found, const std::string& what) {
  return Status::InvalidArgument("has " + std::to_string(found) + " bytes, expected " + what);
}

std::string ItemText(const StateItem& item) {
  const std::string name = "item " + item.name;
  return item.rank.has_value() ? name + " of rank " + std::to_string(*item.rank) : name;
}

Status ReadVariables(std::vector<StateItem>* items) {
  for (StateItem& item : *items) {
    if (item.variable == nullptr) continue;
    auto read = Guarded("reading its variable", [&] { return item.variable->Read(); });
    if (!read.ok()) return read.status().WithContext(ItemText(item));
    item.value = *std::move(read);
    item.variable.reset();
    VARVE_RETURN_IF_ERROR(ValidateItem(item.name, item.value));
  }
  return Status::Ok();
}

namespace {

using Key = std::pair<std::string, std::optional<uint32_t>>;

Key KeyOf(const StateItem& item) { return {item.name, item.rank}; }

}  // namespace

ItemPlan PlanItems(const std::vector<StateItem>& target, std::vector<StateItem> stored) {
  std::map<Key, const StateItem*> by_key;
  for (const StateItem& item : stored) by_key.emplace(KeyOf(item), &item);
  ItemPlan plan;
  std::set<Key> taken;
  std::set<std::string> of_this_rank;  // names
  for (const StateItem& item : target) {
    if (item.variable == nullptr) continue;
    if (item.rank.has_value()) of_this_rank.insert(item.name);
    plan.items.push_back(item);
    const auto found = by_key.find(KeyOf(item));
    if (found == by_key.end()) {
      plan.missing.push_back(item);
      continue;
    }
    taken.insert(found->first);
    const std::vector<std::byte>& bytes = found->second->value;
    const Status fits = item.variable->Check(bytes);
    if (!fits.ok()) plan.faults.push_back(ItemText(item) + ": " + fits.message());
    plan.items.back().value = bytes;
    plan.fills.push_back(plan.items.size() - 1);
  }
  for (StateItem& item : stored) {
    const bool is_of_another = item.rank.has_value() && of_this_rank.contains(item.name);
    if (!is_of_another && !taken.contains(KeyOf(item))) plan.items.push_back(std::move(item));
  }
  return plan;
}

std::vector<StateItem> FillVariables(ItemPlan plan) {
  for (const size_t i : plan.fills) {
    plan.items[i].variable->Set(plan.items[i].value);
    plan.items[i].value.clear();
  }
  return std::move(plan.items);
}

}  // namespace varve::internal
