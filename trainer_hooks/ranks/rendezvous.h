// SPDX-License-Identifier: Apache-2.0
//
// Forms a group of processes. Each process connects to rank 0, which tells all where the others
// listen. Then each connects to the ranks below it, and the ranks above it connect to it.
//
// On every connection the side that opened it first sends a hello (64 bytes: magic, digest of the
// job, rank, size). The answer is a verdict (64 bytes: magic, verdict, size). A process that sends
// anything else, or nothing, is a stranger. It is turned away, and can neither delay the group nor
// make it use memory.
//
// Thread rule: one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "trainer_hooks/ranks/socket.h"
#include "varve/rank_group.h"

namespace varve::internal {

// A rank of a group that is being formed.
struct Seat {
  std::string job;  // also says which group of the job
  int rank = 0;
  std::vector<int> names;  // of all ranks, for messages
  int size() const { return static_cast<int>(names.size()); }
};

// By rank. The rank's own entry stays invalid.
using Connections = std::vector<Socket>;

struct Mesh {
  Connections connections;
  std::vector<std::string> hosts;  // of the ranks, as the others reach them
};

// Does all of it, with the address of rank 0.
Result<Mesh> Meet(const Seat& seat, const Endpoint& rank_0, Deadline deadline);

// Does only the second half. `listener` listens at endpoints[rank]. Existing connections stay.
Status ConnectAll(const Seat& seat, const Socket& listener, const std::vector<Endpoint>& endpoints,
                  Deadline deadline, Connections* connections);

}  // namespace varve::internal
