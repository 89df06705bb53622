// SPDX-License-Identifier: Apache-2.0
//
// A group is a set of ranks that save one checkpoint together. A rank is usually a process. Each
// rank has a store of its own, called a member. The root of the group is the folder with all
// members. It lies on a file system that all ranks share.
//
//   VARVE_ASSIGN_OR_RETURN(const uint64_t epoch,      // one process, at each start
//                          varve::Group::StartEpoch("root", num_ranks));
//   // ... hand `epoch` to all ranks. Then on each of them:
//   VARVE_ASSIGN_OR_RETURN(auto store, varve::Group::Join("root", {.rank = rank, .epoch = epoch}));
//   VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step));   // all ranks, the same run and step
//   ...                                                        // Put what this rank holds
//   VARVE_RETURN_IF_ERROR(writer->Commit().status());          // the same Status on all ranks
//
// Join returns a Store. Store::Open and Store::OpenForReading also take a root. A checkpoint of a
// group holds the tensors of all ranks. The shards of one name are numbered over all ranks: first
// those of rank 0 in the order of their numbers, then those of rank 1, and so on. Rank 0 gives the
// topology, the tags, the metrics, and the trainer progress except its `rng`. Items and states of
// random number generators (TrainerProgress::rng) are those of all ranks. If several ranks have an
// item NAME, the item of the lowest rank keeps its name. The others are called NAME@RANK. Several
// ranks may save a generator with the same RngState::rank and RngState::generator. The checkpoint
// then has the generator that rank RngState::rank saved. If rank RngState::rank saved no such
// generator, the checkpoint has the one of the lowest rank that saved it.
//
// If one rank fails or takes too long, the save fails on all ranks, and nothing of it is visible.
// Each start of the job is an epoch. After a new start, ranks of earlier epochs can change nothing,
// even if one of their processes wakes up later.
//
// Thread rule: the functions may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "varve/store.h"

namespace varve {

struct JoinOptions {
  uint32_t rank = 0;   // less than the `num_ranks` of StartEpoch
  uint64_t epoch = 0;  // the result of StartEpoch
  // The name of this rank's host. A rank goes on with its last member if it had that member on the
  // same host. Otherwise it takes a member of this host that no rank uses any more, or makes a new
  // one. Empty = the host name of the system.
  std::string host{};
  // How long a save waits for the other ranks. After that the save fails, and the error names the
  // ranks that are missing.
  std::chrono::milliseconds timeout{120000};
  StoreOptions store{};
};

// A save that has started and is neither committed nor given up.
struct OpenSave {
  CheckpointId id;
  std::vector<uint32_t> missing_ranks;  // ranks that have not saved their part
};

// Describes the state of a group.
struct GroupStatus {
  uint64_t epoch = 0;      // the newest one
  uint32_t num_ranks = 0;  // ranks of that epoch
  uint64_t num_members = 0;
  uint64_t num_log_files = 0;  // in log/ of the root, where the ranks record what they do
  std::vector<OpenSave> open_saves;
};

class Group {
 public:
  // Records a new start of the job, with this many ranks, and returns its number, the epoch. Makes
  // the root when there is none. Saves that earlier epochs have not finished are given up.
  // kFailedPrecondition: the folder holds something else. kInvalidArgument: `num_ranks` is 0.
  // kAborted: another process has started an epoch at the same time.
  static Result<uint64_t> StartEpoch(const std::filesystem::path& root, uint32_t num_ranks);

  // Opens the group as one of its ranks. kNotFound: `root` is no root of a group. kAborted: there
  // is a later epoch. kInvalidArgument: there is no such rank in the epoch. kFailedPrecondition: a
  // newer varve made the group, or the key of `options.store` does not fit this rank's member.
  static Result<std::unique_ptr<Store>> Join(const std::filesystem::path& root,
                                             const JoinOptions& options);

  // IsRoot says whether a folder is the root of a group. ReadStatus says what is in the root.
  // kNotFound: `root` is no root of a group.
  static bool IsRoot(const std::filesystem::path& path);
  static Result<GroupStatus> ReadStatus(const std::filesystem::path& root);
};

}  // namespace varve
