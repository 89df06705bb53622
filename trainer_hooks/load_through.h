// SPDX-License-Identifier: Apache-2.0
//
// A load whose large reads go another way than through its reader alone.
#pragma once

#include <cstddef>
#include <span>

#include "varve/load.h"

namespace varve {

// How a load reads what goes into its place as it is: by one call of Read for what lies on the
// host, AgreeOnRounds, and as many calls as that says for what goes to devices. The first comes
// when nothing can be wrong with the target any more.
class RegionReader {
 public:
  RegionReader() = default;
  virtual ~RegionReader() = default;
  RegionReader(const RegionReader&) = delete;
  RegionReader& operator=(const RegionReader&) = delete;

  // As reader.ReadMany.
  virtual Status Read(const CheckpointReader& reader, std::span<const ReadRequest> requests) = 0;
  // This load needs `mine` more calls of Read; others that read with it may need more.
  virtual Result<size_t> AgreeOnRounds(size_t mine) = 0;
};

// The way of LoadState.
class LoneReader : public RegionReader {
 public:
  Status Read(const CheckpointReader& reader, std::span<const ReadRequest> requests) override {
    return reader.ReadMany(requests);
  }
  Result<size_t> AgreeOnRounds(size_t mine) override { return mine; }
};

// As LoadState.
Result<LoadReport> LoadThrough(const CheckpointReader& reader, const LoadOptions& options,
                               RegionReader* read, TrainingState* into);

}  // namespace varve
