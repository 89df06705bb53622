// SPDX-License-Identifier: Apache-2.0
//
// One snapshot of a trainer's tensors: which chunks differ from the step before, and copies of those.
//
//   Stage stage(&memory);
//   stage.Add(...);                          // each tensor
//   stage.Work();                            // on several threads
//   stage.AwaitCopied();                     // every chunk is digested and, if new, copied
//   PutInto(writer); writer->Commit();       // on another thread
//   stage.AwaitReleased();                   // the trainer may change its tensors
//
// Chunks are taken from the last to the first. When the memory is full, the rest, which the save reads
// first, is left where it lies; then AwaitReleased waits until the save has read it there.
//
// Thread rule: Work and the waits from any thread; all else by one thread, before or after.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "store/chunk_source.h"
#include "trainer_hooks/staging_memory.h"
#include "varve/training_state.h"

namespace varve {

class Stage {
 public:
  // `memory` must outlive the stage.
  explicit Stage(StagingMemory* memory);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Looks up what `writer` will be compared with, and gets ready to work. The tensors have been
  // validated; their data is read until AwaitReleased has returned.
  Status Prepare(const std::vector<StateTensor>& tensors, const SourceWriter& writer);

  // Digests and copies chunks until none is left to begin with.
  void Work();
  void AwaitCopied();
  // Puts all tensors; call after AwaitCopied. May be called for several writers, one after the other,
  // when everything that changed is copied. The stage must outlive the writer.
  Status PutInto(SourceWriter* writer);
  // Returns when nothing of the trainer's memory will be read any more.
  void AwaitReleased();
  // Ends AwaitReleased, whatever is left: the save has failed or is over.
  void ReleaseAll();

  // After AwaitCopied.
  uint64_t changed_bytes() const { return changed_bytes_; }
  uint64_t staged_bytes() const { return staged_bytes_; }
  bool is_all_staged() const { return changed_bytes_ == staged_bytes_; }

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
    StateTensor tensor;
    Memory* memory = nullptr;
    Memory* master = nullptr;  // what it is derived from, chunk by chunk
    std::string alias_of;
  };

  Status AddTensor(const StateTensor& tensor, const SourceWriter& writer);
  Memory* FindTied(const StateTensor& tensor) const;
  void LinkMasters();
  void ListChunks();
  void Examine(Memory* memory, uint64_t i, std::vector<std::byte>* gathered);
  void Done(const Named& named, uint64_t i);

  StagingMemory* const memory_;
  uint64_t digest_seed_ = 0;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<std::unique_ptr<Named>> named_;  // in the order of the state
  std::map<std::string, Named*> by_name_;
  std::multimap<const void*, Memory*> by_data_;

  std::vector<std::pair<Memory*, uint64_t>> chunks_;  // in the order in which a save reads them
  std::atomic<int64_t> next_{0};                      // chunks_[next_ - 1] is the next to begin with
  std::atomic<int64_t> not_copied_{0};
  std::atomic<uint64_t> changed_bytes_{0};
  std::atomic<uint64_t> staged_bytes_{0};

  std::mutex mutex_;
  std::condition_variable wake_;
  int64_t live_uses_ = 0;  // guarded by mutex_: reads of the trainer's memory that are still to come
};

}  // namespace varve
