// SPDX-License-Identifier: Apache-2.0
#include "codec/plane_kernel.h"

namespace varve {

void SplitPlanes(const uint8_t* elements, size_t num_elements, std::span<uint8_t* const> planes) {
  const size_t width = planes.size();
  for (size_t p = 0; p < width; ++p) {
    for (size_t i = 0; i < num_elements; ++i) planes[p][i] = elements[i * width + p];
  }
}

void JoinPlanes(std::span<const uint8_t* const> planes, size_t num_elements, uint8_t* elements) {
  const size_t width = planes.size();
  for (size_t p = 0; p < width; ++p) {
    for (size_t i = 0; i < num_elements; ++i) elements[i * width + p] = planes[p][i];
  }
}

}  // namespace varve
