// SPDX-License-Identifier: Apache-2.0
//
// One device's part of a save. It has two streams of its own besides the trainer's:
//
//   trainer ──begin──┬─ forward, backward ──────────── waits for released ── optimizer step
//   reading          └► digests ─► copies ─►released   (all that reads tensors)
//   draining                                   └► staging to the host, arrived
//
// At first, chunks that changed are copied straight to the host, a few megabytes at a time. The
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

  static Result<std::unique_ptr<OneDevice>> Create(const CudaStream& stream,
                                                   uint64_t staging_bytes);
  ~OneDevice();
  OneDevice(const OneDevice&) = delete;
  OneDevice& operator=(const OneDevice&) = delete;

  int device() const { return trainer_.device; }
  cudaEvent_t released() const { return released_.get(); }

  Status Check(Bytes tensor) const;
  Status Prepare(Chunks chunks);
  Status PrepareDigestNow(Chunks chunks) { return other_digests_.Fit(chunks); }

  Status MarkBegin();
  Status BeginDigests(uint64_t seed, Chunks chunks, DeviceTensorSource::Trainer trainer);
  // Returns one digest for each chunk.
  Result<std::span<const Digest>> TakeDigests();
  struct Copy {
    size_t chunk = 0;
    std::byte* to = nullptr;
  };
  Result<uint64_t> CopyToHost(std::span<const Copy> copies);
  Status MarkRelease();
  Status AwaitCopies();

  // Digests chunks as they were at the last MarkBegin. It waits.
  Result<std::span<const Digest>> DigestNow(uint64_t seed, Chunks chunks);

  Status Read(Bytes from, std::span<std::byte> to);
  Status Write(Bytes from, std::byte* to, int half);
  Status AwaitWrites(int half);

 private:
  struct Move {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    uint64_t bytes = 0;
    bool begins_tensor = true;
  };
  struct Chunk {
    Bytes bytes;
    bool begins_tensor = true;
    std::byte* staged = nullptr;  // its copy in staging
    bool has_changed = false;
  };
  static constexpr size_t kPiecesInFlight = 2;

  explicit OneDevice(const CudaStream& trainer)
      : trainer_(trainer), digests_(trainer.device), other_digests_(trainer.device) {}
  Status Init(uint64_t staging_bytes);
  Status CheckNotCapturing() const;
  bool IsTrainerWaiting() const;
  std::vector<DeviceChunk> PlaceChunks(Chunks chunks);
  Status BeginDigestsNow(uint64_t seed, Chunks chunks);
  static std::vector<Move> Merge(std::span<const Move> moves);
  Status CopyPiece(const Move& piece);
  // Takes as many as fit from the front of `pieces`.
  Status Gather(std::span<Move>* pieces);
  Status Drain();

  const CudaStream trainer_;
  Stream reading_;
  Stream draining_;
  Stream comparing_;  // for DigestNow
  Event begun_;
  Event released_;
  std::array<Event, kPiecesInFlight> pieces_;  // for the copies under way
  size_t num_pieces_ = 0;
  DeviceStaging staging_;
  ChunkDigests digests_;
  ChunkDigests other_digests_;  // for DigestNow
  size_t max_gathered_ = 0;
  std::unique_ptr<DeviceCopier> gatherer_;

  DeviceTensorSource::Trainer trainer_says_;
  std::vector<Chunk> chunks_;  // of the save under way, or else the last one
  std::vector<Move> staged_;   // that must still be drained

  std::array<Event, 2> written_;  // of each half
};

}  // namespace varve::internal::gpu
