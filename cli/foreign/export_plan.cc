// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/export_plan.h"

#include <algorithm>
#include <utility>

#include "base/util.h"
#include "cli/print.h"

namespace varve::internal::cli {

void ExportPlan::Add(std::filesystem::path path, std::string text) {
  ExportFile file{.path = std::move(path), .parts = {}};
  file.parts.emplace_back(std::move(text));
  files.push_back(std::move(file));
}

uint64_t ExportPlan::NumTensors() const {
  uint64_t count = 0;
  for (const ExportFile& file : files) {
    for (const ExportPart& part : file.parts) count += std::holds_alternative<TensorInfo>(part);
  }
  return count;
}

uint64_t ExportPlan::TotalBytes() const {
  uint64_t bytes = 0;
  for (const ExportFile& file : files) {
    for (const ExportPart& part : file.parts) {
      if (const auto* tensor = std::get_if<TensorInfo>(&part)) bytes += tensor->logical_bytes;
    }
  }
  return bytes;
}

bool IsFolder(const std::filesystem::path& out) {
  std::error_code ignored;
  return !out.has_filename() || std::filesystem::is_directory(out, ignored);
}

Status RefuseShards(const std::vector<TensorInfo>& tensors, std::string_view format) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name != tensors[i - 1].name) continue;
    return Status(StatusCode::kFailedPrecondition, "tensor \"" + tensors[i].name +
                                                       "\" is saved in several shards, which " +
                                                       std::string(format) + " cannot hold");
  }
  return Status::Ok();
}

Status NoteItems(const CheckpointReader& reader, std::string_view format, std::string_view own,
                 ExportPlan* plan) {
  VARVE_ASSIGN_OR_RETURN(std::vector<std::string> items, reader.ListBytes());
  if (!own.empty()) std::erase_if(items, [own](const auto& name) { return name.starts_with(own); });
  if (items.empty()) return Status::Ok();
  plan->notes.push_back(Count(items.size(), "opaque item") +
                        " not exported: " + std::string(format) + " has no place for such");
  return Status::Ok();
}

Result<std::optional<std::string>> FindItem(const CheckpointReader& reader, std::string_view name) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> items, reader.ListBytes());
  if (std::find(items.begin(), items.end(), name) == items.end()) {
    return std::optional<std::string>();
  }
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, reader.ReadBytes(name));
  return std::optional<std::string>(AsString(bytes));
}

}  // namespace varve::internal::cli
