// SPDX-License-Identifier: Apache-2.0
#include "cli/view/chosen_tensors.h"

#include <algorithm>
#include <iterator>

namespace varve::internal::cli {

Result<std::vector<StoredShard>> ChosenTensors::FindStored(std::string_view name) const {
  if (!name.empty()) return all_.FindStored(name);
  std::vector<StoredShard> found;
  for (const std::string& chosen : names_) {
    auto shards = all_.FindStored(chosen);
    if (shards.status().code() == StatusCode::kNotFound) continue;
    if (!shards.ok()) return shards.status();
    std::ranges::move(*shards, std::back_inserter(found));
  }
  return found;
}

Result<std::vector<StoredShard>> ChosenTensors::FindByPrefix(std::string_view prefix) const {
  VARVE_ASSIGN_OR_RETURN(std::vector<StoredShard> found, FindStored());
  std::erase_if(found, [&](const StoredShard& shard) { return !shard.name.starts_with(prefix); });
  return found;
}

}  // namespace varve::internal::cli
