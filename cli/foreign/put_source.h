// SPDX-License-Identifier: Apache-2.0
//
// Puts what an import has read into a save. Functions are stateless.
#pragma once

#include <memory>

#include "cli/foreign/import_source.h"
#include "store/save/save_session.h"
#include "varve/result.h"

namespace varve::internal::cli {

// Puts all tensors, trainer state, topology and items. The tensors are read when the session
// commits, chunk by chunk, and the session shares `source`. The commit fails when a file has
// changed since it was opened, or has another checksum than it says.
Status PutSource(const std::shared_ptr<const ImportSource>& source, SaveSession* session);

}  // namespace varve::internal::cli
