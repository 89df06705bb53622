// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "python/src/bindings.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace varve::python {

Compression ParseCompression(std::string_view name) {
  if (name == "auto") return Compression::kAuto;
  if (name == "none") return Compression::kNone;
  if (name == "fast") return Compression::kFast;
  if (name == "max") return Compression::kMax;
  throw StatusError(Status::InvalidArgument("compression \"" + std::string(name) +
                                            "\" is not auto, none, fast or max"));
}

OnExisting ParseOnExisting(std::string_view name) {
  if (name == "error") return OnExisting::kError;
  if (name == "replace") return OnExisting::kReplace;
  if (name == "fork") return OnExisting::kFork;
  throw StatusError(Status::InvalidArgument("on_existing \"" + std::string(name) +
                                            "\" is not error, replace or fork"));
}

Progress MakeProgress(const nb::object& callback) {
  if (callback.is_none()) return {};
  // The last copy of the function may die without the GIL.
  const std::shared_ptr<nb::object> shared(new nb::object(callback), [](nb::object* object) {
    const nb::gil_scoped_acquire acquire;
    delete object;
  });
  return [shared](uint64_t done_bytes, uint64_t total_bytes) {
    const nb::gil_scoped_acquire acquire;
    try {
      (*shared)(done_bytes, total_bytes);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(*shared);
    }
  };
}

}  // namespace varve::python
