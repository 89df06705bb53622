// SPDX-License-Identifier: Apache-2.0
//
// A load whose large reads may go another way than straight through its reader.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "trainer_hooks/load/rounds.h"
#include "varve/device_tensor_source.h"
#include "varve/load.h"

namespace varve::internal {

// Reads what needs no conversion into its place in the target. A load makes these calls: one Read
// for everything on the host, ReadToDevice, AgreeOnRounds, and one Read in each of these rounds for
// what still goes to devices. It makes the first call when nothing can be wrong with the target any
// more. All calls are about one checkpoint.
class RegionReader {
 public:
  RegionReader() = default;
  virtual ~RegionReader() = default;
  RegionReader(const RegionReader&) = delete;
  RegionReader& operator=(const RegionReader&) = delete;

  // As reader.ReadMany.
  virtual Status Read(const CheckpointReader& reader, std::span<const ReadRequest> requests) = 0;
  // Returns the device to which ReadToDevice brings regions. Nothing: it fills none.
  virtual std::optional<int> device() const { return std::nullopt; }
  struct DeviceRead {
    ReadRequest request;  // `out` is memory of the device
    std::string origin;   // the tensor of the checkpoint whose chunks it needs
  };
  // Reads regions into memory of the device, and returns which of them it has filled. It fills
  // those that ranks send from device to device, and none whose origin is in `others` of any rank.
  // When it returns, also after an error, no more bytes will be written.
  virtual Result<std::vector<bool>> ReadToDevice(const CheckpointReader& reader,
                                                 std::span<const DeviceRead> reads,
                                                 const std::set<std::string>& others,
                                                 DeviceTensorSource* devices) {
    (void)reader, (void)others, (void)devices;
    return std::vector<bool>(reads.size());
  }
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
