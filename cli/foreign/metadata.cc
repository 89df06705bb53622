// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/metadata.h"

#include <charconv>
#include <string>
#include <string_view>
#include <variant>

namespace varve::cli {
namespace {

constexpr std::string_view kPrefix = "safetensors.";

}  // namespace

TrainerProgress StateFromMetadata(uint64_t step, const formats::SafetensorsMetadata& metadata) {
  TrainerProgress state;
  state.global_step = static_cast<int64_t>(step);
  for (const auto& [key, value] : metadata) {
    state.extra[std::string(kPrefix) + key] = value;
    int64_t samples = 0;
    const char* const end = value.data() + value.size();
    const bool is_count = std::from_chars(value.data(), end, samples).ptr == end && samples >= 0;
    if (is_count && (key == "consumed_samples" || key == "consumed_train_samples")) {
      state.consumed_samples = samples;
    }
  }
  return state;
}

formats::SafetensorsMetadata MetadataFromState(const TrainerProgress& state) {
  formats::SafetensorsMetadata metadata;
  for (const auto& [key, value] : state.extra) {
    const auto* text = std::get_if<std::string>(&value);
    if (text != nullptr && key.starts_with(kPrefix)) metadata[key.substr(kPrefix.size())] = *text;
  }
  return metadata;
}

}  // namespace varve::cli
