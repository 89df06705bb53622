// SPDX-License-Identifier: Apache-2.0
//
// What an export writes, whichever format its files have: one function a format. Functions are
// stateless; they read no tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::cli {

struct ExportRequest {
  const CheckpointReader& reader;
  std::vector<TensorInfo> tensors;  // those that the user chose, by name and shard
  std::filesystem::path out;
  uint64_t max_shard_bytes = UINT64_MAX;  // safetensors only
};

// A file is bytes and tensors, one after the other.
using ExportPart = std::variant<std::string, TensorInfo>;
struct ExportFile {
  std::filesystem::path path;
  std::vector<ExportPart> parts;
};

struct ExportPlan {
  std::vector<ExportFile> files;                // in the order in which they appear
  std::optional<std::filesystem::path> folder;  // made if it is missing
  std::vector<std::string> notes;               // for the user
  // Files of an earlier export under the same name, which a reader would take for a part of this
  // one: removed when all files are there.
  std::vector<std::filesystem::path> leftovers;

  void Add(std::filesystem::path path, std::string text);  // a file of text
  uint64_t NumTensors() const;
  uint64_t TotalBytes() const;  // of the tensors
};

// A folder stands for a file in it: `out` is there as one, or ends in a slash.
bool IsFolder(const std::filesystem::path& out);
// kFailedPrecondition names a tensor that has several shards, which `format` cannot hold.
Status RefuseShards(const std::vector<TensorInfo>& tensors, std::string_view format);
// Notes how many opaque items the format has no place for; not those whose names begin with `own`.
Status NoteItems(const CheckpointReader& reader, std::string_view format, std::string_view own,
                 ExportPlan* plan);
// An opaque item as text; nullopt when the checkpoint has none of that name.
Result<std::optional<std::string>> FindItem(const CheckpointReader& reader, std::string_view name);

// One file, or several and an index of them, which comes last.
Result<ExportPlan> PlanSafetensors(ExportRequest request);
// A folder of model.ckpt, optimizer.ckpt and trainer_state.json, as far as there is anything for
// them. An imported checkpoint gives the bytes that it came from. kFailedPrecondition: a tensor
// that the format cannot hold, or a file in the folder that would be taken for a part of this
// checkpoint.
Result<ExportPlan> PlanInfiniTrain(ExportRequest request);
// A model file, and the state files of all processes. kFailedPrecondition: the checkpoint was not
// imported from llm.c, or not all tensors of its files were chosen.
Result<ExportPlan> PlanLlmc(ExportRequest request);

}  // namespace varve::cli
