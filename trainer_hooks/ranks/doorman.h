// SPDX-License-Identifier: Apache-2.0
//
// Starts a connection between two ranks. One end introduces itself. The other lets in only members
// of the group. See rendezvous.h.
//
// Thread rule: one thread at a time.
#pragma once

#include "trainer_hooks/ranks/rendezvous.h"

namespace varve::internal {

// Connects and is let in. It tries again until the deadline, because the other rank may be late and
// another program may have its port meanwhile. The error is that of the last try.
Result<Socket> Introduce(const Seat& seat, const Endpoint& to, Deadline deadline);

// Lets in every rank above seat.rank that has no connection yet. kUnavailable names the ranks that
// did not come, and the last one that knew the job but was turned away.
Status LetIn(const Seat& seat, const Socket& listener, Deadline deadline, Connections* connections);

}  // namespace varve::internal
