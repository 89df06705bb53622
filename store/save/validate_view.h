// SPDX-License-Identifier: Apache-2.0
//
// Checks what may be put into a save. It is stateless.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "varve/status.h"
#include "varve/tensor.h"

namespace varve::internal {

// kInvalidArgument names the tensor and the rule that it breaks. `has_data` is true if the bytes
// lie at view.data.
Status ValidateView(const TensorView& view, bool has_data);

// kInvalidArgument: a bad name, or a value above 64 MiB.
Status ValidateItem(std::string_view name, std::span<const std::byte> value);

}  // namespace varve::internal
