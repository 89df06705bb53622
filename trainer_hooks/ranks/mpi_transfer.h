// SPDX-License-Identifier: Apache-2.0
//
// One exchange over MPI: a message to each rank and one from each, by calls that do not block. MPI
// reads and writes only memory of the MpiTransfer, never the caller's. Bytes that are on their way
// when an exchange fails cannot be called back, so the MpiTransfer must then live on.
//
// Thread rule: one thread at a time.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trainer_hooks/ranks/rank_group_base.h"

namespace varve::internal {

// Returns ok for MPI_SUCCESS, and otherwise kUnavailable with MPI's text.
Status FromMpi(const char* what, int code);

class MpiTransfer {
 public:
  static constexpr int kTag = 1;

  // `to_each` is read until done().
  MpiTransfer(MPI_Comm comm, int rank, const Call& call, std::span<const MessageView> to_each);

  Status Begin();
  // Moves what can be moved. Returns false when that is nothing.
  Result<bool> Advance();

  // Returns the ranks from which a message has not arrived whole, or to which it has not been sent
  // whole.
  std::vector<int> Waiting() const;
  // Returns the call that a rank is in, or nullptr when it has not come.
  const Call* CallOf(int rank) const;
  Message TakeMessage(int rank) { return std::move(links_[rank].message); }

 private:
  // The header in front of each message.
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
    Message message;  // the bytes from the rank so far, and room for the next piece
    bool is_receiving = false;
  };

  int size() const { return static_cast<int>(links_.size()); }
  Status Send(int to, std::span<const std::byte> bytes);
  Status Receive(int from, std::span<std::byte> into);
  Status SendPieces();
  Status OnReceived(int from);

  const MPI_Comm comm_;
  const Call call_;
  std::vector<int> others_;  // from the next rank on, so that not all ranks start with rank 0
  std::vector<Link> links_;  // by rank
  std::vector<MPI_Request> requests_;  // what comes from each rank, then what goes to each
};

}  // namespace varve::internal
