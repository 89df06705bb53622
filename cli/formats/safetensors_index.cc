// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/safetensors_index.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/formats/strict_json.h"

namespace varve::internal::formats {

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

Result<WeightMap> ParseSafetensorsIndex(std::string_view text) {
  VARVE_ASSIGN_OR_RETURN(const nlohmann::json root, ParseStrictJson(text));
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    return Status::InvalidArgument("there is no object \"weight_map\"");
  }
  WeightMap weight_map;
  for (const auto& [name, file] : root["weight_map"].items()) {
    if (!file.is_string() || !IsPlainFileName(file.get_ref<const std::string&>())) {
      return Status::InvalidArgument("weight_map gives tensor \"" + name +
                                     "\" a name that is no file in the folder of the index");
    }
    weight_map.emplace(name, file.get<std::string>());
  }
  return weight_map;
}

std::string BuildSafetensorsIndex(const WeightMap& weight_map, uint64_t total_bytes) {
  const nlohmann::json root = {{"metadata", {{"total_size", total_bytes}}},
                               {"weight_map", weight_map}};
  return root.dump(2) + "\n";
}

std::vector<std::vector<TensorInfo>> SplitBySize(std::span<const TensorInfo> tensors,
                                                 uint64_t max_bytes) {
  std::vector<std::vector<TensorInfo>> groups(1);
  uint64_t used = 0;
  for (const TensorInfo& tensor : tensors) {
    const bool fits = used <= max_bytes && tensor.logical_bytes <= max_bytes - used;
    if (!fits && !groups.back().empty()) {
      groups.emplace_back();
      used = 0;
    }
    groups.back().push_back(tensor);
    used += tensor.logical_bytes;
  }
  return groups;
}

std::filesystem::path ShardFileName(const std::filesystem::path& path, size_t number,
                                    size_t count) {
  char suffix[64];
  std::snprintf(suffix, sizeof(suffix), "-%05zu-of-%05zu", number, count);
  std::filesystem::path name = path.stem();
  name += suffix;
  name += path.extension();
  return path.parent_path() / name;
}

std::filesystem::path IndexFileName(const std::filesystem::path& path) {
  std::filesystem::path name = path;
  name += ".index.json";
  return name;
}

}  // namespace varve::internal::formats
