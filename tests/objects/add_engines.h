// SPDX-License-Identifier: Apache-2.0
//
// Adds the optional engines that this build has.
#pragma once

#ifdef VARVE_HAS_RADOS
#include "varve/rados.h"
#endif
#ifdef VARVE_HAS_S3
#include "varve/s3.h"
#endif

namespace varve::internal {

inline void AddTestedEngines() {
#ifdef VARVE_HAS_RADOS
  UseRados();
#endif
#ifdef VARVE_HAS_S3
  UseS3();
#endif
}

}  // namespace varve::internal
