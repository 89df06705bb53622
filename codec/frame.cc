// SPDX-License-Identifier: Apache-2.0
#include "codec/frame.h"

#include <cstring>

namespace varve::internal {

std::string_view PredictorName(Predictor predictor) {
  switch (predictor) {
    case Predictor::kRaw:
      return "raw";
    case Predictor::kKeyframe:
      return "keyframe";
    case Predictor::kDelta:
      return "delta";
    case Predictor::kScaledDelta:
      return "scaled delta";
    case Predictor::kReplay:
      return "replay";
  }
  return "?";
}

bool IsConstant(std::span<const std::byte> raw, size_t element_bytes) {
  // If the bytes equal themselves moved by one element, all elements are equal.
  return raw.size() <= element_bytes ||
         std::memcmp(raw.data(), raw.data() + element_bytes, raw.size() - element_bytes) == 0;
}

}  // namespace varve::internal
