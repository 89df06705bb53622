// SPDX-License-Identifier: Apache-2.0
#include "python/src/errors.h"

#include <nanobind/nanobind.h>

#include <string>

namespace nb = nanobind;

namespace varve::python {
namespace {

void Raise(const char* code, const std::string& message) {
  const nb::object classes = nb::module_::import_("varve._errors").attr("BY_CODE");
  const nb::object error = classes[code];
  PyErr_SetObject(error.ptr(), nb::str(message.data(), message.size()).ptr());
}

void Translate(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const StatusError& error) {
    const std::string code(StatusCodeName(error.status().code()));
    Raise(code.c_str(), error.status().message());
  } catch (const ForkedError& error) {
    Raise("forked", error.what());
  }
}

}  // namespace

void RegisterErrors() { nb::register_exception_translator(Translate); }

}  // namespace varve::python
