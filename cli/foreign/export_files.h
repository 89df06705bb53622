// SPDX-License-Identifier: Apache-2.0
//
// An export as one call: what `varve export` does with a checkpoint, for other callers, too.
// Stateless.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/name_map.h"
#include "varve/result.h"

namespace varve::internal::cli {

inline constexpr const char* kExportFormats[] = {"safetensors", "infinitrain", "llmc", "dcp",
                                                 "npz"};

struct ExportFilesRequest {
  std::filesystem::path out;  // the file, or the folder for files with the usual names
  std::string format = kExportFormats[0];
  std::vector<std::string> include;  // globs of names in the store; none: all tensors
  std::vector<std::string> exclude;
  std::optional<NameMap> names;             // new names of tensors
  std::optional<uint64_t> max_shard_bytes;  // safetensors only
  bool overwrite = false;                   // also removes what an earlier export has left
  std::function<void(uint64_t done, uint64_t total)> progress;
};

struct ExportedFiles {
  std::vector<std::filesystem::path> files;  // in the order in which they appeared
  uint64_t num_tensors = 0;
  uint64_t logical_bytes = 0;
  std::vector<std::string> notes;  // for the user
};

// Writes files, which appear whole or not at all. kInvalidArgument: the format is unknown, or an
// option does not go with it. kNotFound: no tensor is chosen. kAlreadyExists: a file is there, and
// is not to be overwritten. kFailedPrecondition: the format cannot hold the checkpoint.
Result<ExportedFiles> ExportFiles(const CheckpointReader& reader,
                                  const ExportFilesRequest& request);

}  // namespace varve::internal::cli
