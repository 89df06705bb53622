// SPDX-License-Identifier: Apache-2.0
//
// Sends what a checkpointer has committed to an object store, on a thread of low priority.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "store/remote/pusher.h"
#include "varve/async_checkpointer.h"
#include "varve/store.h"

namespace varve::internal {

// Makes the folder the store of the newest snapshot, if there is a snapshot and no store. An
// existing store must be the one of the URL, and not an older state of it. If the object store does
// not answer, an existing store is taken as it is.
Status PrepareFromRemote(const std::filesystem::path& store, const std::string& run,
                         const RemoteOptions& options, const std::string& key);

// A checkpoint in the newest snapshot that has it.
struct RemoteCheckpoint {
  std::unique_ptr<Store> store;
  CheckpointId id;
};
// `step` is a step expression for `run`. kNotFound: no snapshot has it.
Result<RemoteCheckpoint> FindInRemote(const std::string& run, std::string_view step,
                                      const RemoteOptions& options);

// Thread rule: any thread may call Saved, IsAwaited and failure. The trainer's thread calls the
// rest.
class BackgroundPusher {
 public:
  // What the store holds already is due, because nobody knows whether it was pushed.
  static Result<std::unique_ptr<BackgroundPusher>> Start(const std::filesystem::path& path,
                                                         const Store& store, const std::string& run,
                                                         const RemoteOptions& options);
  ~BackgroundPusher();
  BackgroundPusher(const BackgroundPusher&) = delete;
  BackgroundPusher& operator=(const BackgroundPusher&) = delete;

  // Call it when a step has been committed.
  void Saved(uint64_t step);
  // Returns true if a step is due and was not pushed yet.
  bool IsAwaited(uint64_t step) const;
  // Sets how long Close waits at most.
  void SetDeadline(std::chrono::steady_clock::time_point deadline);
  // Pushes the newest step, and waits for it. Returns the error if something that is due was not
  // pushed.
  Status Close();
  // Returns the error of the first push that failed, or ok.
  Status failure() const;
  std::optional<PushStats> last() const;

 private:
  using Clock = std::chrono::steady_clock;

  // Says what a push is to bring.
  struct Turn {
    uint64_t number = 0;  // what is due up to here. 0 = nothing
    uint64_t newest_step = 0;
    Clock::time_point oldest;  // commit that waits
  };

  BackgroundPusher(std::filesystem::path path, const RemoteOptions& options,
                   std::unique_ptr<Pusher> pusher)
      : path_(std::move(path)), options_(options), pusher_(std::move(pusher)) {}

  void Run(std::stop_token stop);
  std::optional<Turn> AwaitTurn(std::stop_token stop);
  PushStats PushOnce(const Turn& turn);
  Status KeepNewest();
  // Returns false when there is no more to do.
  bool Note(const Turn& turn, PushStats stats, std::stop_token stop);
  void MakeDue(uint64_t step);
  bool IsDone() const { return pushed_ >= due_up_to_; }

  const std::filesystem::path path_;
  const RemoteOptions options_;
  const std::unique_ptr<Pusher> pusher_;  // of the thread
  std::atomic<bool> ends_{false};         // interrupts the thread

  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  struct Due {
    uint64_t number;
    Clock::time_point since;
  };
  std::map<uint64_t, Due> due_;  // by step. Guarded, as all below
  uint64_t due_up_to_ = 0;       // numbers of what is due rise
  uint64_t pushed_ = 0;          // up to here
  uint64_t num_saved_ = 0;
  std::optional<uint64_t> newest_;  // step that was saved and is not due
  int failures_ = 0;                // one after the other
  bool is_closing_ = false;
  bool has_given_up_ = false;
  std::optional<Clock::time_point> deadline_;
  std::optional<PushStats> last_;
  Status first_failure_;

  std::jthread thread_;  // last: it ends before anything above goes
};

}  // namespace varve::internal
