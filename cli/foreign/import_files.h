// SPDX-License-Identifier: Apache-2.0
//
// An import as one call: what `varve import` does with its files, for other callers. Stateless.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/options.h"
#include "varve/result.h"
#include "varve/store.h"

namespace varve::internal::cli {

struct ImportRequest {
  std::vector<std::filesystem::path> files;
  std::string format;            // as the command's --format
  std::optional<uint64_t> step;  // unset: the files say it
  std::vector<std::string> tags;
  SaveOptions save;
};

// Reads the files and saves what they hold as one step. kInvalidArgument: a file is malformed, the
// format is unknown, or nobody says the step. Nothing is saved then. `notes` says what a user
// should know.
Result<SaveReport> ImportFiles(Store* store, ImportRequest request,
                               std::vector<std::string>* notes);

}  // namespace varve::internal::cli
