// SPDX-License-Identifier: Apache-2.0
//
// BackUp makes a consistent copy of a store. A process that has the store open for writing may go
// on meanwhile. BackUp needs no help from it.
//
//   const auto report = varve::BackUp("ckpt", "/backup/ckpt");   // again later: copies what is new
//   if (!report.ok()) return report.status();
//
// The copy is an ordinary store: it can be opened and checked, and a training can continue from it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "varve/options.h"
#include "varve/result.h"

namespace varve {

struct BackupOptions {
  // True: also reads and decodes every chunk of the copy. The structure of the copy and every
  // copied file are always verified.
  bool read_data = false;
  Progress progress;  // in bytes of files that are copied. The total grows if the store does
};

struct BackupReport {
  uint64_t num_steps = 0;     // steps in the copy
  uint64_t copied_files = 0;  // files that the copy did not have before
  uint64_t copied_bytes = 0;  // bytes of these files
  uint64_t total_bytes = 0;   // bytes of all files of the copy
  // Files that were damaged or lost in the earlier copy, and sound in the store. They were
  // replaced.
  std::vector<std::string> mended_files;
  std::chrono::duration<double> elapsed{};
};

// Makes `destination` a copy of the store as it is at some moment during the call, or brings an
// earlier copy up to date. Takes no lock on the store and writes nothing to it. BackUp needs no
// key, and the copy of a sealed store is sealed. An earlier copy stays as it was until the end.
// Then one rename puts the new copy in its place. So after an error or a crash, the earlier or the
// new copy is there. The contents of a store lie in table files of RocksDB, which never change. So
// a table file of the store and the file of the same name in the earlier copy should be equal. If
// they differ, there are three possible reasons. The store's file is damaged. The copy's file is
// damaged. A writer has opened the copy and saved steps of its own there. BackUp verifies both
// files to find out which of these is true. If only the copy's file is damaged, the store's file
// replaces it.
//
// Thread rule: any thread. One call at a time for each destination.
// kNotFound: there is no store. kInvalidArgument: `store` and `destination` are the same folder.
// kFailedPrecondition has three cases. `store` is the root of a group. `destination` lies inside a
// store. `destination` holds something else, the copy of another store, or a copy with steps of its
// own, which would be lost. kLocked: the destination is in use. kCorruption: the store or a file of
// the copy is damaged. The message names the file. kAborted: a StopScope ended the call
// (varve/stop.h). After an error the earlier copy is there as it was.
Result<BackupReport> BackUp(const std::filesystem::path& store,
                            const std::filesystem::path& destination,
                            const BackupOptions& options = {});

}  // namespace varve
