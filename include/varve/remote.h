// SPDX-License-Identifier: Apache-2.0
//
// Push sends a store to an object store. Pull brings it back, to any machine. OpenRemote reads it
// in the object store (docs/remote.md).
//
//   varve::UseS3();  // varve/s3.h, once, for s3:// only. For rados:// see varve/rados.h
//   const auto pushed = varve::Push("ckpt", "s3://bucket/gpt");  // again later: sends what is new
//   if (!pushed.ok()) return pushed.status();
//   const auto pulled = varve::Pull("s3://bucket/gpt", "elsewhere");
//   if (!pulled.ok()) return pulled.status();
//
// A snapshot is the store, or chosen steps of it (PushOptions::steps), as a push found it.
// Snapshots share what did not change, and stay until ReclaimRemote removes them.
//
// A URL is file:///FOLDER, s3://BUCKET/PREFIX?endpoint=URL&region=REGION, or
// rados://POOL/NAMESPACE. It holds the snapshots of one store. Credentials are never part of it.
//
// Thread rule: any thread and any process, at the same time, even for the same URL. These functions
// check the flag of a StopScope (varve/stop.h).
//
// Errors of all functions: kUnavailable has two cases. The object store does not answer, at the
// start or in the middle of the call: the outcome is unknown, so call again. The program has no
// engine for this kind of URL (UseS3, UseRados), or cannot load its library: the message says so.
// kInvalidArgument: the URL is wrong. kIOError: the object store refuses a request, and the message
// says which and why. kCorruption: something is damaged, and the message names it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/options.h"
#include "varve/result.h"

namespace varve {

class Store;

struct PushOptions {
  bool dry_run = false;  // true: only finds out what is new
  Progress progress;     // in bytes of files that are sent
  int num_threads = 4;   // files that are sent at the same time
  // Step expressions (varve/step.h): the snapshot holds only these steps. Files that hold other
  // steps, too, are rewritten into a temporary folder, and sent each time. Such a push always makes
  // a snapshot. Empty = all steps.
  std::vector<std::string> steps{};
};

struct PushReport {
  // The snapshot that this push made. If it made none, the newest snapshot. 0 = there is none.
  uint64_t snapshot = 0;
  bool is_new = false;       // true: this push made the snapshot. A dry run makes none
  uint64_t total_files = 0;  // files of the snapshot
  uint64_t total_bytes = 0;
  uint64_t sent_files = 0;  // files that this push sent, or would send in a dry run
  uint64_t sent_bytes = 0;
  uint64_t resumed_files = 0;  // files that an interrupted push had sent already
  std::chrono::duration<double> elapsed{};
};

// Makes a snapshot of the store as it is at some moment during the call. Takes no lock on the store
// and writes nothing to it, and a writer may go on. When it returns without an error, the snapshot
// is whole and durable. After kUnavailable or kAborted there may be a new snapshot, which is whole.
// After any other error there is none. The next push uses what an interrupted push has sent.
//
// kNotFound: there is no store, or no such step. kFailedPrecondition: the URL holds another store,
// or `store` is the root of a group.
Result<PushReport> Push(const std::filesystem::path& store, std::string_view url,
                        const PushOptions& options = {});

struct PullOptions {
  bool dry_run = false;  // true: only finds out what is new
  // True: also reads and decodes every chunk. The digest of each file and the structure of the
  // store are always verified.
  bool read_data = false;
  std::optional<uint64_t> snapshot;  // unset = the newest
  Progress progress;                 // in bytes of files that are fetched
  int num_threads = 4;               // files that are fetched at the same time
  // The key of a sealed store. The copy is sealed with it (SealStore, varve/seal.h). A copy that
  // was pulled without the key is not sealed. It can be read. It cannot be opened for writing
  // before SealStore has sealed it.
  std::string key{};
};

struct PullReport {
  uint64_t snapshot = 0;
  uint64_t num_steps = 0;    // 0 in a dry run
  uint64_t total_files = 0;  // files of the snapshot
  uint64_t total_bytes = 0;
  uint64_t fetched_files = 0;  // files that this pull fetched, or would fetch in a dry run
  uint64_t fetched_bytes = 0;
  std::chrono::duration<double> elapsed{};
};

// Makes `destination` a copy of the store that a snapshot holds. The folder must be new or empty,
// or an earlier Pull or BackUp of this store that nothing has written to since. After an error or a
// crash, the folder holds the earlier store (no store, if there was none) or the new one. The next
// call uses the files that had been fetched.
//
// kNotFound: the URL holds no such snapshot. kFailedPrecondition: the folder holds something else,
// or a store with steps of its own. kLocked: it is in use.
Result<PullReport> Pull(std::string_view url, const std::filesystem::path& destination,
                        const PullOptions& options = {});

struct RemoteStoreOptions {
  std::optional<uint64_t> snapshot;  // unset = the newest
  // Parts of files that were read are kept in this folder for later reads. Several processes may
  // share the folder. Empty = every read fetches them again.
  std::filesystem::path cache_folder;
  uint64_t cache_bytes = uint64_t{4} << 30;  // the most bytes that the cache takes
  // Only `num_threads` has an effect. `key` must be empty (else kInvalidArgument).
  StoreOptions store;
};

// Opens a snapshot for reading, where it lies. Only what is read is fetched. Later snapshots are
// not seen. If the snapshot is removed, reading fails with kIOError, and the message says so.
//
// kNotFound: the URL holds no such snapshot.
Result<std::unique_ptr<Store>> OpenRemote(std::string_view url,
                                          const RemoteStoreOptions& options = {});

struct SnapshotInfo {
  uint64_t number = 0;
  std::chrono::system_clock::time_point created;  // by the clock of the host that pushed it
  uint64_t total_bytes = 0;
};

// Lists the snapshots, in ascending order of number. A URL under which nothing lies has none.
Result<std::vector<SnapshotInfo>> ListSnapshots(std::string_view url);

struct RemoteReclaimOptions {
  // How many of the newest snapshots stay, 1 or more. Unset = all.
  std::optional<uint64_t> keep_last;
  bool dry_run = false;
  // How long the call watches unfinished pushes: 0, or at least 30 seconds (else kInvalidArgument).
  // A push that is alive gives a sign every 5 seconds. If a push gives a sign in this time, what it
  // has sent stays. Else the push counts as dead, and what it has sent is removed. If the push only
  // slept, it sends all of it again. 0 = no push is watched, and what pushes of other hosts have
  // sent stays. A push of this host whose process has ended always counts as dead.
  std::chrono::milliseconds wait_for_pushes{0};
};

struct RemoteReclaimReport {
  std::vector<uint64_t> dropped;  // snapshots
  uint64_t kept = 0;              // snapshots
  // A blob is an object that holds files of a push.
  uint64_t removed_blobs = 0;
  uint64_t removed_bytes = 0;
  uint64_t pending_blobs = 0;  // blobs of pushes that may still be running. They stay
};

// Removes old snapshots and what no snapshot needs. Pushes and pulls may go on meanwhile. A pull of
// a snapshot that is removed fails. kNotFound: the URL holds no snapshot.
Result<RemoteReclaimReport> ReclaimRemote(std::string_view url,
                                          const RemoteReclaimOptions& options = {});

}  // namespace varve
