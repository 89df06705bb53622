// SPDX-License-Identifier: Apache-2.0
//
// Reads the contents of a zip entry from its start to its end, stored or deflated, in little
// memory, and checks their CRC-32.
//
//   ZipEntryReader reader(file, entry, "x.npz: entry \"a.npy\"");
//   VARVE_RETURN_IF_ERROR(reader.Read(header));
//   VARVE_RETURN_IF_ERROR(reader.Read(rest));
//   VARVE_RETURN_IF_ERROR(reader.Finish());
//
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/input_file.h"
#include "cli/formats/zip_file.h"
#include "varve/result.h"

namespace varve::internal::formats {

class ZipEntryReader {
 public:
  // `what` names file and entry in errors.
  ZipEntryReader(std::shared_ptr<const InputFile> file, ZipEntry entry, std::string what);
  ~ZipEntryReader();

  uint64_t left() const { return entry_.size - offset_; }
  // Fills `out` with the next bytes. kInvalidArgument: the contents end before, or are not
  // deflated data.
  Status Read(std::span<std::byte> out);
  // The same for bytes that nobody wants.
  Status Skip(uint64_t bytes);
  // kInvalidArgument: the contents go on, or have another CRC-32.
  Status Finish();

 private:
  struct Stream;
  Status ReadStored(std::span<std::byte> out);
  Status Inflate(std::span<std::byte> out);
  Status FillInput();
  Status Error(const std::string& problem) const;

  const std::shared_ptr<const InputFile> file_;
  const ZipEntry entry_;
  const std::string what_;
  uint64_t offset_ = 0;  // in the contents
  uint64_t taken_ = 0;   // of the data
  uint32_t crc_ = 0;
  std::vector<std::byte> input_;
  std::unique_ptr<Stream> stream_;  // of a deflated entry, once it is read
};

// Returns all contents of an entry. kInvalidArgument: it is larger than `max_bytes`, or as above.
Result<std::vector<std::byte>> ReadZipEntry(const std::shared_ptr<const InputFile>& file,
                                            const ZipEntry& entry, const std::string& what,
                                            uint64_t max_bytes);

}  // namespace varve::internal::formats
