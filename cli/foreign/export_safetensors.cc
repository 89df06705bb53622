// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/foreign/export_plan.h"
#include "cli/foreign/metadata.h"
#include "cli/formats/safetensors.h"
#include "cli/formats/safetensors_index.h"

namespace varve::internal::cli {
namespace {

Result<ExportFile> OneFile(std::filesystem::path path, std::vector<TensorInfo> tensors,
                           const formats::SafetensorsMetadata& metadata) {
  VARVE_ASSIGN_OR_RETURN(std::string header, formats::BuildSafetensorsHeader(tensors, metadata));
  ExportFile file{.path = std::move(path), .parts = {}};
  file.parts.emplace_back(std::move(header));
  for (TensorInfo& tensor : tensors) file.parts.emplace_back(std::move(tensor));
  return file;
}

// "model-00001-of-00003.safetensors", of `path` model.safetensors.
bool IsShardOf(const std::filesystem::path& path, const std::string& name) {
  std::string pattern = path.stem().string() + "-00000-of-00000" + path.extension().string();
  if (name.size() != pattern.size()) return false;
  const size_t digits = path.stem().string().size();
  for (size_t i = 0; i < name.size(); ++i) {
    const bool is_digit = i > digits && pattern[i] == '0' && i < digits + 15;
    if (is_digit ? name[i] < '0' || name[i] > '9' : name[i] != pattern[i]) return false;
  }
  return true;
}

// Finds files under the export's name that the export does not write. Readers look for the single
// file first, then for the index, and some take all shards that they see.
std::vector<std::filesystem::path> FindLeftovers(const std::filesystem::path& path,
                                                 const std::vector<ExportFile>& files) {
  std::vector<std::filesystem::path> leftovers;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path name = entry->path().filename();
    const bool is_of_the_set = name == path.filename() ||
                               name == formats::IndexFileName(path).filename() ||
                               IsShardOf(path, name.string());
    const auto is_it = [&name](const ExportFile& file) { return file.path.filename() == name; };
    if (!is_of_the_set || std::any_of(files.begin(), files.end(), is_it)) continue;
    leftovers.push_back(path.parent_path() / name);
  }
  std::sort(leftovers.begin(), leftovers.end());
  return leftovers;
}

}  // namespace

Result<ExportPlan> PlanSafetensors(ExportRequest request) {
  VARVE_RETURN_IF_ERROR(RefuseShards(request.tensors, "safetensors"));
  formats::SortForSafetensors(&request.tensors);
  formats::SafetensorsMetadata metadata;
  VARVE_ASSIGN_OR_RETURN(const std::optional<TrainerProgress> state,
                         request.reader.ReadTrainerProgress());
  ExportPlan plan;
  if (state) metadata = MetadataFromState(*state, &plan.notes);
  auto groups = formats::SplitBySize(request.tensors, request.max_shard_bytes);
  const std::filesystem::path path =
      IsFolder(request.out) ? request.out / "model.safetensors" : request.out;
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
  plan.leftovers = FindLeftovers(path, plan.files);
  VARVE_RETURN_IF_ERROR(NoteItems(request.reader, "safetensors", "", &plan));
  return plan;
}

}  // namespace varve::internal::cli
