// SPDX-License-Identifier: Apache-2.0
//
// A load whose large reads go another way than through its reader alone.
#pragma once

#include <span>

#include "trainer_hooks/load/rounds.h"
#include "varve/load.h"

namespace varve {

// How a load reads what goes into its place as it is: by one call of Read for what lies on the
// host, AgreeOnRounds, and a call of Read for each of these rounds for what goes to devices. The
// first comes when nothing can be wrong with the target any more. All are of one checkpoint.
class RegionReader {
 public:
  RegionReader() = default;
  virtual ~RegionReader() = default;
  RegionReader(const RegionReader&) = delete;
  RegionReader& operator=(const RegionReader&) = delete;

  // As reader.ReadMany.
  virtual Status Read(const CheckpointReader& reader, std::span<const ReadRequest> requests) = 0;
  // The round of each piece of this load, and of those of others that read with it. This load calls
  // Read for each round, also for those that have none of its pieces.
  virtual Result<Rounds> AgreeOnRounds(const RankPieces& mine) = 0;
};

// The way of LoadState.
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

}  // namespace varve
