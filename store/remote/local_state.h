// SPDX-License-Identifier: Apache-2.0
//
// A store as it is at one moment: its manifest, and its table files, held open. A writer may go on,
// and remove these files, which stay readable. Thread rule: const functions from any thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "objects/objects.h"
#include "store/format/format_file.h"
#include "varve/result.h"

namespace varve::internal {

class LocalTable : public BlobSource {
 public:
  // Takes the descriptor.
  LocalTable(std::string name, std::filesystem::path path, FileDescriptor fd, uint64_t bytes)
      : name_(std::move(name)), path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  const std::string& name() const { return name_; }  // 000012.sst
  // Equal for equal files only, also on other hosts.
  const std::string& identity() const { return identity_; }
  Status FindIdentity();

  uint64_t size() const override { return bytes_; }
  Status Read(uint64_t offset, std::span<std::byte> out) const override;
  // Reads it whole. kCorruption names the file.
  Result<Digest> ComputeFileDigest() const;
  // Reads it whole. kCorruption unless all its blocks have their checksums.
  Status Verify() const;
  // Both.
  Result<Digest> VerifyAndDigest() const;

  // A name under which this process can open the file after its own name is gone.
  std::string OpenName() const;

 private:
  const std::string name_;
  const std::filesystem::path path_;
  const FileDescriptor fd_;
  const uint64_t bytes_;
  std::string identity_;
};

struct LocalState {
  FormatFile format;
  std::string manifest_name;
  std::string manifest;
  std::vector<std::unique_ptr<LocalTable>> tables;

  // Makes a temporary folder while it looks.
  static Result<LocalState> Capture(const std::filesystem::path& store);
};

}  // namespace varve::internal
