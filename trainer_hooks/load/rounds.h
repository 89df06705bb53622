// SPDX-License-Identifier: Apache-2.0
//
// Decides in which round of a load each piece of a tensor is read. Ranks that load together read a
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

namespace varve::internal {

// What one rank reads in rounds.
struct RankPieces {
  uint64_t round_bytes = 0;  // memory of the rank for one round
  // The memory that each piece of a tensor takes. The key is the name of a tensor of the
  // checkpoint, or of several that are read as one.
  std::map<std::string, std::vector<uint64_t>> tensors;
  bool operator==(const RankPieces&) const = default;
};

struct Rounds {
  size_t count = 0;
  // The round of each piece that a rank has, by name.
  std::map<std::string, std::vector<size_t>> of_pieces;
};

// On each rank pieces come in the order of names, then of numbers. A rank's share of a round fits
// in its `round_bytes`. A larger piece gets a round to itself on that rank.
Rounds PlanRounds(std::span<const RankPieces> ranks);

std::vector<std::byte> EncodePieces(const RankPieces& pieces);
// kCorruption: EncodePieces cannot have made these bytes.
Result<RankPieces> DecodePieces(std::span<const std::byte> bytes);

// Returns PlanRounds of what the ranks have sent. kCorruption names the first rank whose list is
// malformed.
Result<Rounds> PlanRoundsOf(std::span<const std::vector<std::byte>> lists);

}  // namespace varve::internal
