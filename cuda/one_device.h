// SPDX-License-Identifier: Apache-2.0
//
// One device's part of a save. It has streams of its own besides the trainer's:
//
//   trainer ──begin──┬─ forward, backward ──────────── waits for released ── optimizer step
//   reading          └► digests ──────────────┐
//   copying                └► copies ─────────┴► released   (all that reads tensors)
//   draining                                     └► staging to the host, arrived
//
// Digests of a large state arrive in parts. Copies start when the first part has arrived. At first,
// chunks that changed are copied straight to the host, a few megabytes at a time. The
// trainer waits once it awaits the save and its stream has run dry. From then on chunks that
// changed are gathered in staging as long as that has room. If the trainer waits from the start of
// the save, the digest kernel itself copies to staging the chunks that also changed in the save
// before.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "cuda/chunk_digests.h"
#include "cuda/device_copy.h"
#include "cuda/device_staging.h"
#include "cuda/resources.h"
#include "varve/cuda.h"
#include "varve/result.h"

namespace varve::internal::gpu {

// Thread rule: as DeviceTensorSource, whose calls these are.
class OneDevice {
 public:
  using Bytes = std::span<const std::byte>;
  using Chunks = std::span<const DeviceTensorSource::Chunk>;

  // Create takes those `options` that are not about streams.
  static Result<std::unique_ptr<OneDevice>> Create(const CudaStream& stream,
                                                   const CudaOptions& options);
  // The same with a stream of its own in place of the trainer's (Follow).
  static Result<std::unique_ptr<OneDevice>> Create(int device, const CudaOptions& options);
  ~OneDevice();
  OneDevice(const OneDevice&) = delete;
  OneDevice& operator=(const OneDevice&) = delete;

  int device() const { return trainer_.device; }
  cudaEvent_t released() const { return released_.get(); }
  Status Follow(cudaStream_t stream);
  Status Release(cudaStream_t stream) const;

  Status Check(Bytes tensor) const;
  Status Prepare(Chunks chunks);
  Status PrepareDigestNow(Chunks chunks) { return other_digests_.Fit(chunks); }

  Status MarkBegin();
  // Digests the chunks of the last Prepare.
  Status BeginDigests(uint64_t seed, DeviceTensorSource::Trainer trainer);
  // Returns the digests of the first chunks, more than `have`.
  Result<std::span<const Digest>> TakeDigests(size_t have);
  struct Copy {
    size_t chunk = 0;
    std::byte* to = nullptr;
  };
  Result<uint64_t> CopyToHost(std::span<const Copy> copies);
  Status MarkRelease();
  // Starts to copy staging to the host. The trainer does not wait for it: MarkRelease needs only
  // what CopyToHost has enqueued.
  Status Drain();
  Status AwaitCopies();

  // Digests chunks as they were at the last MarkBegin. Take waits for them, also after an error of
  // Begin, which it then returns.
  void BeginDigestNow(uint64_t seed, Chunks chunks);
  Result<std::span<const Digest>> TakeDigestNow();

  Status Read(Bytes from, std::span<std::byte> to);
  Status Write(Bytes from, std::byte* to, int half);
  Status AwaitWrites(int half);
  Status CopyOnDevice(std::span<const DeviceTensorSource::Block> blocks);

 private:
  struct Move {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    uint64_t bytes = 0;
    bool begins_tensor = true;
  };
  static constexpr size_t kPiecesInFlight = 2;

  OneDevice(const CudaStream& trainer, Stream following, const CudaOptions& options)
      : following_(std::move(following)),
        trainer_(trainer),
        digest_blocks_(options.digest_blocks),
        digests_(trainer.device, options.digest_part_bytes),
        other_digests_(trainer.device, options.digest_part_bytes) {}
  Status Init(uint64_t staging_bytes);
  Status CheckNotCapturing() const { return CheckNotCapturing(trainer_.stream); }
  Status CheckNotCapturing(cudaStream_t stream) const;
  bool IsTrainerWaiting() const;
  void PlaceStaged();
  Status EnqueueDigestNow(uint64_t seed, Chunks chunks);
  static std::vector<Move> Merge(std::span<const Move> moves);
  // Copies moves from the front, as many as make up a piece, and returns their bytes.
  Result<uint64_t> CopyPiece(std::span<Move>* moves);
  Status CopyBlock(const DeviceTensorSource::Block& block);
  Status MarkCopied();
  // Takes as many as fit from the front of `moves`.
  Status Gather(std::span<Move>* moves);

  const Stream following_;  // null: the trainer's stream was given
  const CudaStream trainer_;
  const uint32_t digest_blocks_;  // of a processor, while the trainer computes
  Stream reading_;
  Stream copying_;
  Stream joining_;  // waits for the two
  Stream draining_;
  Stream comparing_;  // for DigestNow
  Event followed_;    // null: the trainer's stream was given
  Event begun_;
  Event digested_;                             // in reading_: all digests
  Event copied_;                               // in copying_: what it has until now
  Event released_;                             // in joining_: both
  std::array<Event, kPiecesInFlight> pieces_;  // for the copies under way
  size_t num_pieces_ = 0;
  DeviceStaging staging_;
  ChunkDigests digests_;
  ChunkDigests other_digests_;  // for DigestNow
  Status begun_now_;            // what BeginDigestNow has to say
  size_t max_gathered_ = 0;
  std::unique_ptr<DeviceCopier> gatherer_;
  std::vector<std::unique_ptr<DeviceCopier>> old_gatherers_;  // as ChunkDigests keeps its memory

  DeviceTensorSource::Trainer trainer_says_;
  std::vector<DeviceTensorSource::Chunk> chunks_;  // of the last Prepare
  // Where the kernel that digests a chunk copies it to, in staging. Null: it does not.
  std::vector<std::byte*> copies_;
  std::vector<size_t> changed_;  // chunks that had changed in this save, or else the last one
  std::vector<Move> staged_;     // that must still be drained

  std::array<Event, 2> written_;  // of each half
};

}  // namespace varve::internal::gpu
