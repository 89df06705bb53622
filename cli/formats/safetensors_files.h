// SPDX-License-Identifier: Apache-2.0
//
// The tensors of one or more safetensors files. A path that ends in ".index.json" stands
// for all files that the index names, and a folder for the one of these with the usual name. Thread
// rule: constant after Open.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/file_tensor.h"
#include "cli/formats/input_file.h"
#include "cli/formats/safetensors.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal::formats {

class ShardSet;

class SafetensorsFiles {
 public:
  // A file that is named twice, for example by an index and by itself, is read once. Every error
  // names the file. kNotFound: no such file. kInvalidArgument: a file is malformed, a tensor is in
  // two files, or an index and its files disagree.
  static Result<SafetensorsFiles> Open(std::span<const std::filesystem::path> paths);

  // Returns tensors in the order of the files, and of the bytes in each file.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  // Returns the metadata of all files together. Where files disagree about a key, the first file's
  // value is kept.
  const SafetensorsMetadata& metadata() const { return metadata_; }
  // Returns the keys of `metadata` about which files disagree.
  const std::vector<std::string>& conflicting_metadata() const { return conflicts_; }

 private:
  Status AddFile(const std::filesystem::path& path, ShardSet* shards);
  void AddMetadata(const SafetensorsMetadata& metadata);

  std::vector<FileTensor> tensors_;
  SafetensorsMetadata metadata_;
  std::vector<std::string> conflicts_;
};

}  // namespace varve::internal::formats
