// SPDX-License-Identifier: Apache-2.0
//
// The `*.index.json` of a checkpoint that is cut into several safetensors files. It says which file
// of the same folder holds each tensor. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal::formats {

using WeightMap = std::map<std::string, std::string>;  // tensor name -> file name

// True for the name of a file in a folder: it has no folders and is not "." or "..".
bool IsPlainFileName(std::string_view name);

// Reads an index of unknown origin. kInvalidArgument: it is not JSON, a key occurs twice, there is
// no `weight_map`, or a file name does not name a file in the same folder (no folders, no "..").
Result<WeightMap> ParseSafetensorsIndex(std::string_view text);

// Returns the text of an index, with `metadata.total_size`, as the transformers package writes it.
std::string BuildSafetensorsIndex(const WeightMap& weight_map, uint64_t total_bytes);

// Cuts tensors, in order, into groups of at most `max_bytes` each (a larger tensor goes alone).
// Returns at least one group.
std::vector<std::vector<TensorInfo>> SplitBySize(std::span<const TensorInfo> tensors,
                                                 uint64_t max_bytes);

// Turns "dir/model.safetensors" into "dir/model-00002-of-00003.safetensors". `number` counts from
// 1.
std::filesystem::path ShardFileName(const std::filesystem::path& path, size_t number, size_t count);
// Turns "dir/model.safetensors" into "dir/model.safetensors.index.json".
std::filesystem::path IndexFileName(const std::filesystem::path& path);

}  // namespace varve::internal::formats
