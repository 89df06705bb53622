// SPDX-License-Identifier: Apache-2.0
//
// What an export writes. There is one function for each file format. Functions are stateless and
// read no tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal::cli {

struct ExportRequest {
  const CheckpointReader& reader;
  std::vector<TensorInfo> tensors;  // those that the user chose, by name and shard
  std::filesystem::path out;
  uint64_t max_shard_bytes = UINT64_MAX;  // safetensors only
  // The names in the store of tensors that are written under another name. `tensors` have the
  // latter.
  std::map<std::string, std::string> stored_names{};
};

// Text of a known size that depends on what was written before it.
struct CrcText {
  size_t size = 0;
  // Makes the text from the CRC-32 of the last tensor before it.
  std::function<std::string(uint32_t crc)> make;
};

// A file consists of bytes and tensors, one after the other.
using ExportPart = std::variant<std::string, TensorInfo, CrcText>;
struct ExportFile {
  std::filesystem::path path;
  std::vector<ExportPart> parts;
};

struct ExportPlan {
  std::vector<ExportFile> files;                      // in the order in which they appear
  std::optional<std::filesystem::path> folder;        // made if it is missing
  std::vector<std::string> notes;                     // for the user
  std::map<std::string, std::string> stored_names{};  // as in the request
  // Files of an earlier export under the same name. A reader would take them for a part of this
  // one, so they are removed when all new files are there.
  std::vector<std::filesystem::path> leftovers;

  void Add(std::filesystem::path path, std::string text);  // a file of text
  uint64_t NumTensors() const;
  uint64_t TotalBytes() const;  // of the tensors
};

// True when `out` names a folder for the file: `out` is a folder or ends in a slash.
bool IsFolder(const std::filesystem::path& out);
// kFailedPrecondition names a tensor that has several shards, which `format` cannot hold.
Status RefuseShards(const std::vector<TensorInfo>& tensors, std::string_view format);
// Notes how many opaque items the format has no place for. Items whose names start with `own` do
// not count.
Status NoteItems(const CheckpointReader& reader, std::string_view format, std::string_view own,
                 ExportPlan* plan);
// Returns an opaque item as text, or nullopt when the checkpoint has none of that name.
Result<std::optional<std::string>> FindItem(const CheckpointReader& reader, std::string_view name);

// Plans one file, or several and, as the last, an index of them.
Result<ExportPlan> PlanSafetensors(ExportRequest request);
// Plans a folder of model.ckpt, optimizer.ckpt and trainer_state.json, each if there is something
// to put in it. An imported checkpoint gives the bytes it came from. kFailedPrecondition: the
// format cannot hold a tensor, or a file in the folder would be taken for a part of this
// checkpoint.
Result<ExportPlan> PlanInfiniTrain(ExportRequest request);
// Plans a model file and the state files of all processes. kFailedPrecondition: the checkpoint was
// not imported from llm.c, or not all tensors of its files were chosen.
Result<ExportPlan> PlanLlmc(ExportRequest request);
// Plans a folder of torch.distributed.checkpoint: one file of tensors and values, and `.metadata`
// as the last. Values are those of a step that came from DCP. kFailedPrecondition: torch has no
// such dtype.
Result<ExportPlan> PlanDcp(const ExportRequest& request);
// Plans one .npz file. A note names tensors whose type NumPy lacks, of which it gets the bits.
Result<ExportPlan> PlanNpz(const ExportRequest& request);

}  // namespace varve::internal::cli
