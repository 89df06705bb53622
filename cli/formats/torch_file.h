// SPDX-License-Identifier: Apache-2.0
//
// A file of torch.save in its zip form (PyTorch 1.6 and later), or such an archive in a larger
// file. Its pickle is read as data, and nothing in it is executed. Thread rule: constant after
// Open.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/input_file.h"
#include "cli/formats/torch_tree.h"
#include "cli/formats/zip_file.h"
#include "varve/result.h"

namespace varve::internal::formats {

class TorchFile {
 public:
  // Every error names the file. kNotFound: no such file. kInvalidArgument: the file is malformed,
  // of the form before PyTorch 1.6, big-endian, or holds something else than tensors, containers
  // and plain values.
  static Result<std::shared_ptr<const TorchFile>> Open(const std::filesystem::path& path);
  // The same for `archive`, a part of `file`. `what` names both in errors.
  static Result<std::shared_ptr<const TorchFile>> OpenPart(std::shared_ptr<InputFile> file,
                                                           std::span<const std::byte> archive,
                                                           std::string what);

  const TorchTree& tree() const { return tree_; }
  const std::shared_ptr<InputFile>& file() const { return file_; }
  // False: torch was told to write none (torch.serialization.set_crc32_options).
  bool has_checksums() const { return has_checksums_; }
  // Returns the entry with the storage of a tensor of the tree.
  const ZipEntry& StorageOf(const TorchTensor& tensor) const {
    return storages_.find(tensor.storage)->second;
  }
  // Names an entry in messages.
  std::string NameOf(const ZipEntry& entry) const;

 private:
  TorchFile(std::shared_ptr<InputFile> file, std::string what)
      : file_(std::move(file)), what_(std::move(what)) {}
  Status Read(std::span<const std::byte> archive);
  Status Sort(std::vector<ZipEntry> entries, ZipEntry* pickle);
  void ForgiveMissingChecksums(std::vector<ZipEntry>* entries, const ZipEntry& pickle);
  Status CheckByteOrder(const ZipEntry& entry) const;
  Status CheckStorages() const;

  const std::shared_ptr<InputFile> file_;
  const std::string what_;
  std::map<std::string, ZipEntry, std::less<>> storages_;  // by key
  std::vector<std::byte> pickle_bytes_;                    // the tree points into them
  TorchTree tree_;
  bool has_checksums_ = true;
};

// Says how files start that are not zip archives, if it is known. Empty: it is not.
std::string_view TorchLegacyHint(std::span<const std::byte> start);

}  // namespace varve::internal::formats
