// SPDX-License-Identifier: Apache-2.0
//
// The arrays of NumPy's files: .npz, as np.savez and np.savez_compressed write them, and .npy.
// Thread rule: constant after Open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/input_file.h"
#include "cli/formats/npy.h"
#include "cli/formats/zip_file.h"
#include "varve/result.h"

namespace varve::internal::formats {

// Its name is that of the entry, or of the .npy file, without ".npy".
struct NpzArray : NpyArray {
  std::shared_ptr<const InputFile> file;
  std::string what;               // names file and entry in messages
  std::optional<ZipEntry> entry;  // of a .npz
  uint64_t data_begin = 0;        // in the contents of the entry, or in the .npy file
};

class NpzFiles {
 public:
  // What a file is, its first bytes tell. Every error names the file and the entry. kNotFound: no
  // such file. kInvalidArgument: a file is malformed, or an array is in two of them.
  static Result<NpzFiles> Open(std::span<const std::filesystem::path> paths);

  // Returns arrays in the order of the files, and of the bytes in each file.
  const std::vector<NpzArray>& arrays() const { return arrays_; }

 private:
  Status AddFile(const std::filesystem::path& path);
  Status AddNpz(const std::filesystem::path& path, const std::shared_ptr<InputFile>& file);
  Status AddNpy(const std::filesystem::path& path, const std::shared_ptr<InputFile>& file);
  Status Add(NpzArray array);

  std::vector<NpzArray> arrays_;
  std::set<std::string> names_;
};

}  // namespace varve::internal::formats
