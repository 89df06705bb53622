// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "python/src/bindings.h"
#include "python/src/callbacks.h"
#include "python/src/devices.h"
#include "python/src/errors.h"
#include "varve/version.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ part of varve. Private: use the package varve.";
  module.attr("VERSION") = VARVE_VERSION_STRING;
  module.def("cuda_version", &varve::python::CudaVersion,
             "The CUDA for which the module was built, such as \"13.0\". \"\": without CUDA.");
  varve::python::RegisterErrors();
  varve::python::BindCallbacks(module);
  varve::python::BindRecords(module);
  varve::python::BindProgress(module);
  varve::python::BindWriter(module);
  varve::python::BindReader(module);
  varve::python::BindStore(module);
  varve::python::BindExport(module);
  varve::python::BindRemote(module);
  varve::python::BindCheckpointer(module);
  varve::python::BindGroup(module);
  varve::python::BindStage(module);
  varve::python::BindForeign(module);
  varve::python::BindTorchMemory(module);
  varve::python::BindMasters(module);
}
