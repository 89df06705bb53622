// SPDX-License-Identifier: Apache-2.0
#include "objects/shared_library.h"

#include <dlfcn.h>

namespace varve::internal {

namespace {

// Says why the last call of this thread failed, and what to install.
Status LoaderError(const std::string& what) {
  const char* const reason = ::dlerror();
  return Status::Unavailable("a library cannot be used: " +
                             std::string(reason == nullptr ? "for no known reason" : reason) +
                             ". Install " + what);
}

}  // namespace

Result<SharedLibrary> SharedLibrary::Load(const std::string& file, const std::string& package) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return LoaderError("it (Debian: " + package + ")");
  return SharedLibrary(handle, package);
}

Result<void*> SharedLibrary::Find(const char* name) const {
  void* const found = ::dlsym(handle_, name);
  if (found == nullptr) return LoaderError("a newer one (Debian: " + package_ + ")");
  return found;
}

}  // namespace varve::internal
