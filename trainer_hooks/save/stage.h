// SPDX-License-Identifier: Apache-2.0
//
// One snapshot of a trainer's tensors: which chunks differ from the step before, and copies of
// those.
//
//   Stage stage(&memory, devices);
//   stage.Add(state);
//   stage.BeginDigests(seed, trainer);       // of what lies on devices
//   stage.PutInto(&session);
//   session.ReadParents();                   // which tells the stage what was there
//   stage.Work();                            // on several threads: what lies on the host
//   stage.CopyFromDevices();
//   stage.AwaitCopied();                     // every chunk is digested and, if new, copied
//   session.Commit();                        // on another thread, after AwaitArrived
//   stage.AwaitReleased();                   // the trainer may change its tensors
//
// Chunks are taken from the last to the first. When the memory is full, the rest, which the save
// reads first, is left where it lies; then AwaitReleased waits until the save has read it there.
//
// Of a device's chunk a copy may still be on its way when AwaitCopied returns.
//
// Thread rule: Work, the waits and ReleaseAll from any thread; all else by one thread at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "store/save/save_order.h"
#include "trainer_hooks/save/staging_memory.h"
#include "trainer_hooks/state/save_state.h"
#include "varve/device_tensor_source.h"

namespace varve::internal {

class SaveSession;

class Stage {
 public:
  // Both must outlive the stage; `devices` may be null when no tensor is on one.
  Stage(StagingMemory* memory, DeviceTensorSource* devices);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Lists the chunks of the tensors of a state, and points into it. The tensors' data is read until
  // AwaitReleased has returned. Once.
  Status Add(std::shared_ptr<const SaveState> state);
  // As DeviceTensorSource::BeginDigests. Once, at any time before CopyFromDevices.
  Status BeginDigests(uint64_t seed, DeviceTensorSource::Trainer trainer);
  bool has_begun_digests() const { return has_begun_digests_; }
  // Puts all tensors, which are read when it commits; that is after AwaitCopied. May be called for
  // several sessions, one after the other, when everything that changed is copied. The stage must
  // outlive the session. The first session reads its parents before any chunk is looked at.
  Status PutInto(SaveSession* session);

  // Digests and copies chunks until none is left to begin with. What has no memory for that fails
  // the save; nothing is thrown.
  void Work();
  // The same for chunks on devices; then they are on their way.
  Status CopyFromDevices();
  // Returns when Work has come to the end, and after CopyFromDevices or ReleaseAll. kUnavailable:
  // Work had no memory.
  Status AwaitCopied();
  // Returns when what is on its way has arrived, or will never.
  Status AwaitArrived();
  // Returns when nothing of the trainer's memory will be read any more.
  void AwaitReleased();
  // Ends AwaitReleased, whatever is left, and what Work does with chunks: the save has failed or is
  // over. Devices must copy nothing any more.
  void ReleaseAll();

  // After AwaitCopied.
  uint64_t changed_bytes() const { return changed_bytes_; }
  uint64_t staged_bytes() const { return staged_bytes_; }
  // Of them, what the trainer waited for on its way from devices.
  uint64_t waited_bytes() const { return waited_bytes_; }
  bool is_all_staged() const { return changed_bytes_ == staged_bytes_; }
  // After Add: what lies on devices.
  const std::vector<DeviceTensorSource::Chunk>& device_chunks() const { return device_bytes_; }

 private:
  enum class Where : uint8_t { kUnchanged, kStaged, kLive };
  struct Chunk {
    Digest digest;
    const std::byte* copy = nullptr;  // kStaged
    Where where = Where::kUnchanged;
  };
  // A tensor's memory, whatever names it has.
  struct Memory;
  class Source;
  struct Named {
    const StateTensor* tensor = nullptr;
    Memory* memory = nullptr;
    Named* copied_from = nullptr;  // what it is the rounded copy of, chunk by chunk
    uint32_t shard = 0;            // its number among those of its name

    Named* master() const { return copied_from; }
    CopyTraits Traits() const;
  };

  Status AddMemory(const StateTensor& tensor);
  void LinkMasters();
  void ListChunks();
  void Examine(Memory* memory, uint64_t i, std::vector<std::byte>* gathered);
  size_t FirstWithRoom(const std::vector<size_t>& changed, uint64_t* bytes) const;
  void LeaveLive(Memory* memory, uint64_t i);
  void Done(const Named& named, uint64_t i);

  StagingMemory* const memory_;
  DeviceTensorSource* const devices_;
  uint64_t digest_seed_ = 0;
  std::shared_ptr<const SaveState> state_;
  std::deque<Memory> memories_;
  std::vector<Named> named_;  // in the order of the state

  std::vector<std::pair<Memory*, uint64_t>> chunks_;  // in the order in which a save reads them
  std::vector<std::pair<Memory*, uint64_t>> device_chunks_;  // in the same order, apart
  std::vector<DeviceTensorSource::Chunk> device_bytes_;      // of each of these
  bool has_begun_digests_ = false;
  std::atomic<int64_t> next_{0};  // chunks_[next_ - 1] is the next to begin with
  std::atomic<int64_t> not_copied_{0};
  std::atomic<uint64_t> changed_bytes_{0};
  std::atomic<uint64_t> staged_bytes_{0};
  uint64_t waited_bytes_ = 0;
  std::atomic<bool> is_out_of_memory_{false};

  std::mutex mutex_;
  std::condition_variable wake_;
  bool are_devices_copied_ = false;  // guarded by mutex_, as is
  int64_t live_uses_ = 0;            // reads of the trainer's memory that are still to come
  std::atomic<bool> is_over_{false};
};

}  // namespace varve::internal
