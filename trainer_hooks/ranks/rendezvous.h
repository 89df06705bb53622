// SPDX-License-Identifier: Apache-2.0
//
// How processes become a group: each connects to rank 0, which tells all where the others listen;
// then each connects to those below it and is found by those above it.
//
// Every connection begins with a hello of whoever opened it (64 bytes: magic, digest of the job,
// rank, size) and a verdict (64 bytes: magic, verdict, size). Who sends anything else, or nothing,
// is a stranger: it is turned away, and cannot hold up the group, nor make it take memory.
//
// Thread rule: one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "trainer_hooks/ranks/socket.h"
#include "varve/rank_group.h"

namespace varve {

// A rank of a group that is being formed.
struct Seat {
  std::string job;  // also says which group of the job
  int rank = 0;
  std::vector<int> names;  // of all ranks, for messages
  int size() const { return static_cast<int>(names.size()); }
};

// By rank; that of the rank itself stays invalid.
using Connections = std::vector<Socket>;

struct Mesh {
  Connections connections;
  std::vector<std::string> hosts;  // of the ranks, as the others reach them
};

// The whole of it, by the address of rank 0.
Result<Mesh> Meet(const Seat& seat, const Endpoint& rank_0, Deadline deadline);

// Only the second half: `listener` listens at endpoints[rank]. Connections that are there already
// stay.
Status ConnectAll(const Seat& seat, const Socket& listener, const std::vector<Endpoint>& endpoints,
                  Deadline deadline, Connections* connections);

}  // namespace varve
