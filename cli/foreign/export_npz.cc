// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "cli/foreign/export_plan.h"
#include "cli/foreign/zip_parts.h"
#include "cli/formats/npy.h"
#include "cli/print.h"

namespace varve::internal::cli {

Result<ExportPlan> PlanNpz(const ExportRequest& request) {
  VARVE_RETURN_IF_ERROR(RefuseShards(request.tensors, "a .npz file"));
  ZipParts zip;
  std::vector<std::string> as_bits;
  for (const TensorInfo& tensor : request.tensors) {
    const formats::NpyType type = formats::NpyTypeOf(tensor.dtype, tensor.shape);
    if (!type.exact) as_bits.push_back(tensor.name);
    zip.AddTensor(tensor.name + ".npy", formats::BuildNpyHeader(type), tensor);
  }
  ExportPlan plan;
  plan.files.push_back({.path = IsFolder(request.out) ? request.out / "model.npz" : request.out,
                        .parts = zip.Finish()});
  if (!as_bits.empty()) {
    constexpr size_t kShown = 5;
    const size_t count = as_bits.size();
    if (count > kShown) as_bits.resize(kShown);
    plan.notes.push_back("NumPy lacks the type of " + Count(count, "tensor") +
                         ", which are written as the bits of their elements: " +
                         Join(as_bits, ", ") + (count > kShown ? ", ..." : ""));
  }
  VARVE_RETURN_IF_ERROR(NoteItems(request.reader, "a .npz file", "", &plan));
  return plan;
}

}  // namespace varve::internal::cli
