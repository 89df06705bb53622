// SPDX-License-Identifier: Apache-2.0
//
// RepairStore makes a damaged store usable again. It makes one new store, which holds every step
// that can still be read whole. Then it exchanges the folder of the new store with that of the
// damaged one.
//
//   const auto report = varve::RepairStore("ckpt", {.dry_run = true});  // what would be lost
//   if (!report.ok()) return report.status();
//   for (const auto& step : report->lost) std::puts(step.reason.c_str());
//   return varve::RepairStore("ckpt").status();
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/result.h"

namespace varve {

struct RepairOptions {
  // True: only finds out what a repair would keep and what it would lose.
  bool dry_run = false;
  // True: what can be read of a lost step is kept in another run (RepairReport::PartialStep).
  bool keep_partial = false;
  // A backup of the store: its folder, or the URL of an object store (varve/remote.h), whose newest
  // snapshot is used. A step that cannot be read in `path` is taken from the backup. A step that
  // may have lost its trainer progress or topology is taken from there if the backup has this step
  // from the same save. Empty = there is none.
  std::string from{};
  // The key of a sealed store. The repaired store is sealed with it. A table file whose tag
  // (varve/seal.h) is wrong counts as damaged.
  std::string key{};
  Progress progress{};  // in bytes. It starts again for each part of the work
};

// Says what a repair did, or what it would do.
struct RepairReport {
  struct KeptStep {
    CheckpointId id;
    bool is_from_backup = false;
    // Texts that say what of the step may be missing, or that the whole step may be out of date.
    // Empty: there are no doubts.
    std::vector<std::string> doubts;
  };
  struct LostStep {
    CheckpointId id;
    std::string reason;  // the first that was found
    // The tensors that cannot be read. Empty: the names of the tensors are lost, too, or only
    // something else of the step is damaged, such as an item. `reason` says which.
    std::vector<std::string> tensors;
    // True: some of its tensors can be read whole, so RepairOptions::keep_partial keeps them.
    bool has_readable_tensors = false;
  };
  // What is kept of a lost step. It is kept in another run, which holds only such steps. There the
  // step keeps its number, time, parent and metrics, and loses its tags.
  struct PartialStep {
    CheckpointId id;  // of the lost step, which is in `lost`, too
    // The name of that run: RUN~damaged, or RUN~damaged2 and so on if the name is taken. RUN is the
    // run of the lost step.
    std::string run;
    // Names, sorted. A tensor is kept only if it can be read whole, with all its shards. A lost
    // tensor is not named if its name is lost, too.
    std::vector<std::string> kept_tensors, lost_tensors;
    // One text for each other loss: an item, the trainer progress, the topology, or how many
    // tensors or items have lost their records.
    std::vector<std::string> other_losses;
    bool is_from_backup = false;
    std::vector<std::string> doubts;  // as those of KeptStep
  };

