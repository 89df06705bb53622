// SPDX-License-Identifier: Apache-2.0
#include "objects/s3/libcurl.h"

#include "objects/shared_library.h"

namespace varve::internal::s3 {

Result<Libcurl> LoadLibcurl() {
  VARVE_ASSIGN_OR_RETURN(const SharedLibrary library,
                         SharedLibrary::Load("libcurl.so.4", "libcurl4"));
  Libcurl curl;
#define VARVE_FIND(name) VARVE_RETURN_IF_ERROR(library.Find("curl_" #name, &curl.name));
  VARVE_LIBCURL_FUNCTIONS(VARVE_FIND)
#undef VARVE_FIND
  return curl;
}

}  // namespace varve::internal::s3
