// SPDX-License-Identifier: Apache-2.0
//
// What a check says of the steps of a damaged store. Stateless.
#pragma once

#include "store/db/store_impl.h"

namespace varve::internal {

// Adds an error, and an entry of `damaged_steps`, for each step that cannot be read whole. Unless
// all data is to be read, a chunk that lies in a file counts as read. Errors: kAborted, and a lack
// of memory, threads or descriptors.
Status NameDamagedSteps(const StoreImpl& store, const CheckOptions& options, CheckReport* report);

}  // namespace varve::internal
