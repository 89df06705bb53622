// SPDX-License-Identifier: Apache-2.0
//
// Instead of nccl_ranks.cc where there is no NCCL to build with.
#include "varve/nccl_ranks.h"

namespace varve {

Result<std::unique_ptr<RankGroup>> NcclRanks(RankGroup* /*host*/, const NcclOptions& /*options*/) {
  return Status::Unavailable("this varve was built without NCCL (VARVE_WITH_NCCL)");
}

}  // namespace varve
