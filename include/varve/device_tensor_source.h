// SPDX-License-Identifier: Apache-2.0
//
// A DeviceTensorSource lets a checkpointer read and write tensors in the memory of devices. It
// digests chunks of tensors where they lie, and copies chunks that have changed to the host. The
// checkpointer uses devices only through this interface. varve/cuda.h has the source for CUDA. For
// another kind of device, derive a class from DeviceTensorSource, and pass it as
// CheckpointerOptions::devices and LoadOptions::devices. tests/install/consumer/device_source.cc is
// a small example.
//
// A span of device memory holds addresses of the device. The host must not access its bytes.
//
// A save calls MarkBegin and BeginDigests. Then it calls TakeDigests and CopyToHost, in turn, until
// it has all digests. At the end it calls MarkRelease and AwaitCopies. If MarkBegin fails, no save
// starts. An error of BeginDigests, TakeDigests, CopyToHost or AwaitCopies fails the save. If
// MarkRelease fails, AwaitStaged returns its error. A save in the root of a group then fails on all
// ranks. Any other save goes on, and may still commit. A chunk whose digest is the same as in the
// last saved step is not copied. The checkpointer digests each copy again on the host. A copy whose
// digest differs from that of TakeDigests fails the save.
//
// Thread rule: the trainer's thread calls Check, Prepare, PrepareDigestNow, MarkBegin and
// MarkRelease. A save calls BeginDigests, TakeDigests, CopyToHost and AwaitCopies from several
// threads, but only one of these calls runs at a time. Another thread may call DigestNow at the
// same time. Any thread may call Read at any time. The calls of a load (bounce, Write, AwaitWrites
// and CopyOnDevice) come from one thread at a time.
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
  // A part of a tensor that is digested, compared and copied as one.
  struct Chunk {
    int device = 0;
    std::span<const std::byte> bytes;  // in memory of the device, contiguous
    // True: this is the first chunk of a tensor. False: the chunk starts where the chunk before it
    // ends, so one copy may take both.
    bool begins_tensor = true;
  };
  struct Copy {
    size_t chunk = 0;         // an index into the chunks of Prepare
    std::byte* to = nullptr;  // memory of the host, as large as the chunk
  };

  // The checkpointer shares the source. After AsyncCheckpointer::Close the checkpointer calls no
  // function of the source.
  virtual ~DeviceTensorSource() = default;
  DeviceTensorSource(const DeviceTensorSource&) = delete;
  DeviceTensorSource& operator=(const DeviceTensorSource&) = delete;

  // Returns Ok when the source can read and write these bytes. `tensor` is a whole tensor as one
  // chunk. kInvalidArgument: the source does not know the device, or the bytes are not in its
  // memory. The message says where they are.
  virtual Status Check(const Chunk& tensor) = 0;
  // Says which chunks each save digests, until the next Prepare. Prepare allocates the memory that
  // these digests need. It pins `host`, to which CopyToHost will copy. If the previous Prepare
  // pinned another range, this call unpins that range. The checkpointer frees that range only
  // after this call. The checkpointer calls Prepare again when the tensors, or their places, have
  // changed. Before it frees or resizes its staging memory, it calls Prepare with no chunks and an
  // empty `host`. kUnavailable: not enough memory.
  virtual Status Prepare(std::span<const Chunk> chunks, std::span<std::byte> host) = 0;
  // Allocates the memory that DigestNow of `chunks` needs. kUnavailable: not enough memory. No call
  // but Prepare and PrepareDigestNow may allocate memory on a device.
  virtual Status PrepareDigestNow(std::span<const Chunk> chunks) = 0;

  // Marks the current end of the trainer's streams. The save reads the tensors as the work before
  // this point leaves them. kFailedPrecondition: a stream is being captured.
  virtual Status MarkBegin() = 0;
  // Tells the source whether the trainer waits in AwaitStaged.
  struct Trainer {
    // True: the trainer calls AwaitStaged directly after BeginSave. It adds no work to its streams
    // after MarkBegin until AwaitStaged has returned.
    bool waits_at_once = false;
    // Returns true when the trainer has called AwaitStaged for this save. The trainer's streams may
    // still run earlier work. The source may call is_awaiting until AwaitCopies has returned.
    std::function<bool()> is_awaiting;
  };
  // Starts to digest the chunks of the last Prepare. `seed` is that of the store. The digest of a
  // chunk is ComputeDigest(seed, its bytes) of varve/digest.h.
  virtual Status BeginDigests(uint64_t seed, Trainer trainer) = 0;
  // Waits until there are more than `have` digests, and returns all that there are, from chunk 0
  // on, in the order of the chunks. `have` is how many the call before returned. A source may wait
  // for the digests of all chunks, or return those that have arrived, so that copies can start. The
  // source owns the digests, until the next BeginDigests. Precondition: there are more than `have`
  // chunks.
  virtual Result<std::span<const Digest>> TakeDigests(size_t have) = 0;
  // Starts to copy chunks to memory of the host. TakeDigests has returned their digests. A save may
  // call it several times, with each chunk at most once. CopyToHost returns when all work that
  // reads these chunks is enqueued. The result is the number of bytes that the trainer had to wait
  // for, because the staging memory of the device was full.
  virtual Result<uint64_t> CopyToHost(std::span<const Copy> copies) = 0;
  // After this call, work that is added to the trainer's streams runs only after all reads of the
  // trainer's tensors. The checkpointer also calls it after an error of the calls above.
  // kFailedPrecondition: a stream is being captured. After any error the call has waited until all
  // reads were done, because the trainer may change its tensors when AwaitStaged has returned.
  virtual Status MarkRelease() = 0;
  // Returns when all copies have arrived. After an error it returns when no more bytes will be
  // written.
  virtual Status AwaitCopies() = 0;

  // Digests chunks, waits, and returns chunks.size() digests in the order of the chunks. In a save
  // the chunks are parts of tensors, as they were at the last MarkBegin. In a load they are bytes
  // that other ranks have sent (RankGroup::AllToAllToDevice), as they are now. `seed` is any
  // number. The checkpointer has called PrepareDigestNow before, for chunks that need at least as
  // much memory as these. The source owns the digests, until the next call of DigestNow.
  virtual Result<const Digest*> DigestNow(uint64_t seed, std::span<const Chunk> chunks) = 0;
  // Copies a chunk to the host, and waits for it. The trainer does not change the tensor before
  // Read has returned.
  virtual Status Read(const Chunk& from, std::span<std::byte> to) = 0;
  // Returns memory of the host that Write copies from at full speed. The source owns it, and one
  // load at a time uses it. A load fills one half while the other half is copied to devices. A
  // piece that is larger than a half does not go through this memory: `from` of its Write is then
  // other memory. If the returned memory is empty, no piece goes through it.
  virtual std::span<std::byte> bounce() = 0;
  // Starts to copy to a device. The copy runs after the work that is in the device's stream at the
  // time of the call. Write does not make that stream wait for the copy. `half`, 0 or 1, says to
  // which half of bounce() the copy belongs, even if `from` is other memory. AwaitWrites of this
  // half waits for the copy, and nothing else does. `from` stays unchanged until that AwaitWrites
  // has returned. One thread at a time calls Write and AwaitWrites.
  virtual Status Write(std::span<const std::byte> from, int device, std::byte* to, int half) = 0;
  // Returns when all writes of a half have arrived. After an error it returns when no more bytes
  // will be written.
  virtual Status AwaitWrites(int half) = 0;

  // `count` pieces of `bytes` bytes each. `from_step` and `to_step` are the numbers of bytes from
  // the start of a piece to the start of the next piece. If there is only one piece, they are
  // ignored.
  struct Block {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    uint64_t bytes = 0;
    uint64_t count = 1;
    uint64_t from_step = 0;
    uint64_t to_step = 0;
  };
  // Copies between two places in the memory of one device, and waits. The copies run after the work
  // that is in the device's stream at the time of the call. A load calls it for tensors that ranks
  // send from device to device (RankGroup::AllToAllToDevice). A load first calls it without blocks.
  // A source that cannot copy on this device returns an error then, and these tensors come through
  // the host. One thread at a time calls it.
  virtual Status CopyOnDevice(int device, std::span<const Block> blocks) {
    (void)device, (void)blocks;
    return Status::FailedPrecondition("this source copies nothing from a device to itself");
  }

 protected:
  DeviceTensorSource() = default;
};

}  // namespace varve
