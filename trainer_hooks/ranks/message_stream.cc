// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/ranks/message_stream.h"

#include <algorithm>
#include <utility>

#include "base/coding.h"
#include "base/util.h"

namespace varve::internal {

namespace {

// After this many bytes it is another connection's turn.
constexpr size_t kBytesAtOnce = size_t{4} * kPieceBytes;

}  // namespace

HeadBytes Encode(const PieceHead& head) {
  HeadBytes bytes;
  StoreLittle(kPieceMagic, bytes.data());
  StoreLittle(static_cast<uint32_t>(head.call.kind), bytes.data() + 4);
  StoreLittle(head.call.argument, bytes.data() + 8);
  StoreLittle(head.piece_bytes, bytes.data() + 12);
  StoreLittle(head.call.number, bytes.data() + 16);
  StoreLittle(head.message_bytes, bytes.data() + 24);
  return bytes;
}

std::optional<PieceHead> DecodeHead(const HeadBytes& bytes) {
  if (LoadLittle<uint32_t>(bytes.data()) != kPieceMagic) return std::nullopt;
  PieceHead head;
  head.call.kind = static_cast<CallKind>(LoadLittle<uint32_t>(bytes.data() + 4));
  head.call.argument = LoadLittle<int32_t>(bytes.data() + 8);
  head.piece_bytes = LoadLittle<uint32_t>(bytes.data() + 12);
  head.call.number = LoadLittle<uint64_t>(bytes.data() + 16);
  head.message_bytes = LoadLittle<uint64_t>(bytes.data() + 24);
  const uint32_t longest = head.call.kind == kGoodbye ? kGoodbyeBytes : kPieceBytes;
  if (head.piece_bytes > longest || head.piece_bytes > head.message_bytes) return std::nullopt;
  // Only an empty message has an empty piece. So each piece brings a message nearer to its end.
  if (head.piece_bytes == 0 && head.message_bytes != 0) return std::nullopt;
  return head;
}

void MessageWriter::Begin(const Call& call, MessageView message) {
  call_ = call;
  message_bytes_ = message.size();
  rest_ = message;
  BeginPiece();
}

void MessageWriter::BeginPiece() {
  piece_ = rest_.first(std::min<size_t>(rest_.size(), kPieceBytes));
  rest_ = rest_.subspan(piece_.size());
  head_ = Encode({call_, static_cast<uint32_t>(piece_.size()), message_bytes_});
  head_sent_ = 0;
}

size_t MessageWriter::Advance(const Socket& socket) {
  size_t total = 0;
  while (!done() && !broken_ && total < kBytesAtOnce) {
    if (head_sent_ == kHeadBytes && piece_.empty()) BeginPiece();
    const Moved moved = SendSome(socket, std::span(head_).subspan(head_sent_), piece_);
    broken_ = moved.closed;
    if (moved.bytes == 0) break;
    const size_t of_head = std::min(moved.bytes, kHeadBytes - head_sent_);
    head_sent_ += of_head;
    piece_ = piece_.subspan(moved.bytes - of_head);
    total += moved.bytes;
  }
  return total;
}

void MessageWriter::CutShort() { rest_ = {}; }

void MessageReader::Begin(const Call& call) {
  call_ = call;
  message_.clear();
  state_ = closed_ ? State::kGone : State::kReading;
  if (std::exchange(is_ahead_, false)) OnHead();
}

size_t MessageReader::Advance(const Socket& socket) {
  size_t total = 0;
  while (wants_more() && total < kBytesAtOnce) {
    size_t moved = 0;
    if (head_received_ < kHeadBytes) {
      moved = Receive(socket, std::span(head_bytes_).subspan(head_received_));
      head_received_ += moved;
      if (moved > 0 && head_received_ == kHeadBytes) OnHead();
    } else {
      Message& into = head_.call.kind == kGoodbye ? reason_ : message_;
      moved = Receive(socket, std::span(into).last(piece_left_));
      piece_left_ -= moved;
      if (moved > 0 && piece_left_ == 0) EndPiece();
    }
    if (moved == 0) break;
    total += moved;
  }
  return total;
}

size_t MessageReader::Receive(const Socket& socket, std::span<std::byte> into) {
  const Moved moved = ReceiveSome(socket, into);
  if (moved.closed) {
    closed_ = true;
    if (state_ == State::kReading) state_ = State::kGone;
  }
  return moved.bytes;
}

void MessageReader::OnHead() {
  const auto head = DecodeHead(head_bytes_);
  const bool is_goodbye = head.has_value() && head->call.kind == kGoodbye;
  if (!head.has_value() || (state_ == State::kReading && !is_goodbye && !GoesOn(*head))) {
    state_ = State::kMalformed;
  } else if (state_ == State::kDone && (!is_goodbye || head->call.number > call_.number)) {
    is_ahead_ = true;
  } else {
    head_ = *head;
    is_goodbye ? BeginGoodbye() : BeginPiece();
  }
}

// True when the piece fits behind the bytes that have arrived of the message.
bool MessageReader::GoesOn(const PieceHead& head) const {
  if (message_.empty()) return true;
  return head.message_bytes == head_.message_bytes &&
         head.piece_bytes <= head.message_bytes - message_.size();
}

void MessageReader::BeginGoodbye() {
  piece_left_ = head_.piece_bytes;
  reason_.resize(piece_left_);
  if (piece_left_ == 0) EndPiece();
}

void MessageReader::BeginPiece() {
  if (head_.call != call_) {
    state_ = State::kOtherCall;
    return;
  }
  piece_left_ = head_.piece_bytes;
  message_.resize(message_.size() + piece_left_);
  if (piece_left_ == 0) EndPiece();
}

void MessageReader::EndPiece() {
  head_received_ = 0;
  if (head_.call.kind != kGoodbye) {
    if (message_.size() == head_.message_bytes) state_ = State::kDone;
    return;
  }
  const auto code = static_cast<StatusCode>(head_.call.argument);
  const bool is_known = code > StatusCode::kOk && code <= StatusCode::kAborted;
  goodbye_ = Status(is_known ? code : StatusCode::kUnavailable, std::string(AsString(reason_)));
  state_ = State::kGaveUp;
}

}  // namespace varve::internal
