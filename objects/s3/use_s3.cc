// SPDX-License-Identifier: Apache-2.0
#include "objects/s3/s3_objects.h"
#include "varve/s3.h"

namespace varve {

void UseS3() { internal::AddEngine("s3", internal::OpenS3Objects); }

}  // namespace varve
