// SPDX-License-Identifier: Apache-2.0
//
// A repair that may take what is lost from a snapshot in an object store.
#include "store/ops/repair.h"
#include "store/remote/open_remote.h"
#include "varve/repair.h"

namespace varve {
using namespace internal;

Result<RepairReport> RepairStore(const std::filesystem::path& path, const RepairOptions& options) {
  return RepairWith(path, options, [](const std::string& url) -> Result<SalvageSource> {
    VARVE_ASSIGN_OR_RETURN(OpenedSnapshot opened, OpenSnapshot(url, {}));
    SalvageSource source;
    source.store = std::move(opened.store);
    source.health = std::move(opened.health);
    return source;
  });
}

}  // namespace varve
