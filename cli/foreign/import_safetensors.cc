// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/import_source.h"
#include "cli/foreign/metadata.h"
#include "cli/formats/safetensors_files.h"

namespace varve::internal::cli {

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
