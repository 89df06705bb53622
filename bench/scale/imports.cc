// SPDX-License-Identifier: Apache-2.0
//
// Imports a safetensors file of many tensors of one element, and one whose tensors have none, so
// that all of it is the header.
#include <fstream>

#include "bench/scale/axes.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

constexpr Growth kLinear{1, 1};

void WriteFile(const std::filesystem::path& path, uint64_t num_tensors, uint64_t elements) {
  std::string header = "{";
  for (uint64_t i = 0; i < num_tensors; ++i) {
    const uint64_t begin = i * elements * 4;
    header += (i > 0 ? ",\"layers." : "\"layers.") + std::to_string(i) +
              ".weight\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(elements) +
              "],\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(begin + elements * 4) + "]}";
  }
  header += "}";
  std::ofstream file(path, std::ios::binary);
  for (uint64_t size = header.size(), i = 0; i < 8; ++i, size >>= 8) {
    file.put(static_cast<char>(size & 0xff));
  }
  file << header << std::string(num_tensors * elements * 4, '\1');
  if (!file.flush()) Fail("cannot write " + path.string());
}

void MeasureFile(const Plan& plan, const char* what, uint64_t num_tensors, uint64_t elements,
                 Workplace* place, Curves* curves) {
  const auto store = place->NewPath("imports"), file = place->NewPath("file.safetensors");
  WriteFile(file, num_tensors, elements);
  RunProgram({plan.varve, "--store", store, "init"});
  curves->Add(what, kLinear, static_cast<double>(num_tensors),
              RunProgram({plan.varve, "--store", store, "import", file, "--step", "1"}));
  place->Remove(store);
  place->Remove(file);
}

}  // namespace

void MeasureImports(const Plan& plan, Curves* curves) {
  Workplace place(plan.folder);
  for (const uint64_t n : plan.sizes) {
    MeasureFile(plan, "varve import, one element each", n, 1, &place, curves);
    MeasureFile(plan, "varve import, empty tensors", n, 0, &place, curves);
  }
}

}  // namespace varve::internal::bench
