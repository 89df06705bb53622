// SPDX-License-Identifier: Apache-2.0
//
// A consistent copy of a store, taken while a writer may be at work and without its help.
//
//   const auto report = varve::BackUp("ckpt", "/backup/ckpt");   // again later: copies what is new
//   if (!report.ok()) return report.status();
//
// The copy is an ordinary store: open it, check it, train on from it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "varve/options.h"
#include "varve/result.h"

namespace varve {

struct BackupOptions {
  // True: also reads and decodes every chunk of the copy. Its structure and every copied file are
  // verified always.
  bool read_data = false;
  Progress progress;  // in bytes of files
};

struct BackupReport {
  uint64_t num_steps = 0;     // in the copy
  uint64_t copied_files = 0;  // that the copy did not have yet
  uint64_t copied_bytes = 0;
  uint64_t total_bytes = 0;  // of all files of the copy
  std::chrono::duration<double> elapsed{};
};

// Makes `destination` a copy of the store as it is at some moment during the call, or brings an
// earlier copy up to date. Takes no lock on the store and writes nothing to it. Until the last
// moment an earlier copy stays as it was. Then one rename makes it the new one, so a crash leaves
// either. Thread rule: any thread, and one call at a time for a destination.
//
// kNotFound: there is no store. kFailedPrecondition: `destination` holds something else, the copy
// of another store, or a copy that was written to since (its steps would be lost). kLocked: the
// destination is in use. kCorruption: the copy did not pass its check, and the earlier one stays.
Result<BackupReport> BackUp(const std::filesystem::path& store,
                            const std::filesystem::path& destination,
                            const BackupOptions& options = {});

}  // namespace varve
