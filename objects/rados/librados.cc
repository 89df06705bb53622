// SPDX-License-Identifier: Apache-2.0
#include "objects/rados/librados.h"

#include "objects/shared_library.h"

namespace varve::internal {

Result<Librados> LoadLibrados() {
  VARVE_ASSIGN_OR_RETURN(const SharedLibrary library,
                         SharedLibrary::Load("librados.so.2", "librados2"));
  Librados rados;
#define VARVE_FIND(name) VARVE_RETURN_IF_ERROR(library.Find("rados_" #name, &rados.name));
  VARVE_LIBRADOS_FUNCTIONS(VARVE_FIND)
#undef VARVE_FIND
  return rados;
}

}  // namespace varve::internal
