// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "cli/foreign/import_source.h"
#include "cli/foreign/metadata.h"
#include "cli/formats/safetensors_files.h"

namespace varve::internal::cli {
namespace {

// Trainers use these names for the state of their optimizer, as the first or any part of a name
// between dots or slashes.
constexpr std::string_view kFirstParts[] = {"adam", "master", "momentum", "optim", "optimizer"};
constexpr std::string_view kAnyParts[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq",
                                          "momentum_buffer"};

// A safetensors file does not say what its tensors are to the trainer.
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

}  // namespace

Result<ImportSource> ReadSafetensors(std::span<const std::filesystem::path> paths, uint64_t step) {
  VARVE_ASSIGN_OR_RETURN(const formats::SafetensorsFiles files,
                         formats::SafetensorsFiles::Open(paths));
  ImportSource source;
  source.tensors = files.tensors();
  for (formats::FileTensor& tensor : source.tensors) {
    if (IsOptimizerState(tensor.name)) tensor.role = TensorRole::kOptimizer;
  }
  if (!files.metadata().empty()) source.state = StateFromMetadata(step, files.metadata());
  for (const std::string& key : files.conflicting_metadata()) {
    source.notes.push_back("the files disagree about the metadata \"" + key +
                           "\"; the first one's is kept");
  }
  return source;
}

}  // namespace varve::internal::cli
