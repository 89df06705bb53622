// SPDX-License-Identifier: Apache-2.0
//
// A group: many ranks, each in a process of its own, that save one checkpoint together. The root is
// a folder on a file system that all of them share.
//
//   VARVE_ASSIGN_OR_RETURN(const uint64_t epoch,      // one process, at each start
//                          varve::Group::StartEpoch("root", num_ranks));
//   // ... hand `epoch` to all ranks; then on each of them:
//   VARVE_ASSIGN_OR_RETURN(auto store, varve::Group::Join("root", {.rank = rank, .epoch = epoch}));
//   VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step));   // all ranks, the same run and step
//   ...                                                        // Put what this rank holds
//   VARVE_RETURN_IF_ERROR(writer->Commit().status());          // the same Status on all ranks
//
// What Join returns is a Store. Store::Open and Store::OpenForReading take a root as well. A
// checkpoint of a group holds the tensors of all ranks. The shards of one name are numbered over
// all ranks: first those of rank 0 by their own numbers, then those of rank 1, and so on. Trainer
// state, topology, tags and metrics are those of rank 0. Items are those of all ranks: NAME of the
// lowest rank that has one, and NAME@RANK of others.
//
// What fails on one rank, or takes it too long, fails the save on all of them, and nothing of it is
// visible. After a restart the records of the ranks before it have no effect any more, even if one
// of their processes wakes up later.
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
  uint32_t rank = 0;
  uint64_t epoch = 0;  // what StartEpoch gave
  // Names the file system that the member stores of this rank lie on. A rank continues the store of
  // an earlier rank of its own host only. Empty = the system's host name.
  std::string host{};
  // How long a save waits for the other ranks. Then it is given up, with an error that names the
  // ranks that are missing.
  std::chrono::milliseconds timeout{120000};
  StoreOptions store{};
};

// A save that has started and is neither committed nor given up.
struct OpenSave {
  CheckpointId id;
  std::vector<uint32_t> missing_ranks;  // that have not saved their part
};

struct GroupStatus {
  uint64_t epoch = 0;      // of the newest start
  uint32_t num_ranks = 0;  // that it was for
  uint64_t num_members = 0;
  uint64_t num_log_files = 0;
  std::vector<OpenSave> open_saves;
};

class Group {
 public:
  // Notes a new start of the job, with this many ranks, and gives its number. Makes the root when
  // there is none. Saves that earlier ranks have not finished are given up. kFailedPrecondition:
  // the folder holds something else.
  static Result<uint64_t> StartEpoch(const std::filesystem::path& root, uint32_t num_ranks);

  // Opens the store of one rank. kAborted: there is a later start. kInvalidArgument: no such rank.
  static Result<std::unique_ptr<Store>> Join(const std::filesystem::path& root,
                                             const JoinOptions& options);

  // IsRoot says whether the folder is the root of a group. ReadStatus says what goes on there.
  static bool IsRoot(const std::filesystem::path& path);
  static Result<GroupStatus> ReadStatus(const std::filesystem::path& root);
};

}  // namespace varve
