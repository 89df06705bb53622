// SPDX-License-Identifier: Apache-2.0
//
// Links varve::mpi and varve::nccl, to show that they bring everything they need. It is not run,
// because mpirun may be missing.
#include <varve/mpi_ranks.h>
#include <varve/nccl_ranks.h>

int main() {
  const auto ranks = varve::MpiRanks();
  return ranks.ok() && varve::NcclRanks(ranks->get()).ok() ? 0 : 1;
}
