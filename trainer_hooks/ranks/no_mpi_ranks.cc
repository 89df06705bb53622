// SPDX-License-Identifier: Apache-2.0
//
// Instead of mpi_ranks.cc where there is no MPI to build with.
#include "varve/mpi_ranks.h"

namespace varve {

Result<std::unique_ptr<RankGroup>> MpiRanks(const MpiRanksOptions& /*options*/) {
  return Status::Unavailable("this varve was built without MPI (VARVE_WITH_MPI)");
}

}  // namespace varve
