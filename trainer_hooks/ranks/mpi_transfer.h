// SPDX-License-Identifier: Apache-2.0
//
// One exchange over MPI: a message to each rank and one from each, by calls that do not block. MPI
// reads and writes only what is in a Transfer, never the caller's memory, because what is on its
// way when an exchange fails cannot be called back: the Transfer must then live on.
//
// Thread rule: one thread at a time.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trainer_hooks/ranks/rank_group_base.h"

namespace varve {

// kUnavailable with what MPI says, unless it is MPI_SUCCESS.
Status FromMpi(const char* what, int code);

class MpiTransfer {
 public:
  static constexpr int kTag = 1;

  // `to_each` is read until done().
  MpiTransfer(MPI_Comm comm, int rank, const Call& call, std::span<const MessageView> to_each);

  Status Begin();
  // Moves what can be moved; false: nothing could.
  Result<bool> Advance();

  // Ranks from which not all has come, or to which not all has gone.
  std::vector<int> Waiting() const;
  // The call that a rank is in; nullptr: it has not come.
  const Call* CallOf(int rank) const;
  Message TakeMessage(int rank) { return std::move(links_[rank].message); }

 private:
  // What goes before each message.
  struct Head {
    Call call;
    uint64_t bytes = 0;
  };
  struct Link {
    Head head_out, head_in;
    bool has_head = false;         // head_in is there
    MessageView rest;              // of the message to the rank, behind `piece`
    std::vector<std::byte> piece;  // on its way
    bool is_sending = false;
    Message message;  // what has come from the rank, and room for the next piece
    bool is_receiving = false;
  };

  int size() const { return static_cast<int>(links_.size()); }
  Status Send(int to, std::span<const std::byte> bytes);
  Status Receive(int from, std::span<std::byte> into);
  Status SendPieces();
  Status OnReceived(int from);

  const MPI_Comm comm_;
  const Call call_;
  std::vector<int> others_;            // from the next rank on, so that not all begin with rank 0
  std::vector<Link> links_;            // by rank
  std::vector<MPI_Request> requests_;  // what comes from each rank, then what goes to each
};

}  // namespace varve
