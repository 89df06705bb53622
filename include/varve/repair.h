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
  // The folder of a backup of the store, or the URL of an object store (varve/remote.h), which
  // stands for the newest snapshot there. Steps that cannot be read are taken from there. Empty =
  // there is none.
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
    // Each doubt names what may be missing or out of date: a part of the step, or all of it.
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
  // What is kept of a lost step, in a run that has only such steps. The step has the same number
  // there, and its time, parent and metrics, and no tags.
  struct PartialStep {
    CheckpointId id;  // of the lost step, which is in `lost`, too
    // The run that has what is kept: the name of the lost step's run with ~damaged, or ~damaged2
    // and so on if there is such a run.
    std::string run;
    // Names, sorted. A tensor is kept only if it can be read whole, with all its shards. A lost
    // tensor is not named if its name is lost, too.
    std::vector<std::string> kept_tensors, lost_tensors;
    // What else of the step is lost: an item, its trainer progress, its topology. Also the number
    // of tensors or items whose records are lost.
    std::vector<std::string> other_losses;
    bool is_from_backup = false;
    std::vector<std::string> doubts;  // as those of KeptStep
  };

  // What is wrong with the store. Empty: nothing, and the repair has changed nothing.
  std::vector<std::string> damage;
  std::vector<KeptStep> kept;  // by run and step, as `lost` is
  std::vector<LostStep> lost;
  std::vector<PartialStep> partial;   // what is kept of steps in `lost`
  std::vector<std::string> warnings;  // what else is lost, or may be
  // Where the damaged store lies now. Empty: the store was not replaced.
  std::filesystem::path damaged_store;
  std::chrono::duration<double> elapsed{};
};

// Repairs the store in `path`. Nothing is written to the damaged store. The new store is made in
// the folder `path`~repair beside it, and every chunk of it is read and verified. Then one rename
// exchanges the two stores. A second one moves the damaged store to `path`~damaged, or
// `path`~damaged2 and so on. The damaged store is never removed. So after an error or a crash at
// any moment, `path` holds the store as it was, or the repaired one. The next call removes what an
// interrupted one has left. If the damaged store was not yet moved to `path`~damaged, it is moved
// first.
//
// A step is kept only if its tensors, items, trainer progress and topology can all be read, and its
// tensors and items match the digests that were saved with them. Kept steps have their digests,
// metrics and tags as before, and runs still say which step they were forked from. The store gets a
// new id, so the next backup needs a new folder. A store without damage stays as it is. To find
// that out, all of it is read.
//
// With `keep_partial`, a lost step of which tensors can be read whole is kept in part, in a run of
// its own kind. So its own run has whole steps only. Nothing is kept of a step whose record is
// lost, because nothing says which tensors are of one save.
//
// A store has a copy of its manifest (spare/), a note of the manifest's length (SYNCED), and a file
// that names the newest manifest (CURRENT). If the manifest is lost or damaged, the repair takes
// the copy. If the note is lost, too, it takes whichever of the manifest and its copy can be read
// further. *The manifest used* is the manifest or its copy, whichever the repair took. After the
// repair the newest steps may be missing in two cases. First case: the manifest and SYNCED are both
// lost or damaged. Second case: the manifest or CURRENT is lost or damaged, and db/ holds table
// files that the manifest used does not name. In both cases `warnings` says so, and the repair also
// takes the newer steps of `from`. A newer step is one that was saved later than every save that
// the damaged store still shows. Each newer step gets a doubt.
//
// `from` counts as later than the damaged store only if it is a folder, BackUp or Pull made it of
// this store, no writer has opened it since, and its newest table file is newer than that of the
// damaged store. If `from` counts as later, each newer step that can be read replaces an earlier
// save of the same run and step. If `from` counts as later and has at least one newer step, the
// repair prefers the tags and metrics of `from` where both stores have them. If `from` does not
// count as later, the repair takes a newer step only if the damaged store has no step of that run
// and number.
//
// The file system needs room for the new store, which takes as much as the steps that it keeps.
//
// Thread rule: any thread. One call at a time for each store. No writer may have the store open.
// Readers that have it open go on reading the damaged store. A StopScope (varve/stop.h) ends the
// call with kAborted.
//
// kNotFound: there is no store. kLocked: a writer has it open. kCorruption: FORMAT and its copy in
// spare/ are both lost or damaged. Or SYNCED says how long the manifest was, and neither the
// manifest nor its copy can be read that far. Or SYNCED does not say it, and neither can be read at
// all. Or CURRENT is lost or damaged, and nothing says which manifest is the newest.
// kFailedPrecondition: `path` is the root or a member of a group, `from` is no backup of the store,
// or the file system has no hard links or cannot exchange folders. kIOError: for example, the disk
// is full. If `from` is a URL: also the errors of OpenRemote, and the store stays as it was.
Result<RepairReport> RepairStore(const std::filesystem::path& path,
                                 const RepairOptions& options = {});

}  // namespace varve
