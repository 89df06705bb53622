// SPDX-License-Identifier: Apache-2.0
//
// Both ends of the beginning of a connection between two ranks: introducing oneself, and letting in
// only who belongs to the group. See rendezvous.h.
//
// Thread rule: one thread at a time.
#pragma once

#include "trainer_hooks/ranks/rendezvous.h"

namespace varve {

// Connects and is let in. Tries again until the deadline, because the other may be late and its
// port in other hands meanwhile; the error says what went wrong last.
Result<Socket> Introduce(const Seat& seat, const Endpoint& to, Deadline deadline);

// Lets in every rank above seat.rank that has no connection yet. kUnavailable names those that did
// not come, and who was turned away last of those that know the job.
Status LetIn(const Seat& seat, const Socket& listener, Deadline deadline, Connections* connections);

}  // namespace varve
