// SPDX-License-Identifier: Apache-2.0
//
// What an import saves. There is one function for each file format. Functions are stateless. Their
// errors name the file and the place in it, and say what was found and expected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/file_tensor.h"
#include "varve/result.h"
#include "varve/trainer_progress.h"

namespace varve::internal::cli {

struct ImportSource {
  // Sets the step of all that was read to `step`, whatever step the files say. It also drops the
  // copy of the files' own trainer state, because that would name another step.
  void SetStep(uint64_t step);

  std::vector<formats::FileTensor> tensors;
  std::optional<uint64_t> step;  // that the files say
  std::optional<TrainerProgress> state;
  std::optional<Topology> topology;
  std::map<std::string, std::string>
      items;                       // opaque. An export needs them to be equal byte for byte
  std::vector<std::string> notes;  // for the user
};

// Reads safetensors files and indices of such files. Their metadata becomes the state of `step`.
Result<ImportSource> ReadSafetensors(std::span<const std::filesystem::path> paths, uint64_t step);
// Reads a folder of InfiniTrain's, or single files of one.
Result<ImportSource> ReadInfiniTrain(std::span<const std::filesystem::path> paths);
// Reads a model file of llm.c's and the state files that belong to it.
Result<ImportSource> ReadLlmc(std::span<const std::filesystem::path> paths);

}  // namespace varve::internal::cli