  // What is wrong with the store. Empty: the store is sound, and the repair has changed nothing.
  std::vector<std::string> damage;
  std::vector<KeptStep> kept;  // ordered by run and step, and so is `lost`
  std::vector<LostStep> lost;
  std::vector<PartialStep> partial;   // what is kept of steps in `lost`
  std::vector<std::string> warnings;  // what else is lost, or may be
  // Where the damaged store lies now. Empty: the store was not replaced.
  std::filesystem::path damaged_store;
  std::chrono::duration<double> elapsed{};
};

// Repairs the store in `path`. Nothing is written to the damaged store, with one exception. A pipe,
// a folder or a device that has the name of db/LOCK, db/IDENTITY or a log is removed. If it is a
// folder that is not empty, it is renamed. A dry run does neither. The new store is made in the
// folder `path`~repair beside it, and every chunk of it is read and verified. Then one rename
// exchanges the two stores. A second one moves the damaged store to `path`~damaged, or
// `path`~damaged2 and so on. The damaged store is never removed. So after an error or a crash at
// any moment, `path` holds the store as it was, or the repaired one. An interrupted call may leave
// the damaged store in `path`~repair. The next call moves it to `path`~damaged, and removes what
// else is left.
//
// The new store gets the owner, the group and the modes of the damaged one. If this user may not
// give files away, `warnings` says so.
//
// A step is kept only if its tensors, items, trainer progress and topology can all be read, and its
// tensors and items match the digests that were saved with them. Kept steps have their digests,
// metrics and tags as before, and runs still say which step they were forked from. The store gets a
// new id, so the next backup needs a new folder. A store without damage stays as it is. To know
// that a store has no damage, the repair reads all of it.
//
// With `keep_partial`, the tensors of a lost step that can be read whole are kept in the run of
// PartialStep::run. So all other runs have whole steps only. Nothing is kept of a step whose record
// is lost, because nothing then says which tensors belong together.
//
// After the repair, the newest steps may be missing in two cases. In both, `warnings` says so, and
// the repair also looks for newer steps in `from` (below).
//
//   - The manifest and SYNCED are both lost or damaged. The manifest lists the table files. SYNCED
//     says how long the manifest is.
//   - The manifest, CURRENT or the seal of a sealed store is lost or damaged, and the manifest that
//     the repair uses does not name all table files in db/. CURRENT names the newest manifest.
//
// FORMAT, the manifest and CURRENT have copies in spare/. If the manifest is lost or damaged, the
// repair uses its copy. If SYNCED is lost, too, the repair uses the manifest or its copy, whichever
// can be read further. A CURRENT that names an older manifest than its copy counts as damaged.
//
// A step of `from` is *newer* if it was saved later than all saves that can still be seen in the
// damaged store. If the damaged store has no step of this run and number, the repair takes the
// newer step. If the damaged store has such a step, that step is replaced only if `from` is a
// *successor* of the damaged store and the newer step can be read. Each newer step gets a doubt.
//
// `from` is a successor of the damaged store if four things are true. It is a folder. BackUp or
// Pull made it from this store. No writer has opened it since. Its newest table file is newer than
// that of the damaged store. If a successor has at least one newer step, the repair prefers its
// tags and metrics where both stores have them.
//
// The file system needs room for a second copy of the steps that are kept.
//
// Thread rule: any thread. One call at a time for each store. No writer may have the store open.
// Readers that have it open go on reading the damaged store. A StopScope (varve/stop.h) ends the
// call with kAborted.
//
// kNotFound: no store. kLocked: a writer has it open. kCorruption has these cases:
//
//   - `from` cannot be opened, because it is damaged.
//   - The new store did not pass its check.
//   - FORMAT and its copy are both lost or damaged.
//   - SYNCED says how long the manifest was. Neither the manifest nor its copy can be read
//     that far.
//   - SYNCED does not say how long the manifest was. Neither the manifest nor its copy can be read.
//   - CURRENT is lost or damaged, and nothing says which manifest is the newest.
//   - The copy of CURRENT names a newer manifest than CURRENT does, and this manifest is lost.
//   - A link lies in the place of a folder or file of the store.
//
// kFailedPrecondition has these cases:
//
//   - `path` is the root or a member of a group.
//   - `from` is no backup of the store.
//   - The file system has no hard links, or cannot exchange folders.
//   - FORMAT and its copy differ, and no step says which is right.
//   - The store is sealed, and `key` is not its key. Or it is not sealed, and a key is given.
//   - A newer version of varve made the store.
//   - `path`~repair holds what no repair has made, or still holds the damaged store.
//
// kIOError: for example, the disk is full, or this user may not read a file of the store or of
// `from`. If `from` is a URL, errors of OpenRemote are possible, too. After an error, `path` holds
// the store as it was, or the repaired one (above).
Result<RepairReport> RepairStore(const std::filesystem::path& path,
                                 const RepairOptions& options = {});

}  // namespace varve
