// SPDX-License-Identifier: Apache-2.0
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "python/src/bindings.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

// NumPy cannot say bfloat16 through DLPack. This says it for memory of `owner`.
nb::ndarray<nb::array_api> ExportBfloat16(uintptr_t address, const std::vector<size_t>& shape,
                                          nb::handle owner) {
  const nb::dlpack::dtype bfloat16{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
  return nb::ndarray<nb::array_api>(reinterpret_cast<void*>(address), shape.size(), shape.data(),
                                    owner, nullptr, bfloat16);
}

}  // namespace

void BindExport(nb::module_& module) {
  module.def("export_bfloat16", ExportBfloat16, nb::arg("address"), nb::arg("shape"),
             nb::arg("owner"),
             nb::sig("def export_bfloat16(address: int, shape: collections.abc.Sequence[int], "
                     "owner: object) -> typing.Any"),
             "An array with __dlpack__ over dense bfloat16 memory of `owner`.");
}

}  // namespace varve::python
