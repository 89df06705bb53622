// SPDX-License-Identifier: Apache-2.0
//
// One snapshot of a trainer's tensors: which chunks differ from the step before, and copies of
// those.
//
//   Stage stage(&memory, devices, layout);
//   stage.BeginDigests(seed, trainer);       // of what lies on devices
//   stage.PutInto(&session);
//   session.ReadParents();                   // which tells the stage what was there
//   stage.Work();                            // on several threads: what lies on the host
//   stage.CopyFromDevices();
//   stage.AwaitCopied();                     // every chunk is digested and, if new, copied
//   session.Commit();                        // on another thread, after AwaitArrived
//   stage.AwaitReleased();                   // the trainer may change its tensors
//
// When the digests of the step before are known from its own stage, LearnParents takes them in
// place of ReadParents. Then PutInto may wait until the trainer has gone on.
//
// Chunks are taken from the last to the first. When the memory is full, the rest is left where it
// lies. The save reads this rest first, and AwaitReleased waits until it has done so. A save that
// knows the step of the optimizer reads some of it later (replayed_step.h).
//
// When AwaitCopied returns, the copy of a device's chunk may still be on its way.
//
// Thread rule: any thread may call Work, the waits and ReleaseAll. One thread at a time calls the
// rest.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "trainer_hooks/save/stage_layout.h"
#include "trainer_hooks/save/staging_memory.h"
#include "varve/device_tensor_source.h"

namespace varve::internal {

class SaveSession;

class Stage {
 public:
  // `memory` and `devices` must outlive the stage. `devices` may be null if no tensor is on one.
  // The tensors' data is read until AwaitReleased has returned.
  Stage(StagingMemory* memory, DeviceTensorSource* devices,
        std::shared_ptr<const StageLayout> layout);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // As DeviceTensorSource::BeginDigests. Call it once, before all else. It throws std::bad_alloc.
  Status BeginDigests(uint64_t seed, DeviceTensorSource::Trainer trainer);
  bool has_begun_digests() const { return has_begun_digests_; }
  // Puts all tensors into a session. The session reads them when it commits, which must be after
  // AwaitCopied. It may be called for several sessions, one after the other, if everything that
  // changed is copied. The stage must outlive the session. The first session must read its parents
  // before any chunk is looked at, unless LearnParents was called.
  Status PutInto(SaveSession* session);
  // Takes the digests of all chunks one step before, by number. They are from the stage that was
  // saved as that step, which had this layout. `digests` must live until AwaitCopied has returned.
  void LearnParents(const std::vector<Digest>* digests) { known_parents_ = digests; }

  // Digests and copies chunks until none is left to begin with. If there is no memory for that, the
  // save fails. It throws nothing.
  void Work();
  // The same for chunks on devices. When it returns, their copies are on their way.
  Status CopyFromDevices();
  // Returns when Work has come to the end, and after CopyFromDevices or ReleaseAll. kUnavailable:
  // Work had no memory.
  Status AwaitCopied();
  // Returns when the copies that are on their way have arrived, or when it is known that they never
  // will.
  Status AwaitArrived();
  // Returns when no byte of the trainer's memory will be read any more.
  void AwaitReleased();
  // Call it when the save has failed or is over. It ends AwaitReleased, whatever is left, and what
  // Work does with chunks. Devices must copy nothing any more.
  void ReleaseAll();

  // Call these after AwaitCopied.
  uint64_t changed_bytes() const { return changed_bytes_; }
  uint64_t staged_bytes() const { return staged_bytes_; }
  // The staged bytes for whose way from devices the trainer waited.
  uint64_t waited_bytes() const { return waited_bytes_; }
  bool is_all_staged() const { return changed_bytes_ == staged_bytes_; }
  const std::shared_ptr<const StageLayout>& layout() const { return layout_; }
  // Returns the digests of all chunks, by number. Call it once, when the save is over.
  std::vector<Digest> TakeDigests() { return std::move(digests_); }

 private:
  enum class Where : uint8_t { kUnchanged, kStaged, kLive };
  struct Chunk {
    const std::byte* copy = nullptr;  // kStaged
    Where where = Where::kUnchanged;
  };
  using Named = StageLayout::Named;
  using Place = StageLayout::Place;
  class Source;

  // The chunks on the host, in the order in which a save reads them.
  std::span<const Place> on_host() const {
    return layout_->chunks().subspan(layout_->num_on_devices());
  }
  bool has_devices() const { return layout_->num_on_devices() > 0; }
  bool EqualsParents(const Place& place, const Digest& digest) const;
  void Examine(const Place& place, std::vector<std::byte>* gathered);
  Status CopyChanged(const std::vector<size_t>& changed);
  size_t FirstWithRoom(const std::vector<size_t>& changed, uint64_t* bytes) const;
  void LeaveLive(const Place& place);
  void Done(const Named& named, uint64_t i);

  StagingMemory* const memory_;
  DeviceTensorSource* const devices_;
  const std::shared_ptr<const StageLayout> layout_;
  uint64_t digest_seed_ = 0;
  std::vector<Digest> digests_;  // of each chunk, by number
  std::vector<Chunk> chunks_;    // the same
  // The digest of each chunk one step before, by number. Null: `parents_` has the digests.
  const std::vector<Digest>* known_parents_ = nullptr;
  // The digests one step before, for each memory and each of its names. Empty: the name was not
  // there.
  std::vector<std::vector<std::vector<Digest>>> parents_;

  bool has_begun_digests_ = false;
  std::atomic<int64_t> next_;  // on_host()[next_ - 1] is the next to begin with
  std::atomic<int64_t> not_copied_;
  std::atomic<uint64_t> changed_bytes_{0};
  std::atomic<uint64_t> staged_bytes_{0};
  uint64_t waited_bytes_ = 0;
  std::atomic<bool> is_out_of_memory_{false};

  std::mutex mutex_;
  std::condition_variable wake_;
  bool are_devices_copied_;  // guarded by mutex_, as is
  int64_t live_uses_ = 0;    // reads of the trainer's memory that are still to come
  std::atomic<bool> is_over_{false};
};

}  // namespace varve::internal
