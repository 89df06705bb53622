// SPDX-License-Identifier: Apache-2.0
//
// Objects in a bucket of S3, or of a server that speaks its protocol:
// `s3://BUCKET/PREFIX?endpoint=URL&region=REGION`. A blob is the object PREFIX/blobs/NAME, a record
// PREFIX/records/NAME. Thread rule: as Objects.
#pragma once

#include <memory>

#include "objects/url.h"

namespace varve::internal {

// Sends nothing. The first creation of a record finds out whether the server creates only what is
// absent, and is refused if it does not.
Result<std::unique_ptr<Objects>> OpenS3Objects(const ObjectsUrl& url,
                                               const ObjectsOptions& options);

}  // namespace varve::internal
