// SPDX-License-Identifier: Apache-2.0
//
// That varve::mpi brings all that it is linked with. Not run: it may be without mpirun.
#include <varve/mpi_ranks.h>

int main() { return varve::MpiRanks().ok() ? 0 : 1; }
