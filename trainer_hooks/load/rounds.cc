// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/load/rounds.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/coding.h"
#include "base/util.h"

namespace varve::internal {

namespace {

// A rank that has pieces of a tensor.
struct Holder {
  size_t rank;
  uint64_t round_bytes;
  std::span<const uint64_t> pieces;  // their bytes
};

// The last round in which a rank has pieces, and their bytes.
struct LastRound {
  size_t number = 0;
  uint64_t bytes = 0;
};

// True when the piece fits. It does not add bytes that another rank claims, because the sum could
// overflow.
bool HasRoom(const LastRound& last, const Holder& holder, size_t piece) {
  return last.bytes == 0 || (last.bytes <= holder.round_bytes &&
                             holder.pieces[piece] <= holder.round_bytes - last.bytes);
}

// Returns the first round in which all ranks with the piece have room for it, behind their earlier
// pieces.
size_t PlacePiece(std::span<const Holder> holders, size_t piece, std::span<LastRound> last) {
  size_t number = 0;
  for (const Holder& holder : holders) {
    const LastRound& of_rank = last[holder.rank];
    number = std::max(number, of_rank.number + (HasRoom(of_rank, holder, piece) ? 0 : 1));
  }
  for (const Holder& holder : holders) {
    LastRound& of_rank = last[holder.rank];
    if (of_rank.number < number) of_rank = {.number = number};
    of_rank.bytes += holder.pieces[piece];
  }
  return number;
}

bool DecodeTensor(ByteReader* from, RankPieces* pieces) {
  uint64_t name_bytes = 0, count = 0;
  std::span<const std::byte> name, numbers;
  if (!from->Take(&name_bytes) || !from->TakeSpan(name_bytes, &name)) return false;
  if (!from->Take(&count) || count > from->rest().size() / sizeof(uint64_t)) return false;
  if (!from->TakeSpan(count * sizeof(uint64_t), &numbers)) return false;
  std::vector<uint64_t>& of_tensor = pieces->tensors[std::string(AsString(name))];
  of_tensor.resize(count);
  if (count > 0) std::memcpy(of_tensor.data(), numbers.data(), numbers.size());
  return true;
}

}  // namespace

Rounds PlanRounds(std::span<const RankPieces> ranks) {
  std::map<std::string_view, std::vector<Holder>> holders;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [name, pieces] : ranks[rank].tensors) {
      holders[name].push_back({rank, ranks[rank].round_bytes, pieces});
    }
  }
  Rounds rounds;
  std::vector<LastRound> last(ranks.size());
  for (auto& [name, of_tensor] : holders) {
    std::vector<size_t>& numbers = rounds.of_pieces[std::string(name)];
    for (size_t i = 0;; ++i) {
      std::erase_if(of_tensor, [i](const Holder& holder) { return holder.pieces.size() <= i; });
      if (of_tensor.empty()) break;
      numbers.push_back(PlacePiece(of_tensor, i, last));
      rounds.count = std::max(rounds.count, numbers.back() + 1);
    }
  }
  return rounds;
}

std::vector<std::byte> EncodePieces(const RankPieces& pieces) {
  std::vector<std::byte> bytes;
  AppendLittle(pieces.round_bytes, &bytes);
  for (const auto& [name, of_tensor] : pieces.tensors) {
    AppendLittle(uint64_t{name.size()}, &bytes);
    AppendBytes(AsBytes(name), &bytes);
    AppendLittle(uint64_t{of_tensor.size()}, &bytes);
    AppendBytes(std::as_bytes(std::span(of_tensor)), &bytes);
  }
  return bytes;
}

Result<RankPieces> DecodePieces(std::span<const std::byte> bytes) {
  RankPieces pieces;
  ByteReader from(bytes);
  bool is_whole = from.Take(&pieces.round_bytes);
  while (is_whole && !from.rest().empty()) is_whole = DecodeTensor(&from, &pieces);
  // There is only one way to write a list: names are in order, each once.
  if (is_whole && std::ranges::equal(EncodePieces(pieces), bytes)) return pieces;
  return Status::Corruption(
      "the list of a rank's pieces is damaged: " + std::to_string(bytes.size()) + " bytes");
}

Result<Rounds> PlanRoundsOf(std::span<const std::vector<std::byte>> lists) {
  std::vector<RankPieces> ranks;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    Result<RankPieces> pieces = DecodePieces(lists[rank]);
    if (!pieces.ok()) {
      return pieces.status().WithContext("what rank " + std::to_string(rank) + " reads in rounds");
    }
    ranks.push_back(*std::move(pieces));
  }
  return PlanRounds(ranks);
}

}  // namespace varve::internal
