// SPDX-License-Identifier: Apache-2.0
//
// Which BF16 tensors of a state dict seem to be the rounded copies of which FP32 tensors. DCP does
// not say it. A save proves such a hint for every chunk, and stores nothing for what it proves.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/torch_memory.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

constexpr uint64_t kSamples = 16;
// A tensor that differs from this only by what is rounded away takes less than the look.
constexpr uint64_t kLeastElements = 1024;

using Samples = std::array<uint16_t, kSamples>;
using Kind = std::pair<std::vector<int64_t>, Samples>;  // shape, and some elements as BF16

uint16_t RoundToBfloat16(uint32_t bits) {
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Elements that lie all over the tensor.
template <typename Element, typename Convert>
Samples Take(const TorchMemory& memory, const Convert& convert) {
  const uint64_t last = memory.num_bytes() / sizeof(Element) - 1;
  Samples samples;
  for (uint64_t i = 0; i < kSamples; ++i) {
    Element element;
    std::memcpy(&element, memory.data + last * i / (kSamples - 1) * sizeof(Element),
                sizeof(Element));
    samples[i] = convert(element);
  }
  return samples;
}

bool AreAllEqual(const Samples& samples) {
  return std::ranges::all_of(samples, [&](uint16_t each) { return each == samples[0]; });
}

// The master of each tensor that seems to have one.
std::map<std::string, std::string> FindMasters(const std::vector<std::string>& names,
                                               const nb::list& tensors) {
  std::map<Kind, std::string> masters;
  std::vector<std::pair<std::string, Kind>> copies;
  for (size_t i = 0; i < std::min(names.size(), nb::len(tensors)); ++i) {
    const std::optional<TorchMemory> memory = FindTorchMemory(tensors[i]);
    if (!memory || !memory->strides.empty()) continue;
    const bool is_copy = memory->dtype == DType::kBF16;
    if (!is_copy && memory->dtype != DType::kF32) continue;
    if (memory->num_bytes() < kLeastElements * (is_copy ? 2 : 4)) continue;
    Kind kind;
    kind.second = is_copy ? Take<uint16_t>(*memory, [](uint16_t element) { return element; })
                          : Take<uint32_t>(*memory, RoundToBfloat16);
    if (AreAllEqual(kind.second)) continue;  // as of zeros, which are stored as one
    kind.first.assign(memory->shape.begin(), memory->shape.end());
    if (is_copy) {
      copies.emplace_back(names[i], std::move(kind));
    } else {
      masters.try_emplace(std::move(kind), names[i]);
    }
  }
  std::map<std::string, std::string> found;
  for (const auto& [name, kind] : copies) {
    if (const auto it = masters.find(kind); it != masters.end()) found.emplace(name, it->second);
  }
  return found;
}

}  // namespace

void BindMasters(nb::module_& module) {
  module.def("find_masters", FindMasters, nb::arg("names"), nb::arg("tensors"),
             nb::sig("def find_masters(names: collections.abc.Sequence[str], tensors: "
                     "list[typing.Any]) -> dict[str, str]"),
             "Which BF16 tensors seem to be rounded copies: their names and those of the FP32 "
             "tensors.");
}

}  // namespace varve::python
