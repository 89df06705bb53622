// SPDX-License-Identifier: Apache-2.0
//
// What an import saves, whichever format its files have: one function a format. Functions are
// stateless. Their errors name file and place, and say what was found and expected.
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

namespace varve::cli {

struct ImportSource {
  // Makes all that was read a part of `step`, whatever step the files say: their trainer state is
  // of that step, and a copy of it as the files had it, which would say another, is not kept.
  void SetStep(uint64_t step);

  std::vector<formats::FileTensor> tensors;
  std::optional<uint64_t> step;  // that the files say
  std::optional<TrainerProgress> state;
  std::optional<Topology> topology;
  std::map<std::string, std::string>
      items;                       // opaque; what an export needs to be equal byte for byte
  std::vector<std::string> notes;  // for the user
};

// safetensors files and indices of such. Their metadata becomes the state of `step`.
Result<ImportSource> ReadSafetensors(std::span<const std::filesystem::path> paths, uint64_t step);
// A folder of InfiniTrain's, or files of one.
Result<ImportSource> ReadInfiniTrain(std::span<const std::filesystem::path> paths);
// A model file of llm.c's and state files that belong to it.
Result<ImportSource> ReadLlmc(std::span<const std::filesystem::path> paths);

}  // namespace varve::cli
