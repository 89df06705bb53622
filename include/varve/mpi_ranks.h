// SPDX-License-Identifier: Apache-2.0
//
// Makes a RankGroup over MPI. It is in a library of its own, varve::mpi, so that other programs are
// not linked with MPI. In CMake: target_link_libraries(trainer varve::varve varve::mpi).
//
//   VARVE_ASSIGN_OR_RETURN(const auto group, varve::MpiRanks());   // under mpirun
//
// When a rank has left the group, calls of the other ranks fail after the timeout. When a process
// dies, mpirun ends the whole job.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "varve/rank_group.h"

namespace varve {

struct MpiRanksOptions {
  // The communicator of the ranks, as MPI_Comm_c2f returns it. Unset = MPI_COMM_WORLD. The group
  // uses a duplicate of it.
  std::optional<int> communicator;
  std::chrono::milliseconds timeout = kDefaultRankTimeout;
};

// Makes the group. The call is collective. If MPI is not initialised, MpiRanks initialises it, and
// finalizes it when the process exits. After a group has failed, varve does not finalize MPI, so
// mpirun ends the whole job when this process exits. MPI must be initialised with
// MPI_THREAD_MULTIPLE if several threads call groups at the same time, or if a thread calls a group
// while the trainer calls MPI. kUnavailable: varve was built without MPI, or MPI failed. The
// message has the text of MPI.
Result<std::unique_ptr<RankGroup>> MpiRanks(const MpiRanksOptions& options = {});

}  // namespace varve
