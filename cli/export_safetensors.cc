// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cli/export_plan.h"
#include "cli/formats/safetensors.h"
#include "cli/formats/safetensors_index.h"
#include "cli/metadata.h"

namespace varve::cli {
namespace {

Result<ExportFile> OneFile(std::filesystem::path path, std::vector<TensorInfo> tensors,
                           const formats::SafetensorsMetadata& metadata) {
  VARVE_ASSIGN_OR_RETURN(std::string header, formats::BuildSafetensorsHeader(tensors, metadata));
  ExportFile file{.path = std::move(path), .parts = {}};
  file.parts.emplace_back(std::move(header));
  for (TensorInfo& tensor : tensors) file.parts.emplace_back(std::move(tensor));
  return file;
}

}  // namespace

Result<ExportPlan> PlanSafetensors(ExportRequest request) {
  VARVE_RETURN_IF_ERROR(RefuseShards(request.tensors, "safetensors"));
  formats::SortForSafetensors(&request.tensors);
  formats::SafetensorsMetadata metadata;
  VARVE_ASSIGN_OR_RETURN(const std::optional<TrainerState> state,
                         request.reader.ReadTrainerState());
  if (state) metadata = MetadataFromState(*state);
  auto groups = formats::SplitBySize(request.tensors, request.max_shard_bytes);
  const std::filesystem::path path =
      IsFolder(request.out) ? request.out / "model.safetensors" : request.out;
  ExportPlan plan;
  formats::WeightMap weight_map;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::filesystem::path name =
        groups.size() == 1 ? path : formats::ShardFileName(path, i + 1, groups.size());
    for (const TensorInfo& tensor : groups[i]) {
      weight_map.emplace(tensor.name, name.filename().string());
    }
    VARVE_ASSIGN_OR_RETURN(ExportFile file, OneFile(name, std::move(groups[i]), metadata));
    plan.files.push_back(std::move(file));
  }
  if (groups.size() > 1) {
    plan.Add(formats::IndexFileName(path),
             formats::BuildSafetensorsIndex(weight_map, plan.TotalBytes()));
  }
  VARVE_RETURN_IF_ERROR(NoteItems(request.reader, "safetensors", "", &plan));
  return plan;
}

}  // namespace varve::cli
