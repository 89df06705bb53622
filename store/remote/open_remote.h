// SPDX-License-Identifier: Apache-2.0
//
// Opens a snapshot where it lies, for those who must know why it cannot be read.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "store/db/store_impl.h"
#include "varve/remote.h"

namespace varve::internal {

struct OpenedSnapshot {
  std::unique_ptr<StoreImpl> store;
  // Returns the error if the object store did not answer, or if the snapshot was removed. Damage
  // of the snapshot is none. Thread rule: any thread.
  std::function<Status()> health;
};

// Errors as OpenRemote.
Result<OpenedSnapshot> OpenSnapshot(std::string_view url, const RemoteStoreOptions& options);

}  // namespace varve::internal
