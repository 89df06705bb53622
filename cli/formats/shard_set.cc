// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/shard_set.h"

#include <system_error>

#include "base/util.h"
#include "cli/formats/input_file.h"

namespace varve::internal::formats {
namespace {

constexpr std::string_view kIndexSuffix = ".index.json";

std::string InQuotes(std::string_view text) { return "\"" + std::string(text) + "\""; }

// Returns one path for all ways to write it. It does not resolve a link in the last component,
// because an index may name links.
std::filesystem::path Place(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto folder = std::filesystem::absolute(path, ignored).parent_path();
  return std::filesystem::weakly_canonical(folder, ignored) / path.filename();
}

}  // namespace

Status ShardSet::Read(std::span<const std::filesystem::path> paths, const ReadShard& read) {
  for (const std::filesystem::path& path : paths) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
      VARVE_RETURN_IF_ERROR(AddFolder(path, read));
    } else if (path.string().ends_with(kIndexSuffix)) {
      VARVE_RETURN_IF_ERROR(AddIndex(path, read));
    } else {
      VARVE_RETURN_IF_ERROR(AddFile(path, read));
    }
  }
  return Status::Ok();
}

Status ShardSet::AddFolder(const std::filesystem::path& path, const ReadShard& read) {
  std::string expected;
  for (const std::string_view name : usual_names_) {
    const std::filesystem::path file = path / name;
    std::error_code error;
    const bool is_there = std::filesystem::exists(file, error);
    if (error) return Status::IOError("look at " + file.string() + ": " + error.message());
    if (is_there) {
      const bool is_index = name.ends_with(kIndexSuffix);
      return is_index ? AddIndex(file, read) : AddFile(file, read);
    }
    expected += (expected.empty() ? "" : " or ") + std::string(name);
  }
  return Status::NotFound(path.string() + ": the folder has no " + expected);
}

Status ShardSet::AddFile(const std::filesystem::path& path, const ReadShard& read) {
  const std::filesystem::path place = Place(path);
  if (!places_.insert(place).second) return Status::Ok();
  reading_ = place;
  return read(path);
}

Status ShardSet::AddTensor(const std::string& name) {
  const auto [entry, is_new] = file_of_.emplace(name, reading_);
  if (is_new) return Status::Ok();
  return Status::InvalidArgument("tensor " + InQuotes(name) + " is in two files: " +
                                 entry->second.string() + " and " + reading_.string());
}

Status ShardSet::AddIndex(const std::filesystem::path& path, const ReadShard& read) {
  VARVE_ASSIGN_OR_RETURN(const auto index, InputFile::Open(path));
  VARVE_RETURN_IF_ERROR(index->Fetch(index->bytes()));
  Result<WeightMap> weight_map = ParseSafetensorsIndex(AsString(index->bytes()));
  if (!weight_map.ok()) return weight_map.status().WithContext(path.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : *weight_map) names.insert(file);
  for (const std::string& name : names) {
    const Status status = AddFile(path.parent_path() / name, read);
    if (!status.ok()) return status.WithContext(path.string());
  }
  return CheckIndex(path, *weight_map);
}

// By now no tensor is in two files. So index and files agree if each tensor that was read is in the
// file that the index says, and as many were read as the index names. Tensors of other files do not
// matter.
Status ShardSet::CheckIndex(const std::filesystem::path& path, const WeightMap& weight_map) const {
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
        path.string() + ": tensor " + InQuotes(name) + " is in the file " + InQuotes(file) +
        (entry == weight_map.end() ? ", but the index does not name it"
                                   : ", but the index says " + InQuotes(entry->second)));
  }
  for (const auto& [name, file] : weight_map) {
    if (read.contains(name)) continue;
    return Status::InvalidArgument(path.string() + ": tensor " + InQuotes(name) +
                                   " is not in the file " + InQuotes(file));
  }
  return Status::Ok();
}

}  // namespace varve::internal::formats
