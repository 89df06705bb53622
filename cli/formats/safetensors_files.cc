// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/safetensors_files.h"

#include <string_view>
#include <utility>

#include "cli/formats/shard_set.h"

namespace varve::internal::formats {
namespace {

constexpr std::string_view kUsualNames[] = {"model.safetensors", "model.safetensors.index.json"};

}  // namespace

Result<SafetensorsFiles> SafetensorsFiles::Open(std::span<const std::filesystem::path> paths) {
  SafetensorsFiles files;
  ShardSet shards(kUsualNames);
  VARVE_RETURN_IF_ERROR(shards.Read(
      paths, [&](const std::filesystem::path& path) { return files.AddFile(path, &shards); }));
  return files;
}

Status SafetensorsFiles::AddFile(const std::filesystem::path& path, ShardSet* shards) {
  VARVE_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  Result<SafetensorsHeader> header = ParseSafetensors(file->bytes(), FetcherOf(file.get()));
  if (header.status().code() == StatusCode::kInvalidArgument) {
    return header.status().WithContext(path.string());
  }
  VARVE_RETURN_IF_ERROR(header.status());  // the file's own errors name it
  const std::span<const std::byte> data = file->bytes().subspan(header->data_begin);
  for (SafetensorsTensor& tensor : header->tensors) {
    VARVE_RETURN_IF_ERROR(shards->AddTensor(tensor.name));
    const auto bytes = data.subspan(tensor.begin, tensor.end - tensor.begin);
    tensors_.push_back({std::move(tensor), bytes, /*shard=*/0, file});
  }
  AddMetadata(header->metadata);
  return Status::Ok();
}

void SafetensorsFiles::AddMetadata(const SafetensorsMetadata& metadata) {
  for (const auto& [key, value] : metadata) {
    const auto [entry, is_new] = metadata_.emplace(key, value);
    if (!is_new && entry->second != value) conflicts_.push_back(key);
  }
}

}  // namespace varve::internal::formats
