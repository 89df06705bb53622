// SPDX-License-Identifier: Apache-2.0
//
// Where the engine of S3 finds credentials, region and endpoint: first the environment, then the
// files ~/.aws/credentials and ~/.aws/config, as the tools of AWS do. Nothing here is ever printed.
// Thread rule: any thread, while nobody changes the environment.
#pragma once

#include <string>

#include "objects/s3/signature.h"
#include "varve/result.h"

namespace varve::internal::s3 {

struct Settings {
  Credentials credentials;
  std::string region;    // empty = not set
  std::string endpoint;  // empty = not set
};

// AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) win over the profile
// AWS_PROFILE, by default "default". kFailedPrecondition: there are no credentials. The message
// says where they were looked for.
Result<Settings> FindSettings();

}  // namespace varve::internal::s3
