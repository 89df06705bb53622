// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/infinitrain_items.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/formats/strict_json.h"

namespace varve::internal::cli {
namespace {

using nlohmann::json;

Status NoLayout(std::string_view problem) {
  return Status::Corruption("item " + std::string(kInfiniTrainLayoutItem) + ": " +
                            std::string(problem));
}

}  // namespace

std::string BuildLayoutItem(std::span<const formats::CkptLayout> layout) {
  json root = json::object();
  for (const formats::CkptLayout& file : layout) root[file.file] = file.tensors;
  return root.dump();
}

Result<std::vector<formats::CkptLayout>> ParseLayoutItem(std::string_view text) {
  const Result<json> root = formats::ParseStrictJson(text);
  if (!root.ok()) return NoLayout(root.status().message());
  if (!root->is_object()) return NoLayout("it is no object");
  std::vector<formats::CkptLayout> layout;
  for (const auto& [file, names] : root->items()) {
    if (file != formats::kModelCkpt && file != formats::kOptimizerCkpt) {
      return NoLayout("\"" + file + "\" is no file of InfiniTrain's");
    }
    formats::CkptLayout held{.file = file, .tensors = {}};
    if (!names.is_array()) return NoLayout("\"" + file + "\" holds no list of names");
    for (const json& name : names) {
      if (!name.is_string()) return NoLayout("\"" + file + "\" holds a name that is no string");
      held.tensors.push_back(name.get<std::string>());
    }
    layout.push_back(std::move(held));
  }
  return layout;
}

}  // namespace varve::internal::cli
