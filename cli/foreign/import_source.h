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
#include <string_view>
#include <vector>

#include "cli/formats/file_tensor.h"
#include "varve/result.h"
#include "varve/trainer_progress.h"

namespace varve::internal::cli {

// The names of the formats that ReadFiles knows, the default first.
inline constexpr const char* kImportFormats[] = {"safetensors", "infinitrain", "llmc",
                                                 "torch",       "dcp",         "npz"};

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

// True when files of the format may say the step that they are of.
bool MaySayStep(std::string_view format);

// Reads files of one of kImportFormats. `step` is the one to save, if the user says it.
// kInvalidArgument: the format is unknown, or needs a step.
Result<ImportSource> ReadFiles(std::string_view format,
                               std::span<const std::filesystem::path> paths,
                               std::optional<uint64_t> step);

// Reads safetensors files and indices of such files. Their metadata becomes the state of `step`.
Result<ImportSource> ReadSafetensors(std::span<const std::filesystem::path> paths, uint64_t step);
// Reads a folder of InfiniTrain's, or single files of one.
Result<ImportSource> ReadInfiniTrain(std::span<const std::filesystem::path> paths);
// Reads a model file of llm.c's and the state files that belong to it.
Result<ImportSource> ReadLlmc(std::span<const std::filesystem::path> paths);
// Reads .npz and .npy files of NumPy's. Each array becomes a tensor of its name.
Result<ImportSource> ReadNpz(std::span<const std::filesystem::path> paths);

// Reads files of torch.save, indices of such files, and folders with one. A file that is imported
// alone may hold other values than tensors. They are kept as the item "torch.state_dict".
Result<ImportSource> ReadTorch(std::span<const std::filesystem::path> paths);
// Reads a folder of torch.distributed.checkpoint. Chunks become whole tensors again. Values that
// are no tensors are kept as items, as the bytes that DCP pickled.
Result<ImportSource> ReadDcp(std::span<const std::filesystem::path> paths);
// Reads a folder of its HuggingFaceStorageWriter, in which each rank has safetensors files with its
// chunks. nullopt: it holds no such file.
Result<std::optional<ImportSource>> ReadDcpSafetensors(const std::filesystem::path& folder);

// Says whether a name is one that trainers give to the state of their optimizer. Most files do not
// say what their tensors are to the trainer.
bool IsOptimizerState(std::string_view name);

}  // namespace varve::internal::cli
