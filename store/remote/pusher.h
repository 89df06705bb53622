// SPDX-License-Identifier: Apache-2.0
//
// Push, for who pushes again and again to one place. What a push has read and written there is
// remembered, so the next one needs fewer requests. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "objects/objects.h"
#include "store/remote/remote_state.h"
#include "varve/remote.h"

namespace varve::internal {

// For tests. A program makes none of these mistakes.
struct PushMutation {
  bool ignores_fence = false;         // a small push commits whatever was collected meanwhile
  bool ignores_attempts = false;      // a large push commits though its attempt was closed
  std::function<void()> in_commit{};  // runs when the blobs have been put
};

// What lies in an object store, as far as it is known. It may be out of date.
struct KnownRemote {
  RemoteState state;  // number 0: nothing is known
  uint64_t snapshot = 0;
  SnapshotBody body;  // of that snapshot. 0: none is known
};

class Pusher {
 public:
  explicit Pusher(std::unique_ptr<Objects> objects, PushMutation mutation = {})
      : objects_(std::move(objects)), mutation_(std::move(mutation)) {}
  static Result<std::unique_ptr<Pusher>> Open(std::string_view url);

  Objects* objects() const { return objects_.get(); }

  // As varve::Push to the URL.
  // Snapshots that were there when this last looked.
  size_t num_snapshots() const { return known_.state.snapshots.size(); }
  // The next push looks again, because this process has changed something itself.
  void Forget() { known_.state = RemoteState(); }

  Result<PushReport> Push(const std::filesystem::path& store, const PushOptions& options);

 private:
  const std::unique_ptr<Objects> objects_;
  const PushMutation mutation_;
  KnownRemote known_;
};

}  // namespace varve::internal
