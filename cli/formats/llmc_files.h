// SPDX-License-Identifier: Apache-2.0
//
// The files of one llm.c checkpoint: a model file and the state files of any of its processes.
// Their magic numbers tell which is which. Thread rule: constant after Open.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cli/formats/input_file.h"
#include "cli/formats/llmc_model.h"
#include "cli/formats/llmc_state.h"
#include "varve/result.h"

namespace varve::internal::formats {

class LlmcFiles {
 public:
  // Every error names the file. kNotFound: no such file. kInvalidArgument: a file is malformed,
  // there is not exactly one model, or the states are not of one step and of distinct processes.
  static Result<LlmcFiles> Open(std::span<const std::filesystem::path> paths);

  const LlmcModel& model() const { return model_; }
  std::span<const std::byte> model_header() const { return model_header_; }
  struct State {
    LlmcState parsed;
    std::span<const std::byte> header;
  };
  const std::vector<State>& states() const { return states_; }  // by rising rank

 private:
  Status AddModel(const std::shared_ptr<InputFile>& file);
  Status AddState(const std::shared_ptr<InputFile>& file);

  std::vector<std::shared_ptr<InputFile>> files_;
  LlmcModel model_;
  std::span<const std::byte> model_header_;
  std::vector<State> states_;
};

}  // namespace varve::internal::formats
