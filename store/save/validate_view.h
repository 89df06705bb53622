// SPDX-License-Identifier: Apache-2.0
//
// What may be put into a save. Stateless.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "varve/status.h"
#include "varve/tensor.h"

namespace varve::internal {

// kInvalidArgument names the tensor and which rule it breaks. `has_data`: its bytes lie at
// view.data.
Status ValidateView(const TensorView& view, bool has_data);

// kInvalidArgument: a bad name, or a value above 64 MiB.
Status ValidateItem(std::string_view name, std::span<const std::byte> value);

}  // namespace varve::internal
