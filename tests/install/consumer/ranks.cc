// SPDX-License-Identifier: Apache-2.0
//
// That varve::mpi and varve::nccl bring all that they are linked with. Not run: it may be without
// mpirun.
#include <varve/mpi_ranks.h>
#include <varve/nccl_ranks.h>

int main() {
  const auto ranks = varve::MpiRanks();
  return ranks.ok() && varve::NcclRanks(ranks->get()).ok() ? 0 : 1;
}
