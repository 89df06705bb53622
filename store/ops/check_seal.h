// SPDX-License-Identifier: Apache-2.0
//
// Verifies that nobody without the key has changed a sealed store. Thread rule: any thread and any
// process, also while a writer works.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "store/db/sealed_manifest.h"
#include "store/db/sealer.h"
#include "varve/result.h"
#include "varve/store.h"

namespace varve::internal {

struct SealFacts {
  uint64_t num_files = 0;           // table files that have their tags
  std::vector<std::string> errors;  // each names a file
  SealedState state;                // what was verified
};

class StoreImpl;

// Adds to the report of a check whether the store is sealed. If it was opened with its key, also
// how many table files have their tags, and an error for each that has not.
Status CheckSeal(const StoreImpl& store, CheckReport* report);
// Reads the manifest and all table files. kFailedPrecondition: another key.
Result<SealFacts> VerifySeal(const std::filesystem::path& store, const Sealer& sealer);
// The same for the table files of a manifest, whose seal is not looked at.
Result<SealFacts> VerifyTags(const std::filesystem::path& store, const Sealer& sealer);

}  // namespace varve::internal
