// SPDX-License-Identifier: Apache-2.0
//
// Stands in for http_server.cc in a build without cpp-httplib.
#include "cli/view/http_server.h"

namespace varve::internal::cli {

Result<std::unique_ptr<HttpServer>> HttpServer::Bind(uint16_t, Answer) {
  return Status::FailedPrecondition(
      "this build of varve has no view: install cpp-httplib (Debian: libcpp-httplib-dev and "
      "libbrotli-dev), configure with -DVARVE_WITH_VIEW=ON, and build varve again");
}

}  // namespace varve::internal::cli
