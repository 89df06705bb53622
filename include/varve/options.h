// SPDX-License-Identifier: Apache-2.0
//
// Every setting of varve, with a default that suits most.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace varve {

// How hard the encoder tries. Stored frames can always be read, whatever the setting is now.
enum class Compression {
  kAuto,  // the smaller of keyframe and delta, at full speed
  kNone,  // raw bytes: for incompressible data or the fastest possible save
  kFast,  // keyframes only, so no base is read
  kMax,   // try every predictor on every chunk
};

struct StoreOptions {
  Compression compression = Compression::kAuto;
  // Bytes that a save may hold besides the state: staging, encoded chunks, RocksDB's buffers.
  uint64_t pipeline_budget_bytes = uint64_t{256} << 20;
  // Worker threads of a save, a restore and a check. 0 = one for each core this process may use.
  int num_threads = 0;
  // A chain of deltas is cut when reading a chunk would decode more frames than this ...
  int max_delta_depth = 8;
  // ... or more encoded bytes than this many times its keyframe's.
  double max_path_ratio = 2.0;
};

struct CreateOptions {
  // The digest seed that the members of a group share. Unset = random, which is right for a lone
  // store.
  std::optional<uint64_t> digest_seed;
  StoreOptions store;
};

// Called now and then from a worker of a long operation, at most some ten times a second.
// `total` is 0 while unknown. Must not call into the store.
using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// What to do when a saved step exists already.
enum class OnExisting {
  kError,  // kAlreadyExists from Begin
  // The commit swaps the two. A reader sees the old or the new, never a mix. Tags belong to the
  // step's number, so they stay and name the new one. Metrics belong to what was saved, so they go.
  kReplace,
  // The commit moves the step and the later ones to a new run RUN~1, ..., as Store::Rewind does.
  kFork,
};

struct SaveOptions {
  std::string run = "main";  // made on first use. ValidateRun says which names are allowed
  OnExisting on_existing = OnExisting::kError;
  // The step whose chunks are compared position by position. Unset = the newest of the run.
  std::optional<uint64_t> parent{};
  // True: compares every chunk byte for byte before sharing it. For data of foreign origin, whose
  // author might know the store's digest seed. It costs one read and one decode for each shared
  // chunk.
  bool verify_sharing = false;
  Progress progress;  // of Commit, in raw bytes
  // For this save alone. Unset = the store's.
  std::optional<Compression> compression{};
  // Worker threads of this save. 0 = the store's.
  int num_threads = 0;
  // True: besides the thread that calls Commit, only threads of low priority work, none of them
  // TBB's. For saves in the background of a training.
  bool low_priority = false;
};

struct CopyOptions {
  std::string run;  // the run to save in. Empty = the run of the same name
  OnExisting on_existing = OnExisting::kError;
  Progress progress;  // of each checkpoint, in raw bytes
};

struct DropOptions {
  // True: reclaims at once. False: the space comes back at the next Reclaim.
  bool reclaim = true;
};

struct ReclaimOptions {
  // True: rewrites every file that holds any dead chunk, not only files more than half dead.
  bool all = false;
};

struct CheckOptions {
  // True: reads and decodes every chunk and compares its digest. False: checks structure only.
  bool read_data = false;
  // With read_data: checks this share of the chunks, in (0, 1], chosen anew each time.
  double read_data_fraction = 1.0;
  Progress progress;
};

}  // namespace varve
