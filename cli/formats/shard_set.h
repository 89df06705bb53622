// SPDX-License-Identifier: Apache-2.0
//
// The files of a checkpoint that may be cut into several, whatever their format: single files, a
// path that ends in ".index.json" and stands for all files that the index names, and a folder in
// which one of these has its usual name. Thread rule: one thread.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "cli/formats/safetensors_index.h"
#include "varve/result.h"

namespace varve::internal::formats {

class ShardSet {
 public:
  // Reads a file and calls AddTensor for each of its tensors.
  using ReadShard = std::function<Status(const std::filesystem::path& path)>;

  // `usual_names` are those that a folder is searched for, the first choice first.
  explicit ShardSet(std::span<const std::string_view> usual_names) : usual_names_(usual_names) {}

  // Calls `read` once for each file, also for one that is named twice, for example by an index and
  // by itself. Every error names the file. kNotFound: no such file. kInvalidArgument: a tensor is
  // in two files, or an index and its files disagree.
  Status Read(std::span<const std::filesystem::path> paths, const ReadShard& read);
  // Adds a tensor of the file that is being read.
  Status AddTensor(const std::string& name);

 private:
  Status AddFile(const std::filesystem::path& path, const ReadShard& read);
  Status AddFolder(const std::filesystem::path& path, const ReadShard& read);
  Status AddIndex(const std::filesystem::path& path, const ReadShard& read);
  Status CheckIndex(const std::filesystem::path& path, const WeightMap& weight_map) const;

  const std::span<const std::string_view> usual_names_;
  std::set<std::filesystem::path> places_;                // of all files
  std::map<std::string, std::filesystem::path> file_of_;  // the place, by tensor name
  std::filesystem::path reading_;                         // the place of the file that is read
};

}  // namespace varve::internal::formats
