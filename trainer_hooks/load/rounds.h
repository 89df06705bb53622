// SPDX-License-Identifier: Apache-2.0
//
// In which round of a load each piece of a tensor is read. Ranks that load together read the same
// piece in the same round, whatever else each of them wants, so that it can be read once for all.
// Plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "varve/result.h"

namespace varve {

// What one rank reads in rounds.
struct RankPieces {
  uint64_t round_bytes = 0;  // of its memory, for one round
  // By the name of a tensor of the checkpoint, or of several that are read as one: how much of that
  // memory each of its pieces takes.
  std::map<std::string, std::vector<uint64_t>> tensors;
  bool operator==(const RankPieces&) const = default;
};

struct Rounds {
  size_t count = 0;
  // By name, the round of each piece that a rank has.
  std::map<std::string, std::vector<size_t>> of_pieces;
};

// On each rank pieces come in the order of names, then of numbers. What a rank has of a round fits
// into its memory for one, but for a piece that is longer, which is all that it has of its round.
Rounds PlanRounds(std::span<const RankPieces> ranks);

std::vector<std::byte> EncodePieces(const RankPieces& pieces);
// kCorruption: not what EncodePieces gives.
Result<RankPieces> DecodePieces(std::span<const std::byte> bytes);

// PlanRounds of what each rank has sent. kCorruption names the first rank whose list is none.
Result<Rounds> PlanRoundsOf(std::span<const std::vector<std::byte>> lists);

}  // namespace varve
