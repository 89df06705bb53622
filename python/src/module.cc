// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "varve/version.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ part of varve. Private: use the package varve.";
  module.attr("VERSION") = VARVE_VERSION_STRING;
  varve::internal::python::RegisterErrors();
  varve::internal::python::BindRecords(module);
  varve::internal::python::BindProgress(module);
  varve::internal::python::BindWriter(module);
  varve::internal::python::BindReader(module);
  varve::internal::python::BindStore(module);
  varve::internal::python::BindExport(module);
}
