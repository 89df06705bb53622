// SPDX-License-Identifier: Apache-2.0
//
// What ranks send each other. Another rank may run another version of varve, or be none at all.
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/util.h"
#include "tests/fuzz/targets.h"
#include "tests/trainer_hooks/holding.h"
#include "trainer_hooks/group/held_tensor.h"
#include "trainer_hooks/load/rounds.h"
#include "trainer_hooks/ranks/message_stream.h"
#include "trainer_hooks/state/item_name.h"

namespace varve::internal::fuzz {
namespace {

void ReadHeld(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const auto held = DecodeHeld(exact.bytes());
  if (!held.ok()) return;
  const std::vector<std::byte> list = EncodeHeld(*held);
  const auto again = DecodeHeld(list);
  Require(again.ok() && *again == *held);
}

void ReadPieces(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const auto pieces = DecodePieces(exact.bytes());
  if (!pieces.ok()) return;
  const auto again = DecodePieces(EncodePieces(*pieces));
  Require(again.ok() && *again == *pieces);
}

void ReadItemName(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const ItemName name = DecodeItemName(exact.text());
  const auto stored = EncodeItemName(name);
  if (stored.ok()) Require(DecodeItemName(*stored) == name);
}

constexpr Call kCall = {CallKind::kBroadcast, 1, 7};

// A rank waits for a message of one call, and gets these bytes.
void ReadMessage(std::span<const std::byte> input) {
  constexpr size_t kMostBytes = 60000;  // fit into the socket
  int ends[2];
  Require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const Socket reader_end(ends[0]);
  input = input.first(std::min(input.size(), kMostBytes));
  {
    const Socket writer_end(ends[1]);
    Require(::send(ends[1], input.data(), input.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(input.size()));
  }
  MessageReader reader;
  reader.Begin(kCall);
  size_t received = 0;
  while (reader.wants_more()) received += reader.Advance(reader_end);
  Require(received <= input.size());
  if (reader.state() == MessageReader::State::kGaveUp) Require(!reader.goodbye().ok());
  if (reader.state() != MessageReader::State::kDone) return;
  Require(reader.TakeMessage().size() <= input.size());
}

std::string HeadOf(const Call& call, uint32_t piece_bytes, uint64_t message_bytes) {
  const HeadBytes head = Encode({call, piece_bytes, message_bytes});
  return std::string(AsString(head));
}

std::vector<std::string> MessageSeeds() {
  return {HeadOf(kCall, 3, 3) + "abc", HeadOf(kCall, 3, 5) + "abc" + HeadOf(kCall, 2, 5) + "de",
          HeadOf({kGoodbye, static_cast<int32_t>(StatusCode::kIOError), 7}, 4, 4) + "disk",
          HeadOf(kCall, 1, 1) + "a" + HeadOf({CallKind::kBarrier, 0, 8}, 0, 0)};
}

std::vector<std::string> HeldSeeds() {
  const ShardLayout half{
      .global_shape = {8, 4}, .axes = {{{4, 4, false}}, {{0, 4, false}}}, .flat = {}};
  const HeldTensor all[] = {
      testing::Holding(ShardLayout::Whole({8, 4}), {.name = "layer.0.weight", .alias_of = "other"}),
      testing::Holding(half, {.name = "layer.0.moment",
                              .role = TensorRole::kOptimizer,
                              .can_cut = true,
                              .had = Range{2, 5}})};
  return {std::string(AsString(EncodeHeld(all))),
          std::string(AsString(EncodeHeld(std::vector<HeldTensor>())))};
}

std::vector<std::string> PieceSeeds() {
  const RankPieces pieces{1000, {{"a", {10, 20}}, {"b", {}}}};
  return {std::string(AsString(EncodePieces(pieces))), std::string(AsString(EncodePieces({})))};
}

std::vector<std::string> ItemNameSeeds() {
  return {*EncodeItemName({"loader", 3}), *EncodeItemName({"loader", {}})};
}

}  // namespace

std::vector<FuzzTarget> HookTargets() {
  return {{"held_tensors", ReadHeld, HeldSeeds()},
          {"rank_pieces", ReadPieces, PieceSeeds()},
          {"item_name", ReadItemName, ItemNameSeeds()},
          {"rank_message", ReadMessage, MessageSeeds()}};
}

}  // namespace varve::internal::fuzz
