// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cli/formats/safetensors_files.h"
#include "cli/import_source.h"
#include "cli/metadata.h"

namespace varve::cli {

Result<ImportSource> ReadSafetensors(std::span<const std::filesystem::path> paths, uint64_t step) {
  VARVE_ASSIGN_OR_RETURN(formats::SafetensorsFiles opened, formats::SafetensorsFiles::Open(paths));
  const auto files = std::make_shared<const formats::SafetensorsFiles>(std::move(opened));
  ImportSource source;
  source.files = files;
  source.tensors = files->tensors();
  if (!files->metadata().empty()) source.state = StateFromMetadata(step, files->metadata());
  for (const std::string& key : files->conflicting_metadata()) {
    source.notes.push_back("the files disagree about the metadata \"" + key +
                           "\"; the first one's is kept");
  }
  return source;
}

}  // namespace varve::cli
