// SPDX-License-Identifier: Apache-2.0
//
// Each call sends one message in each direction of a connection, cut into pieces. Between two
// pieces a rank can say that it gives up, even when the message is long.
//
//   connection: piece piece piece ...        piece: head (32 bytes), up to kPieceBytes of a message
//
//   offset  bytes  of a head
//        0      4  kPieceMagic
//        4      4  kind of the call, or kGoodbye
//        8      4  argument of the call, or the code of the status
//       12      4  bytes of this piece
//       16      8  number of the call
//       24      8  bytes of the message
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "trainer_hooks/ranks/rank_group_base.h"
#include "trainer_hooks/ranks/socket.h"

namespace varve::internal {

inline constexpr uint32_t kPieceMagic = 0x31505256;  // "VRP1"
inline constexpr uint32_t kPieceBytes = 256 * 1024;
inline constexpr uint32_t kGoodbyeBytes = 4096;  // the longest reason
inline constexpr auto kGoodbye = static_cast<CallKind>(0xffffffff);
inline constexpr size_t kHeadBytes = 32;

struct PieceHead {
  Call call;
  uint32_t piece_bytes = 0;
  uint64_t message_bytes = 0;
};
using HeadBytes = std::array<std::byte, kHeadBytes>;
HeadBytes Encode(const PieceHead& head);
// Returns nullopt when this is not a head, or its sizes contradict each other.
std::optional<PieceHead> DecodeHead(const HeadBytes& bytes);

class MessageWriter {
 public:
  // The caller keeps the message until done(). Precondition: done().
  void Begin(const Call& call, MessageView message);
  bool done() const { return head_sent_ == kHeadBytes && piece_.empty() && rest_.empty(); }
  bool broken() const { return broken_; }
  // Sends as much as is possible without waiting. Returns the number of bytes.
  size_t Advance(const Socket& socket);
  // Gives up the rest of the message, except for the piece that has started.
  void CutShort();

 private:
  void BeginPiece();

  Call call_;
  uint64_t message_bytes_ = 0;
  HeadBytes head_;
  size_t head_sent_ = kHeadBytes;
  MessageView piece_;  // what is left of this piece
  MessageView rest_;   // the rest behind it
  bool broken_ = false;
};

// Takes memory as bytes come, never because a head promises many.
class MessageReader {
 public:
  enum class State {
    kReading,
    kDone,
    kOtherCall,  // the other side makes another call: other_call()
    kGaveUp,     // it said goodbye: goodbye()
    kMalformed,  // it speaks something else
    kGone,       // it closed the connection, in the middle of the message
  };

  void Begin(const Call& call);
  State state() const { return state_; }
  // This is true also when the message is done, because the other side may say goodbye. It reads no
  // further than the head of the next message, so the rest of that waits in the socket.
  bool wants_more() const { return !closed_ && !is_ahead_ && state_ <= State::kDone; }
  size_t Advance(const Socket& socket);

  Message TakeMessage() { return std::move(message_); }
  const Call& other_call() const { return head_.call; }
  const Status& goodbye() const { return goodbye_; }

 private:
  size_t Receive(const Socket& socket, std::span<std::byte> into);
  void OnHead();
  void BeginGoodbye();
  void BeginPiece();
  void EndPiece();
  bool GoesOn(const PieceHead& head) const;

  State state_ = State::kDone;
  bool closed_ = false;
  bool is_ahead_ = false;  // head_ is of the next call
  Call call_;
  HeadBytes head_bytes_;
  size_t head_received_ = 0;
  PieceHead head_;
  Message message_;        // the bytes so far, and room for the rest of the piece
  size_t piece_left_ = 0;  // of the piece that head_ is of
  Message reason_;         // of a goodbye
  Status goodbye_;
};

}  // namespace varve::internal
