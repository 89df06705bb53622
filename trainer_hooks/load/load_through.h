// SPDX-License-Identifier: Apache-2.0
//
// A load whose large reads may go another way than straight through its reader.
#pragma once

#include <span>

#include "trainer_hooks/load/rounds.h"
#include "varve/load.h"

namespace varve::internal {

// Reads what needs no conversion into its place in the target. A load makes these calls: one Read
// for everything on the host, AgreeOnRounds, and one Read in each of these rounds for what goes to
// devices. It makes the first call when nothing can be wrong with the target any more. All calls
// are about one checkpoint.
class RegionReader {
 public:
  RegionReader() = default;
  virtual ~RegionReader() = default;
  RegionReader(const RegionReader&) = delete;
  RegionReader& operator=(const RegionReader&) = delete;

  // As reader.ReadMany.
  virtual Status Read(const CheckpointReader& reader, std::span<const ReadRequest> requests) = 0;
  // Returns the round of each piece of this load, and of the loads that read with it. This load
  // must call Read in each round, also in rounds without a piece of its own.
  virtual Result<Rounds> AgreeOnRounds(const RankPieces& mine) = 0;
};

// How LoadState reads.
class LoneReader : public RegionReader {
 public:
  Status Read(const CheckpointReader& reader, std::span<const ReadRequest> requests) override {
    return reader.ReadMany(requests);
  }
  Result<Rounds> AgreeOnRounds(const RankPieces& mine) override {
    return PlanRounds(std::span(&mine, 1));
  }
};

// As LoadState.
Result<LoadReport> LoadThrough(const CheckpointReader& reader, const LoadOptions& options,
                               RegionReader* read, TrainingState* into);

}  // namespace varve::internal
