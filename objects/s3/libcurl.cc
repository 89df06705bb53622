// SPDX-License-Identifier: Apache-2.0
#include "objects/s3/libcurl.h"

#include <string>

#include "objects/shared_library.h"

namespace varve::internal::s3 {

// 7.85, the first with CURLOPT_PROTOCOLS_STR.
constexpr unsigned kOldest = 0x075500;

Result<Libcurl> LoadLibcurl() {
  VARVE_ASSIGN_OR_RETURN(const SharedLibrary library,
                         SharedLibrary::Load("libcurl.so.4", "libcurl4"));
  Libcurl curl;
#define VARVE_FIND(name) VARVE_RETURN_IF_ERROR(library.Find("curl_" #name, &curl.name));
  VARVE_LIBCURL_FUNCTIONS(VARVE_FIND)
#undef VARVE_FIND
  const curl_version_info_data* const found = curl.version_info(CURLVERSION_NOW);
  if (found->version_num < kOldest) {
    return Status::Unavailable("s3:// needs libcurl 7.85 or newer, found " +
                               std::string(found->version));
  }
  return curl;
}

}  // namespace varve::internal::s3
