// SPDX-License-Identifier: Apache-2.0
//
// Lists of messages in which each is named once. Stateless.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace varve::internal {

// Appends those texts that are not in the list yet.
inline void AddNew(const std::vector<std::string>& texts, std::vector<std::string>* all) {
  for (const std::string& text : texts) {
    if (std::find(all->begin(), all->end(), text) == all->end()) all->push_back(text);
  }
}

}  // namespace varve::internal
