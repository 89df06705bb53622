// SPDX-License-Identifier: Apache-2.0
//
// How a checkpointer gets at tensors in the memory of devices. It asks for digests of their chunks,
// and for copies of those that have changed. The checkpointer knows no more of a device than this.
// varve/cuda.h makes the source for CUDA. For another kind of device a user writes one: a class
// that derives from DeviceTensorSource, given as CheckpointerOptions::devices and
// LoadOptions::devices. tests/install/consumer/device_source.cc is a small one.
//
// Ranges of device memory are spans whose bytes the host must not touch. The checkpointer does not
// touch them, and neither reads nor writes a tensor with a device but through this.
//
// A save goes MarkBegin, BeginDigests, TakeDigests, CopyToHost, MarkRelease, AwaitCopies. An error
// of any of these fails the save. What was copied is digested again on the host, and a copy that
// does not have the digest of TakeDigests fails the save, too. What has the digest that the step
// before has is not copied at all.
//
// Thread rule: the trainer's thread calls Check, the two Prepares, MarkBegin and MarkRelease. The
// other calls of a save come one after the other, from several threads. DigestNow comes from yet
// another thread at the same time. Read may come from any thread at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "varve/digest.h"
#include "varve/result.h"

namespace varve {

// StateTensor::device of a tensor in the host's memory.
inline constexpr int kHost = -1;

class DeviceTensorSource {
 public:
  // A part of a tensor that is digested, compared and moved as one.
  struct Chunk {
    int device = 0;
    std::span<const std::byte> bytes;
    // False: the chunk lies right behind the chunk before it, in the same memory. Both may be
    // copied as one.
    bool begins_tensor = true;
  };
  struct Copy {
    size_t chunk = 0;         // an index into the chunks of BeginDigests
    std::byte* to = nullptr;  // memory of the host, as long as the chunk
  };

  // The checkpointer shares the source, and calls nothing of it after its Close.
  virtual ~DeviceTensorSource() = default;
  DeviceTensorSource(const DeviceTensorSource&) = delete;
  DeviceTensorSource& operator=(const DeviceTensorSource&) = delete;

  // Says whether a tensor can be saved from, and loaded to, where it lies. kInvalidArgument: the
  // source does not know this device, or the bytes are not in its memory. The message says where
  // they are.
  virtual Status Check(const Chunk& tensor) = 0;
  // Allocates what saving `chunks` needs and pins `host` (may be empty), replacing the range pinned
  // before, which still exists. CopyToHost copies to `host`. kUnavailable: not enough memory.
  virtual Status Prepare(std::span<const Chunk> chunks, std::span<std::byte> host) = 0;
  // Allocates what DigestNow of `chunks` needs. kUnavailable: not enough memory. Only the two
  // Prepares take memory on a device.
  virtual Status PrepareDigestNow(std::span<const Chunk> chunks) = 0;

  // Notes the point of the trainer's streams that the save is of. The tensors are as the work
  // before it leaves them. kFailedPrecondition: a stream is being captured.
  virtual Status MarkBegin() = 0;
  // Says whether the trainer waits until its tensors may change.
  struct Trainer {
    // True: the trainer waited at MarkBegin already, so it has no work of its own that could go on.
    bool waits_at_once = false;
    // True: the trainer waits now, or will when its streams have done what they have. It may be
    // called at any time until AwaitCopies has returned.
    std::function<bool()> is_awaiting;
  };
  // Starts to digest chunks of any size, no more than were prepared for. `seed` is the store's. The
  // digest of a chunk is ComputeDigest(seed, its bytes) of varve/digest.h.
  virtual Status BeginDigests(uint64_t seed, std::span<const Chunk> chunks, Trainer trainer) = 0;
  // Waits for the digests of all these chunks, and returns them in their order. The source owns
  // them, until the next BeginDigests.
  virtual Result<const Digest*> TakeDigests() = 0;
  // Starts to copy chunks to memory of the host, each at most once. It returns when everything that
  // reads the tensors is enqueued. The result is the number of bytes that had no room in memory of
  // the device, so that the trainer had to wait for their way to the host.
  virtual Result<uint64_t> CopyToHost(std::span<const Copy> copies) = 0;
  // Work that the trainer's streams get after this comes after all reads of its tensors. It comes
  // after an error of the calls above, too. kFailedPrecondition: a stream is being captured.
  virtual Status MarkRelease() = 0;
  // Returns when all copies have arrived. After an error it returns when nothing more will be
  // written.
  virtual Status AwaitCopies() = 0;

  // Waits for the digests of chunks as they were at the last MarkBegin, and returns them in their
  // order. `seed` is any number. There are no more chunks than were prepared for. The source owns
  // the digests, until the next call.
  virtual Result<const Digest*> DigestNow(uint64_t seed, std::span<const Chunk> chunks) = 0;
  // Copies a chunk to the host, and waits for it. The tensor is not released before.
  virtual Status Read(const Chunk& from, std::span<std::byte> to) = 0;
  // Memory of the host that Write copies from at full speed. The source owns it, and one load at a
  // time uses it. What does not fit into a half of it is written from other memory. It may be
  // empty.
  virtual std::span<std::byte> bounce() = 0;
  // Starts to copy to a device. The copy comes before all work that the device's stream gets later.
  // `from` stays unchanged until AwaitWrites of the same half, 0 or 1, has returned. One thread at
  // a time.
  virtual Status Write(std::span<const std::byte> from, int device, std::byte* to, int half) = 0;
  // Returns when all writes of a half have arrived. After an error it returns when nothing more
  // will be written.
  virtual Status AwaitWrites(int half) = 0;

 protected:
  DeviceTensorSource() = default;
};

}  // namespace varve
