// SPDX-License-Identifier: Apache-2.0
//
// Between a stream of the parts of a file and the file: it computes the CRC-32 of tensors on their
// way, and puts texts that depend on one in place of as many zeros. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "cli/foreign/export_plan.h"
#include "varve/result.h"

namespace varve::internal::cli {

class PartSink {
 public:
  using Sink = std::function<Status(std::span<const std::byte>)>;

  // The parts must outlive the sink.
  PartSink(std::span<const ExportPart> parts, Sink sink);

  // Takes the next bytes of the parts, one part after the other, and hands them on.
  Status Write(std::span<const std::byte> bytes);

 private:
  void Enter();
  Status Advance();

  std::span<const ExportPart> parts_;  // the current one and those after it
  const Sink sink_;
  uint64_t left_ = 0;  // of the current part
  uint32_t crc_ = 0;   // of the last tensor, or of what was written of it
};

}  // namespace varve::internal::cli
