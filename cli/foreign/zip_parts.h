// SPDX-License-Identifier: Apache-2.0
//
// Parts of an exported file that make a zip archive with tensors as entries. The checksum of a
// tensor is known when it has been written, so it stands behind it and in the directory, not
// before.
//
//   ZipParts zip;
//   zip.AddText("x/data.pkl", pickle);
//   zip.AddTensor("x/data/0", "", tensor);
//   std::vector<ExportPart> parts = zip.Finish();   // and zip.size() is that of the archive
//
// Thread rule: one thread. The parts keep what they need.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/foreign/export_plan.h"
#include "varve/tensor.h"

namespace varve::internal::cli {

class ZipParts {
 public:
  struct Entry {
    std::string name;
    uint64_t begin = 0;
    uint64_t size = 0;
    uint32_t crc = 0;
    bool is_streamed = false;
  };

  ZipParts();

  void AddText(std::string_view name, std::string_view contents);
  // An entry of `before` and the bytes of the tensor.
  void AddTensor(std::string_view name, std::string_view before, TensorInfo tensor);
  // Adds the directory and returns all parts. Call it once, last.
  std::vector<ExportPart> Finish();

  uint64_t size() const { return size_; }

 private:
  using Entries = std::vector<Entry>;

  static std::string Local(const Entry& entry);
  static std::string Descriptor(const Entry& entry);
  static std::string Directory(const Entries& entries, uint64_t begin);
  void Append(std::string text);

  std::vector<ExportPart> parts_;
  const std::shared_ptr<Entries> entries_;  // the parts fill in checksums
  uint64_t size_ = 0;
};

}  // namespace varve::internal::cli
