// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/import_source.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include "cli/foreign/infinitrain_items.h"
#include "cli/foreign/llmc_items.h"
#include "cli/formats/llmc_state.h"

namespace varve::internal::cli {
namespace {

// Trainers use these names for the state of their optimizer, as the first or any part of a name
// between dots or slashes.
constexpr std::string_view kFirstParts[] = {"adam", "master", "momentum", "optim", "optimizer"};
constexpr std::string_view kAnyParts[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq",
                                          "momentum_buffer"};

// Leaves a step that the format cannot hold as it is. An export refuses it.
void SetLlmcStep(uint64_t step, std::string* item) {
  auto header = formats::ParseLlmcStateHeader(std::as_bytes(std::span(*item)));
  if (!header.ok() || step > formats::kMaxLlmcStep) return;
  header->step = step;
  formats::WriteLlmcProgress(*header, item);
}

}  // namespace

void ImportSource::SetStep(uint64_t new_step) {
  if (state) state->global_step = static_cast<int64_t>(new_step);
  if (step && *step != new_step) {
    items.erase(kInfiniTrainStateItem);
    for (auto& [name, item] : items) {
      if (name.starts_with(kLlmcStateItems)) SetLlmcStep(new_step, &item);
    }
  }
  step = new_step;
}

Result<ImportSource> ReadFiles(std::string_view format,
                               std::span<const std::filesystem::path> paths,
                               std::optional<uint64_t> step) {
  const bool is_known = std::find(std::begin(kImportFormats), std::end(kImportFormats), format) !=
                        std::end(kImportFormats);
  if (!is_known) {
    return Status::InvalidArgument("there is no format \"" + std::string(format) + "\"");
  }
  if (!step && !MaySayStep(format)) {
    return Status::InvalidArgument("the step is missing: " + std::string(format) +
                                   " files do not say it");
  }
  if (format == "infinitrain") return ReadInfiniTrain(paths);
  if (format == "llmc") return ReadLlmc(paths);
  if (format == "torch") return ReadTorch(paths);
  if (format == "dcp") return ReadDcp(paths);
  if (format == "npz") return ReadNpz(paths);
  return ReadSafetensors(paths, *step);
}

bool MaySayStep(std::string_view format) { return format != "safetensors" && format != "npz"; }

bool IsOptimizerState(std::string_view name) {
  const auto is_one_of = [](const auto& parts, std::string_view part) {
    return std::find(std::begin(parts), std::end(parts), part) != std::end(parts);
  };
  for (bool is_first = true;; is_first = false) {
    const size_t end = name.find_first_of("./");
    const std::string_view part = name.substr(0, end);
    if (is_one_of(kAnyParts, part) || (is_first && is_one_of(kFirstParts, part))) return true;
    if (end == std::string_view::npos) return false;
    name.remove_prefix(end + 1);
  }
}

}  // namespace varve::internal::cli
