// SPDX-License-Identifier: Apache-2.0
// Replaces nccl_ranks.cc where NCCL is not installed.
#include "varve/nccl_ranks.h"

namespace varve {
Result<std::unique_ptr<RankGroup>> NcclRanks(RankGroup* /*host*/, const NcclOptions& /*options*/) {
  return Status::Unavailable("this varve was built without NCCL (VARVE_WITH_NCCL)");
}

}  // namespace varve
