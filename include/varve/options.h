// SPDX-License-Identifier: Apache-2.0
//
// The settings of a store and of its operations. Each has a default that suits most uses. All types
// here are plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "varve/optimizer_step.h"

namespace varve {

// Says how much work the encoder does. Every mode is lossless. A reader needs no setting. A
// keyframe is a chunk encoded by itself. A delta is encoded against the same chunk of an earlier
// step.
enum class Compression {
  kAuto,  // stores raw bytes, a keyframe or a delta, by an estimate of which is smallest
  kNone,  // stores raw bytes, for incompressible data or the fastest possible save
  kFast,  // stores keyframes only, so no earlier chunk is read
  kMax,   // encodes every chunk in every way (docs/frame.md), and stores the smallest
};

// Says which entropy coder encodes the bytes that can be compressed, such as the exponents of
// weights. zstd and rANS take about the same space. A reader needs no setting.
enum class Entropy {
  // rANS for bytes that this machine reads faster in rANS than in zstd, and zstd for all others. A
  // machine with neither AVX2 nor AVX-512 writes no rANS.
  kAuto,
  kZstd,  // zstd frames, which other tools can read too. The choice for archives
  kRans,  // rANS, even where it is slow. Use it when faster machines will read the store
};

struct StoreOptions {
  Compression compression = Compression::kAuto;
  // The entropy coder. Each process that opens the store for writing chooses it anew. There is one
  // exception: in a store that was created with kZstd, or by an older version, all saves write
  // zstd, whatever the process chose. So programs that do not know rANS can read such a store. A
  // store that was created with kAuto may get rANS later, even if kAuto chose zstd at first.
  Entropy entropy = Entropy::kAuto;
  // Bytes of memory for the chunks that a save is encoding. The encoded chunks, and their copies in
  // the buffers of RocksDB, count too. Two chunks are encoded at a time even if they need more than
  // this. In addition, a save takes memory for each thread and each tensor (docs/decisions.md,
  // "Memory").
  uint64_t pipeline_budget_bytes = uint64_t{256} << 20;
  // Worker threads of a save, a restore and a check. 0 = one for each core this process may use.
  int num_threads = 0;
  // To read a delta, a reader decodes its chain: a keyframe, then each delta up to the one that is
  // read. `max_delta_depth` is the largest number of chunks in a chain, including the keyframe. 1
  // to 63. Other values are clamped. When a chain is full, the next delta is made against the
  // keyframe of the chain again. So one keyframe may start several chains. 1 = no deltas.
  int max_delta_depth = 8;
  // The limit of the encoded bytes in a chain, as a multiple of the encoded bytes of its keyframe.
  // A delta that would exceed the limit is made against the keyframe instead. The limit does not
  // apply to what is predicted from a step of an optimizer (SaveOptions::optimizer_step).
  double max_path_ratio = 2.0;
  // The same as `max_delta_depth`, for chunks that are predicted from a step of an optimizer. Such
  // a chunk may be predicted from up to three chunks: a weight and its two moments. The limit
  // counts the chunks on the longest way to a keyframe. After a save of keyframes, the first
  // predicted save makes this way 4 chunks long for a weight, or 3 if the first moment of the
  // weight is stored as a keyframe. Each further predicted save makes it longer by one. So the
  // default of 16 allows at most 14 predicted saves in a row. The save after them is made against
  // keyframes. With 1 to 3, no save is predicted like that.
  int max_replay_depth = 16;
  // The key of a sealed store: 16 to 1,024 secret bytes, as ReadKeyFile (varve/seal.h) returns
  // them. A store is sealed if it was made with a key. To open a sealed store for writing, give its
  // key. To read it, no key is needed. A key for a store that is not sealed is an error. To open a
  // sealed store for writing with a wrong key is an error, too. A reader can be opened with a wrong
  // key, and its Store::Check then returns kFailedPrecondition. With the right key, Store::Check
  // also verifies that nobody without the key has changed the store.
  std::string key{};
};

struct CreateOptions {
  // The seed of the digests of chunks (varve/digest.h). Unset = random, which is right unless the
  // store is a member of a group, whose members share one seed.
  std::optional<uint64_t> digest_seed;
  StoreOptions store;
};

// Reports the progress of a long operation. A thread of the operation calls it. In Store::Check,
// two calls of the function may overlap if one takes longer than 0.1 s. The last call may come
// before all bytes are done. `total_bytes` is 0 while it is unknown. The function must not throw,
// and must not call the store.
using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Says what a save does when its step exists already.
enum class OnExisting {
  kError,  // Begin returns kAlreadyExists. If another writer was faster, Commit does
  // The commit replaces the old checkpoint. A reader sees the old or the new one, never a mix. Tags
  // belong to the number of the step, so they stay and name the new checkpoint. Metrics belong to
  // the old checkpoint, so they go.
  kReplace,
  // The commit moves the step and all later steps to a new run, as Store::Rewind does. The new run
  // is RUN~1, or RUN~2 and so on if that is taken.
  kFork,
};

struct SaveOptions {
  std::string run = "main";  // made on first use. ValidateRun says which names are allowed
  OnExisting on_existing = OnExisting::kError;
  // The parent: the step of this run that the save is compared with, chunk by chunk. Unset = the
  // newest step of the run.
  std::optional<uint64_t> parent{};
  // True: compares every chunk byte for byte before it is shared. Use it for data from a stranger
  // who might know the store's digest seed. It costs one read and one decode for each shared
  // chunk.
  bool verify_sharing = false;
  Progress progress;  // of Commit, in raw bytes
  // The compression of this save. Unset = that of the store.
  std::optional<Compression> compression{};
  // Worker threads of this save. 0 = as many as StoreOptions::num_threads of the store says.
  int num_threads = 0;
  // True: only threads of low priority work for this save, besides the thread that calls Commit.
  // They are threads of varve. The worker threads of TBB, which the trainer may use, do no work for
  // this save. Use it for saves in the background of a training.
  bool low_priority = false;
  // The step of an optimizer between the parent and this save. With it, saves of successive steps
  // take little space. Null = unknown, or there was not exactly one such step. These make a save
  // ignore the optimizer step:
  //
  //   - There is no parent, or `from_keyframes` is true.
  //   - The compression is kNone or kFast.
  //   - StoreOptions::max_replay_depth is less than 4.
  //   - The store was created with Entropy::kZstd.
  //   - The store was created by a version of varve that did not know optimizer steps.
  std::shared_ptr<const OptimizerStep> optimizer_step{};
  // True: predicts a chunk from the keyframe of the parent's chain, and never from a later chunk of
  // that chain. Use it for a step that stays when the steps before it are dropped.
  bool from_keyframes = false;
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
  // True: rewrites every file that holds a dead chunk. False: rewrites only files whose dead
  // chunks take at least an eighth of their bytes. Files with the largest share of dead
  // chunks come first. These rewrites together copy at most 16 MiB more than the reclaim
  // frees.
  bool all = false;
  // Counts the bytes of live chunks that are copied out of files with dead chunks. In a group the
  // count starts again for each member.
  Progress progress{};
};

struct CheckOptions {
  // True: reads and decodes every chunk and compares its digest. False: checks structure only.
  bool read_data = false;
  // With read_data: the share of the chunks that are read, in (0, 1]. Each check picks them at
  // random.
  double read_data_fraction = 1.0;
  Progress progress;
};

}  // namespace varve
