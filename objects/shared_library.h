// SPDX-License-Identifier: Apache-2.0
//
// A shared library that is loaded when it is needed. Programs start faster without the libraries of
// object stores, most never need them, and a machine need not have them.
#pragma once

#include <string>

#include "varve/result.h"

namespace varve::internal {

// It stays loaded as long as the process lives. Thread rule: any thread.
class SharedLibrary {
 public:
  // `file` is a name that the loader looks for, or a path. `package` is Debian's name of what has
  // the file. kUnavailable: the file is not there, or cannot be loaded.
  static Result<SharedLibrary> Load(const std::string& file, const std::string& package);

  // Sets `function` to the function of that name. kUnavailable: there is none.
  template <typename Function>
  Status Find(const char* name, Function** function) const {
    VARVE_ASSIGN_OR_RETURN(void* const found, Find(name));
    *function = reinterpret_cast<Function*>(found);
    return Status::Ok();
  }

 private:
  SharedLibrary(void* handle, std::string package)
      : handle_(handle), package_(std::move(package)) {}
  Result<void*> Find(const char* name) const;

  void* handle_;
  std::string package_;
};

}  // namespace varve::internal
