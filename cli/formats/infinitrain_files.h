// SPDX-License-Identifier: Apache-2.0
//
// The files of one InfiniTrain checkpoint: model.ckpt, optimizer.ckpt and
// trainer_state.json of a folder checkpoint_step_NNNNNN. Thread rule: constant after Open.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/file_tensor.h"
#include "cli/formats/input_file.h"
#include "varve/result.h"

namespace varve::internal::formats {

inline constexpr std::string_view kModelCkpt = "model.ckpt";
inline constexpr std::string_view kOptimizerCkpt = "optimizer.ckpt";
inline constexpr std::string_view kTrainerStateJson = "trainer_state.json";

// Lists the tensors of a .ckpt file, in the order of the file.
struct CkptLayout {
  std::string file;  // kModelCkpt or kOptimizerCkpt
  std::vector<std::string> tensors;
};

class InfiniTrainFiles {
 public:
  // A path is one of the files, or a folder. The folder must hold model.ckpt and may hold the
  // others. Every error names the file. kNotFound: no such file. kInvalidArgument: a file is
  // malformed or given twice, a tensor is in two files, or a path has another name.
  static Result<InfiniTrainFiles> Open(std::span<const std::filesystem::path> paths);

  // Returns tensors in the order of the files, and of the bytes in each file.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  const std::vector<CkptLayout>& layout() const { return layout_; }
  // Returns the text of trainer_state.json, or nullopt when there is none. The next says where it
  // is from.
  const std::optional<std::string>& state_text() const { return state_text_; }
  const std::filesystem::path& state_path() const { return state_path_; }
  // Returns the other files of the folder.
  const std::vector<std::filesystem::path>& others() const { return others_; }

 private:
  Status AddFolder(const std::filesystem::path& folder);
  Status AddFile(const std::filesystem::path& path);
  Status AddCkpt(const std::filesystem::path& path, const std::shared_ptr<InputFile>& file);
  Status AddState(const std::filesystem::path& path, InputFile* file);

  std::vector<FileTensor> tensors_;
  std::vector<CkptLayout> layout_;
  std::optional<std::string> state_text_;
  std::filesystem::path state_path_;
  std::vector<std::filesystem::path> others_;
};

}  // namespace varve::internal::formats
