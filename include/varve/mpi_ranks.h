// SPDX-License-Identifier: Apache-2.0
//
// A RankGroup over MPI. It is in a library of its own, varve::mpi, so that only who asks for it is
// linked with MPI: in CMake, target_link_libraries(trainer varve::varve varve::mpi).
//
//   VARVE_ASSIGN_OR_RETURN(const auto group, varve::MpiRanks());   // under mpirun
//
// A rank that leaves is noticed by the timeout only. When a process dies, mpirun ends the whole
// job.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "varve/rank_group.h"

namespace varve {

struct MpiRanksOptions {
  // What MPI_Comm_c2f makes of the communicator of the ranks. Unset: MPI_COMM_WORLD. The group
  // speaks on a duplicate of it.
  std::optional<int> communicator;
  std::chrono::milliseconds timeout = kDefaultRankTimeout;
};

// Collective. MpiRanks initialises MPI where nobody has, and then finalizes it at the exit of the
// process. After a group has failed the process exits without that, and mpirun ends the job. When
// several threads call groups at once, or call one while the trainer calls MPI, MPI must be
// initialised with MPI_THREAD_MULTIPLE. kUnavailable: varve was built without MPI, or the message
// says what MPI says.
Result<std::unique_ptr<RankGroup>> MpiRanks(const MpiRanksOptions& options = {});

}  // namespace varve
