// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/metadata.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <variant>

#include "cli/print.h"
#include "store/format/trainer_progress.h"

namespace varve::internal::cli {
namespace {

using formats::SafetensorsMetadata;

constexpr std::string_view kTextPrefix = "safetensors.";
// The key of `extra` that says as which step the metadata were imported. It has no dot, so it is no
// key of the metadata.
constexpr const char* kStepKey = "safetensors_step";
// Says which framework wrote the tensors. It does not change from step to step.
constexpr std::string_view kFormatKey = "format";

std::optional<int64_t> ParseCount(std::string_view text) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || last != end || count < 0) return std::nullopt;
  return count;
}

bool IsSamples(std::string_view key) {
  return key == "consumed_samples" || key == "consumed_train_samples";
}

// Returns what the trainer state knows of a key that holds a count.
std::optional<int64_t> CountOf(const TrainerProgress& state, std::string_view key) {
  if (IsSamples(key)) return state.consumed_samples;
  if (key == "step" || key == "global_step") return state.global_step;
  return std::nullopt;
}

std::optional<int64_t> ImportedStep(const TrainerProgress& state) {
  const auto found = state.extra.find(kStepKey);
  if (found == state.extra.end()) return std::nullopt;
  const auto* step = std::get_if<int64_t>(&found->second);
  return step == nullptr ? std::nullopt : std::optional(*step);
}

// True when the state holds what an import as this step makes of the metadata, and no more. Stores
// of before do not say the step of the import.
bool IsAsImported(const TrainerProgress& state, const SafetensorsMetadata& metadata) {
  const std::optional<int64_t> step = ImportedStep(state);
  if (step && *step != state.global_step) return false;
  TrainerProgress imported = StateFromMetadata(static_cast<uint64_t>(state.global_step), metadata);
  if (!step) imported.extra.erase(kStepKey);
  return EncodeTrainerProgress(imported) == EncodeTrainerProgress(state);
}

}  // namespace

TrainerProgress StateFromMetadata(uint64_t step, const SafetensorsMetadata& metadata) {
  TrainerProgress state;
  state.global_step = static_cast<int64_t>(step);
  state.extra[kStepKey] = state.global_step;
  for (const auto& [key, value] : metadata) {
    state.extra[std::string(kTextPrefix) + key] = value;
    const std::optional<int64_t> count = ParseCount(value);
    if (count && IsSamples(key)) state.consumed_samples = *count;
  }
  return state;
}

SafetensorsMetadata MetadataFromState(const TrainerProgress& state,
                                      std::vector<std::string>* notes) {
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : state.extra) {
    const auto* text = std::get_if<std::string>(&value);
    if (text != nullptr && key.starts_with(kTextPrefix))
      metadata[key.substr(kTextPrefix.size())] = *text;
  }
  if (metadata.empty() || IsAsImported(state, metadata)) return metadata;
  std::vector<std::string> others;
  for (auto& [key, value] : metadata) {
    const std::optional<int64_t> now = CountOf(state, key);
    if (now && ParseCount(value)) {
      value = std::to_string(*now);
    } else if (key != kFormatKey) {
      others.push_back("\"" + key + "\"");
    }
  }
  if (others.empty()) return metadata;
  const std::optional<int64_t> step = ImportedStep(state);
  notes->push_back("metadata of the import" +
                   (step ? " as step " + std::to_string(*step) : std::string()) +
                   ", unless the trainer has changed them: " + Join(others, ", "));
  return metadata;
}

}  // namespace varve::internal::cli
