// SPDX-License-Identifier: Apache-2.0
//
// A reader as a user of varve may make one. It has the calls that every reader must have, and
// passes each on to another reader. A test derives a class from it, and changes the calls that it
// is about.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "varve/checkpoint.h"

namespace varve::internal::testing {

class ForwardingReader : public CheckpointReader {
 public:
  explicit ForwardingReader(std::unique_ptr<CheckpointReader> reader)
      : reader_(std::move(reader)) {}

  const CheckpointInfo& info() const override { return reader_->info(); }
  Result<std::vector<TensorInfo>> List() const override { return reader_->List(); }
  Result<std::vector<TensorInfo>> ListShards() const override { return reader_->ListShards(); }
  Result<TensorInfo> Find(std::string_view name, uint32_t shard) const override {
    return reader_->Find(name, shard);
  }
  Status Read(std::string_view name, std::span<std::byte> out) const override {
    return reader_->Read(name, out);
  }
  Status ReadSlice(std::string_view name, std::span<const Range> slice,
                   std::span<std::byte> out) const override {
    return reader_->ReadSlice(name, slice, out);
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    return reader_->ReadMany(requests);
  }
  Result<std::vector<std::string>> ListBytes() const override { return reader_->ListBytes(); }
  Result<std::vector<std::byte>> ReadBytes(std::string_view name) const override {
    return reader_->ReadBytes(name);
  }
  Result<std::optional<TrainerProgress>> ReadTrainerProgress() const override {
    return reader_->ReadTrainerProgress();
  }
  Result<std::optional<Topology>> ReadTopology() const override { return reader_->ReadTopology(); }

 protected:
  const CheckpointReader& reader() const { return *reader_; }

 private:
  const std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace varve::internal::testing
