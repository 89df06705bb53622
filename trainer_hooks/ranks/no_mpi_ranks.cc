// SPDX-License-Identifier: Apache-2.0
// Replaces mpi_ranks.cc where MPI is not installed.
#include "varve/mpi_ranks.h"

namespace varve {
Result<std::unique_ptr<RankGroup>> MpiRanks(const MpiRanksOptions& /*options*/) {
  return Status::Unavailable("this varve was built without MPI (VARVE_WITH_MPI)");
}

}  // namespace varve
