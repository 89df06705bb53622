// SPDX-License-Identifier: Apache-2.0
#include "objects/rados/rados_objects.h"
#include "varve/rados.h"

namespace varve {

void UseRados() { internal::AddEngine("rados", internal::OpenRadosObjects); }

}  // namespace varve
