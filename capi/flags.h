// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "capi/handles.h"
#include "varve/c.h"
#include "varve/flags.h"

namespace varve::internal::capi {

struct FlagsObject : Object {
  static constexpr const char* kKind = "flags";
  const char* kind() const override { return kKind; }
  CheckpointFlags flags;
};

}  // namespace varve::internal::capi
