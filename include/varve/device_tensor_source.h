// SPDX-License-Identifier: Apache-2.0
//
// How a checkpointer gets at tensors in the memory of devices: it asks for digests of their chunks,
// and for copies of those that have changed. varve/cuda.h makes the one for CUDA; the checkpointer
// knows no more of a GPU than this.
//
// Ranges of device memory are spans whose bytes the host must not touch.
//
// A save goes MarkBegin, BeginDigests, TakeDigests, CopyToHost, MarkRelease, AwaitCopies. Thread
// rule: Check, the two Prepares, MarkBegin and MarkRelease are the trainer's; the other calls of a
// save come one after the other, from several threads; DigestNow from another one beside them, Read
// from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "varve/result.h"

namespace varve {

// StateTensor::device of a tensor in the host's memory.
inline constexpr int kHost = -1;

struct Digest;  // base/digest.h

class DeviceTensorSource {
 public:
  // A part of a tensor that is digested, compared and moved as one.
  struct Chunk {
    int device = 0;
    std::span<const std::byte> bytes;
    // False: it lies behind the chunk before it, in the same memory, so both may be copied as one.
    bool begins_tensor = true;
  };
  struct Copy {
    size_t chunk = 0;  // of those of BeginDigests
    std::byte* to = nullptr;
  };

  virtual ~DeviceTensorSource() = default;
  DeviceTensorSource(const DeviceTensorSource&) = delete;
  DeviceTensorSource& operator=(const DeviceTensorSource&) = delete;

  // kInvalidArgument: no stream was given for this device, or the bytes are not in its memory; says
  // where they are.
  virtual Status Check(const Chunk& tensor) = 0;
  // Takes what saves of such chunks need, and makes `host`, empty = none, memory that devices copy
  // to at full speed, in place of what it was told before: that must still be there. kUnavailable:
  // there is not so much.
  virtual Status Prepare(std::span<const Chunk> chunks, std::span<std::byte> host) = 0;
  // Takes what DigestNow of such chunks needs. No other call takes memory on a device.
  virtual Status PrepareDigestNow(std::span<const Chunk> chunks) = 0;

  // The tensors are as the work before this point of the trainer's streams leaves them.
  // kFailedPrecondition: a stream is being captured.
  virtual Status MarkBegin() = 0;
  // Whether the trainer waits until its tensors may change.
  struct Trainer {
    // It did at MarkBegin: there is no other work of its own that could go on.
    bool waits_at_once = false;
    // It does now, or will when its streams have done what they have. Called at any time until
    // AwaitCopies has returned.
    std::function<bool()> is_awaiting;
  };
  // Begins to digest chunks of any size, no more than were prepared for.
  virtual Status BeginDigests(uint64_t seed, std::span<const Chunk> chunks, Trainer trainer) = 0;
  // The digest of each chunk, in their order; until the next BeginDigests.
  virtual Result<const Digest*> TakeDigests() = 0;
  // Begins to copy chunks to memory of the host, each at most once. Returns when all is enqueued
  // that reads the tensors: how many bytes of it the trainer had to wait for on their way to the
  // host, as they had no room on the device.
  virtual Result<uint64_t> CopyToHost(std::span<const Copy> copies) = 0;
  // Work that the trainer's streams get from here on comes after all reads of its tensors; also
  // after an error. kFailedPrecondition: a stream is being captured.
  virtual Status MarkRelease() = 0;
  // Returns when all copies have arrived; or after an error, when nothing will be written any more.
  virtual Status AwaitCopies() = 0;

  // The digests of chunks that are as they were at the last MarkBegin, in their order; until the
  // next call. Waits for them. No more than were prepared for.
  virtual Result<const Digest*> DigestNow(uint64_t seed, std::span<const Chunk> chunks) = 0;
  // A copy, at once. Of a tensor that may be released only after it.
  virtual Status Read(const Chunk& from, std::span<std::byte> to) = 0;
  // Memory of the host that Write copies from at full speed; for one load at a time.
  virtual std::span<std::byte> bounce() = 0;
  // Begins to copy to a device, before all that its stream gets later; `from` must stay until
  // AwaitWrites of the same half, 0 or 1, has returned. One thread at a time.
  virtual Status Write(std::span<const std::byte> from, int device, std::byte* to, int half) = 0;
  // Returns when all writes of a half have arrived.
  virtual Status AwaitWrites(int half) = 0;

 protected:
  DeviceTensorSource() = default;
};

}  // namespace varve
