// SPDX-License-Identifier: Apache-2.0
//
// Tensors that a rank holds, for plans. A HeldTensor borrows its names and its layout. Here both
// live to the end of the program. One thread at a time.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "trainer_hooks/group/held_tensor.h"

namespace varve::internal::testing {

inline std::string_view Kept(std::string text) {
  static std::set<std::string> texts;
  return *texts.insert(std::move(text)).first;
}

// Gives a tensor this layout.
inline internal::HeldTensor Holding(const ShardLayout& layout, internal::HeldTensor tensor) {
  tensor.layout = Kept(LayoutBytes(layout));
  return tensor;
}

}  // namespace varve::internal::testing
