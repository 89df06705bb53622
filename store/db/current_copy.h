// SPDX-License-Identifier: Apache-2.0
//
// spare/CURRENT says what db/CURRENT says: which manifest is the newest. With an older CURRENT and
// an older manifest in place of the newest ones, the store would read like an earlier state, and
// the next writer would delete the newer tables.
//
// The copy is written when CURRENT is durable, so it never names a manifest that CURRENT did not
// name. It is not synced. A power cut may leave an older copy or a torn one, which says nothing.
// Stateless. Any thread and any process, also while a writer works.
#pragma once

#include <filesystem>
#include <string>

#include "varve/result.h"
#include "varve/status.h"

namespace varve::internal {

// Copies CURRENT. One that cannot be copied has no copy then. Writers only.
void CopyCurrent(const std::filesystem::path& store);

// Returns the manifest that the copy names. Empty: there is no copy that can be read. An error:
// this process lacks what it takes to read it (IsShortage).
Result<std::string> ReadCurrentCopy(const std::filesystem::path& store);

// kCorruption: CURRENT names an older manifest than its copy.
Status CheckCurrentIsNewest(const std::filesystem::path& store);

}  // namespace varve::internal
