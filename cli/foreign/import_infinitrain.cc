// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cli/foreign/import_source.h"
#include "cli/foreign/infinitrain_fields.h"
#include "cli/foreign/infinitrain_items.h"
#include "cli/formats/infinitrain_state.h"

namespace varve::internal::cli {
namespace {

Status ReadState(const std::string& text, ImportSource* source) {
  VARVE_ASSIGN_OR_RETURN(const nlohmann::json root, formats::ParseInfiniTrainState(text));
  VARVE_ASSIGN_OR_RETURN(InfiniTrainFields fields, FieldsFromJson(root));
  source->step = fields.step;
  source->state = std::move(fields.state);
  source->topology = std::move(fields.topology);
  source->items[kInfiniTrainStateItem] = text;
  return Status::Ok();
}

}  // namespace

Result<ImportSource> ReadInfiniTrain(std::span<const std::filesystem::path> paths) {
  VARVE_ASSIGN_OR_RETURN(const formats::InfiniTrainFiles files,
                         formats::InfiniTrainFiles::Open(paths));
  ImportSource source;
  source.tensors = files.tensors();
  source.items[kInfiniTrainLayoutItem] = BuildLayoutItem(files.layout());
  if (files.state_text()) {
    const Status status = ReadState(*files.state_text(), &source);
    if (!status.ok()) return status.WithContext(files.state_path().string());
  }
  for (const std::filesystem::path& other : files.others()) {
    source.notes.push_back(other.string() + " is not imported");
  }
  return source;
}

}  // namespace varve::internal::cli
