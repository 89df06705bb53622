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
  kFast,  // keyframes only: no base is read
  kMax,   // try every predictor on every chunk
};

struct StoreOptions {
  Compression compression = Compression::kAuto;
  // Bytes that a save may hold beside the state itself: staging, encoded chunks, RocksDB's buffers.
  uint64_t pipeline_budget_bytes = uint64_t{256} << 20;
  // Worker threads of a save, a restore and a check. 0 = one for each core this process may use.
  int num_threads = 0;
  // A chain of deltas is cut when reading a chunk would decode more frames than this ...
  int max_delta_depth = 8;
  // ... or more encoded bytes than this many times its keyframe's.
  double max_path_ratio = 2.0;
};

struct CreateOptions {
  // Digest seed shared by the members of a group. Unset = random, which is right for a lone store.
  std::optional<uint64_t> digest_seed;
  StoreOptions store;
};

// Called now and then from a worker of a long operation, at most some ten times a second.
// `total` is 0 while unknown. Must not call into the store.
using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// What to do when a saved step exists already.
enum class OnExisting {
  kError,  // kAlreadyExists from Begin
  // The commit swaps the two; a reader sees the old or the new, never a mix. Tags are of the step's
  // number, so they stay and name the new one; metrics are of what was saved, so they go.
  kReplace,
  kFork,  // the commit moves it and the later steps to a new run RUN~1, ..., as Store::Rewind does
};

struct SaveOptions {
  std::string run = "main";  // made on first use; same rules as a tensor name, without '@'
  OnExisting on_existing = OnExisting::kError;
  // The step whose chunks are compared position by position. Unset = the newest of the run.
  std::optional<uint64_t> parent{};
  // Compare every chunk byte for byte before sharing it. For data of foreign origin, whose author
  // might know the store's digest seed; costs one read and one decode for each shared chunk.
  bool verify_sharing = false;
  Progress progress;  // of Commit, in raw bytes
  // For this save alone; unset = the store's.
  std::optional<Compression> compression{};
  // Worker threads of this save; 0 = the store's.
  int num_threads = 0;
  // Work on threads of low priority, none of them TBB's, beside the one that calls Commit: for
  // saves in the background of a training.
  bool low_priority = false;
};

struct CopyOptions {
  std::string run;  // the run to save in; empty = that of the same name
  OnExisting on_existing = OnExisting::kError;
  Progress progress;  // of each checkpoint, in raw bytes
};

struct DropOptions {
  // Reclaim at once (the default). When false the space comes back at the next Reclaim.
  bool reclaim = true;
};

struct ReclaimOptions {
  // Rewrite every file that holds any dead chunk, not only those more than half dead.
  bool all = false;
};

struct CheckOptions {
  // Read and decode every chunk and compare its digest; without it, structure only.
  bool read_data = false;
  // With read_data: check this share of the chunks, in (0, 1], chosen anew each time.
  double read_data_fraction = 1.0;
  Progress progress;
};

}  // namespace varve
