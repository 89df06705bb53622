// SPDX-License-Identifier: Apache-2.0
//
// The tensors of one or more safetensors files. A path that ends in ".index.json" stands
// for all files that the index names. Thread rule: constant after Open.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/file_tensor.h"
#include "cli/formats/input_file.h"
#include "cli/formats/safetensors.h"
#include "cli/formats/safetensors_index.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal::formats {

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
  Status AddFile(const std::filesystem::path& path);
  Status AddIndex(const std::filesystem::path& path);
  Status AddTensor(const std::filesystem::path& place, FileTensor tensor);
  void AddMetadata(const SafetensorsMetadata& metadata);
  Status CheckIndex(const std::filesystem::path& path, const WeightMap& weight_map) const;

  std::vector<FileTensor> tensors_;
  std::set<std::filesystem::path> places_;                // of all files
  std::map<std::string, std::filesystem::path> file_of_;  // the place, by tensor name
  SafetensorsMetadata metadata_;
  std::vector<std::string> conflicts_;
};

}  // namespace varve::internal::formats
