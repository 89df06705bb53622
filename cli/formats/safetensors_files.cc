// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/safetensors_files.h"

#include <set>
#include <string_view>
#include <utility>

namespace varve::internal::formats {
namespace {

constexpr std::string_view kIndexSuffix = ".index.json";

std::string Quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

// Returns one path for all ways to write it. It does not resolve a link in the last component,
// because an index may name links.
std::filesystem::path Place(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto folder = std::filesystem::absolute(path, ignored).parent_path();
  return std::filesystem::weakly_canonical(folder, ignored) / path.filename();
}

}  // namespace

Result<SafetensorsFiles> SafetensorsFiles::Open(std::span<const std::filesystem::path> paths) {
  SafetensorsFiles files;
  for (const std::filesystem::path& path : paths) {
    const bool is_index = path.string().ends_with(kIndexSuffix);
    VARVE_RETURN_IF_ERROR(is_index ? files.AddIndex(path) : files.AddFile(path));
  }
  return files;
}

Status SafetensorsFiles::AddFile(const std::filesystem::path& path) {
  const std::filesystem::path place = Place(path);
  if (!places_.insert(place).second) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  Result<SafetensorsHeader> header = ParseSafetensors(file->bytes(), FetcherOf(file.get()));
  if (header.status().code() == StatusCode::kInvalidArgument) {
    return header.status().WithContext(path.string());
  }
  VARVE_RETURN_IF_ERROR(header.status());  // the file's own errors name it
  const std::span<const std::byte> data = file->bytes().subspan(header->data_begin);
  for (SafetensorsTensor& tensor : header->tensors) {
    VARVE_RETURN_IF_ERROR(
        AddTensor(place, {std::move(tensor), data.subspan(tensor.begin, tensor.end - tensor.begin),
                          /*shard=*/0, file}));
  }
  AddMetadata(header->metadata);
  return Status::Ok();
}

Status SafetensorsFiles::AddTensor(const std::filesystem::path& place, FileTensor tensor) {
  const auto [entry, is_new] = file_of_.emplace(tensor.name, place);
  if (!is_new) {
    return Status::InvalidArgument("tensor " + Quoted(tensor.name) + " is in two files: " +
                                   entry->second.string() + " and " + place.string());
  }
  tensors_.push_back(std::move(tensor));
  return Status::Ok();
}

void SafetensorsFiles::AddMetadata(const SafetensorsMetadata& metadata) {
  for (const auto& [key, value] : metadata) {
    const auto [entry, is_new] = metadata_.emplace(key, value);
    if (!is_new && entry->second != value) conflicts_.push_back(key);
  }
}

Status SafetensorsFiles::AddIndex(const std::filesystem::path& path) {
  VARVE_ASSIGN_OR_RETURN(const auto index, InputFile::Open(path));
  VARVE_RETURN_IF_ERROR(index->Fetch(index->bytes()));
  const std::string_view text(reinterpret_cast<const char*>(index->bytes().data()),
                              index->bytes().size());
  Result<WeightMap> weight_map = ParseSafetensorsIndex(text);
  if (!weight_map.ok()) return weight_map.status().WithContext(path.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : *weight_map) names.insert(file);
  for (const std::string& name : names) {
    Status status = AddFile(path.parent_path() / name);
    if (!status.ok()) return status.WithContext(path.string());
  }
  return CheckIndex(path, *weight_map);
}

// By now no tensor is in two files. So index and files agree if each tensor that was read is in the
// file that the index says, and as many were read as the index names. Tensors of other files do not
// matter.
Status SafetensorsFiles::CheckIndex(const std::filesystem::path& path,
                                    const WeightMap& weight_map) const {
  std::set<std::filesystem::path> places;
  const std::filesystem::path folder = Place(path).parent_path();
  for (const auto& [name, file] : weight_map) places.insert(folder / file);
  std::set<std::string_view> read;
  for (const auto& [name, place] : file_of_) {
    if (!places.contains(place)) continue;
    read.insert(name);
    const std::string file = place.filename().string();
    const auto entry = weight_map.find(name);
    if (entry != weight_map.end() && entry->second == file) continue;
    return Status::InvalidArgument(
        path.string() + ": tensor " + Quoted(name) + " is in the file " + Quoted(file) +
        (entry == weight_map.end() ? ", but the index does not name it"
                                   : ", but the index says " + Quoted(entry->second)));
  }
  for (const auto& [name, file] : weight_map) {
    if (read.contains(name)) continue;
    return Status::InvalidArgument(path.string() + ": tensor " + Quoted(name) +
                                   " is not in the file " + Quoted(file));
  }
  return Status::Ok();
}

}  // namespace varve::internal::formats
