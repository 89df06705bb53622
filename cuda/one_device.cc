// SPDX-License-Identifier: Apache-2.0
#include "cuda/one_device.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace varve::internal::gpu {
namespace {

// A piece is long enough for the bus. It is short enough that the trainer, which may come at any
// time, does not wait long for the pieces under way.
constexpr uint64_t kPieceBytes = uint64_t{32} << 20;

std::string Describe(const cudaPointerAttributes& attributes) {
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged:
      return "memory of device " + std::to_string(attributes.device);
    default:
      return "memory of the host";
  }
}

}  // namespace

Result<std::unique_ptr<OneDevice>> OneDevice::Create(const CudaStream& stream,
                                                     uint64_t staging_bytes) {
  std::unique_ptr<OneDevice> device(new OneDevice(stream));
  const Status status = device->Init(staging_bytes);
  if (!status.ok()) return status.WithContext("device " + std::to_string(stream.device));
  return device;
}

Status OneDevice::Init(uint64_t staging_bytes) {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_ASSIGN_OR_RETURN(reading_, MakeStream());
  VARVE_ASSIGN_OR_RETURN(draining_, MakeStream());
  VARVE_ASSIGN_OR_RETURN(comparing_, MakeStream());
  VARVE_ASSIGN_OR_RETURN(begun_, MakeEvent());
  VARVE_ASSIGN_OR_RETURN(released_, MakeEvent());
  for (Event& event : pieces_) {
    VARVE_ASSIGN_OR_RETURN(event, MakeEvent());
  }
  for (Event& event : written_) {
    VARVE_ASSIGN_OR_RETURN(event, MakeEvent());
  }
  VARVE_ASSIGN_OR_RETURN(staging_, DeviceStaging::Create(staging_bytes));
  return Status::Ok();
}

OneDevice::~OneDevice() {
  const DeviceScope scope(device());
  if (reading_ != nullptr) (void)cudaStreamSynchronize(reading_.get());
  if (draining_ != nullptr) (void)cudaStreamSynchronize(draining_.get());
}

Status OneDevice::Check(Bytes tensor) const {
  if (tensor.empty()) return Status::Ok();
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  for (const std::byte* at : {tensor.data(), &tensor.back()}) {
    cudaPointerAttributes found{};
    VARVE_CUDA(cudaPointerGetAttributes(&found, at));
    const bool is_there = found.type == cudaMemoryTypeManaged ||
                          (found.type == cudaMemoryTypeDevice && found.device == device());
    if (is_there) continue;
    return Status::InvalidArgument("its data lies in " + Describe(found) +
                                   ", expected memory of device " + std::to_string(device()));
  }
  return Status::Ok();
}

Status OneDevice::Prepare(Chunks chunks) {
  VARVE_RETURN_IF_ERROR(digests_.Fit(chunks));
  if (gatherer_ != nullptr && chunks.size() <= max_gathered_) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(gatherer_, DeviceCopier::Create(device(), chunks.size(), staging_.size()));
  max_gathered_ = chunks.size();
  return Status::Ok();
}

Status OneDevice::CheckNotCapturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  VARVE_CUDA(cudaStreamIsCapturing(trainer_.stream, &status));
  if (status == cudaStreamCaptureStatusNone) return Status::Ok();
  return Status::FailedPrecondition("the stream of device " + std::to_string(device()) +
                                    " is being captured: a save cannot be part of a graph");
}

Status OneDevice::MarkBegin() {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_RETURN_IF_ERROR(CheckNotCapturing());
  VARVE_CUDA(cudaEventRecord(begun_.get(), trainer_.stream));
  return Status::Ok();
}

bool OneDevice::IsTrainerWaiting() const {
  if (trainer_says_.waits_at_once) return true;
  if (!trainer_says_.is_awaiting()) return false;
  if (!CheckNotCapturing().ok()) return false;  // to ask would end its capture
  const bool has_run_dry = cudaStreamQuery(trainer_.stream) == cudaSuccess;
  if (!has_run_dry) (void)cudaGetLastError();  // or the next launch might report cudaErrorNotReady
  return has_run_dry;
}

// The chunks of a save. Chunks that will probably need staging on the device have a place there.
std::vector<DeviceChunk> OneDevice::PlaceChunks(Chunks chunks) {
  const std::vector<Chunk> before = std::move(chunks_);
  chunks_.clear();
  std::vector<DeviceChunk> placed;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Bytes bytes = chunks[i].bytes;
    const bool has_changed_before =
        i < before.size() && before[i].has_changed && before[i].bytes.data() == bytes.data();
    std::byte* staged = nullptr;
    if (trainer_says_.waits_at_once && has_changed_before && !ChunkDigests::IsSmall(bytes.size())) {
      staged = staging_.Take(bytes.size());
    }
    chunks_.push_back({.bytes = bytes, .begins_tensor = chunks[i].begins_tensor, .staged = staged});
    placed.push_back({bytes.data(), bytes.size(), staged});
  }
  return placed;
}

Status OneDevice::BeginDigests(uint64_t seed, Chunks chunks, DeviceTensorSource::Trainer trainer) {
  trainer_says_ = std::move(trainer);
  staged_.clear();
  staging_.Clear();
  num_pieces_ = 0;
  const std::vector<DeviceChunk> placed = PlaceChunks(chunks);
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaStreamWaitEvent(reading_.get(), begun_.get(), 0));
  const Status enqueued = digests_.Begin(seed, placed, reading_.get());
  VARVE_CUDA(
      cudaEventRecord(released_.get(), reading_.get()));  // whatever was enqueued before the error
  return enqueued;
}

Result<std::span<const Digest>> OneDevice::TakeDigests() {
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  return digests_.Take();
}

Status OneDevice::BeginDigestsNow(uint64_t seed, Chunks chunks) {
  std::vector<DeviceChunk> placed;
  for (const auto& chunk : chunks) placed.push_back({chunk.bytes.data(), chunk.bytes.size()});
  VARVE_CUDA(cudaStreamWaitEvent(comparing_.get(), begun_.get(), 0));
  return other_digests_.Begin(seed, placed, comparing_.get());
}

Result<std::span<const Digest>> OneDevice::DigestNow(uint64_t seed, Chunks chunks) {
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  const Status begun = BeginDigestsNow(seed, chunks);
  auto digests = begun.ok() ? other_digests_.Take() : Result<std::span<const Digest>>(begun);
  if (digests.ok()) return digests;
  (void)cudaStreamSynchronize(comparing_.get());  // what was enqueued reads tensors
  other_digests_.Take().status().IgnoreError();   // and is not in the way of the next
  return digests;
}

// Joins neighbours up to the length of a piece.
std::vector<OneDevice::Move> OneDevice::Merge(std::span<const Move> moves) {
  std::vector<Move> merged;
  for (const Move& move : moves) {
    Move* const last = merged.empty() ? nullptr : &merged.back();
    const bool follows =
        last != nullptr && !move.begins_tensor && last->from + last->bytes == move.from &&
        last->to + last->bytes == move.to && last->bytes + move.bytes <= kPieceBytes;
    if (follows) {
      last->bytes += move.bytes;
    } else {
      merged.push_back(move);
    }
  }
  return merged;
}

Result<uint64_t> OneDevice::CopyToHost(std::span<const Copy> copies) {
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  std::vector<Move> moves;
  for (const Copy& copy : copies) {
    Chunk& chunk = chunks_[copy.chunk];
    chunk.has_changed = true;
    const Bytes bytes = chunk.bytes;
    if (ChunkDigests::IsSmall(bytes.size())) {
      std::memcpy(copy.to, digests_.small(copy.chunk).data(), bytes.size());
    } else if (chunk.staged != nullptr) {
      staged_.push_back({chunk.staged, copy.to, bytes.size(), false});
    } else {
      moves.push_back({bytes.data(), copy.to, bytes.size(), chunk.begins_tensor});
    }
  }
  std::vector<Move> merged = Merge(moves);
  std::span<Move> pieces = merged;
  uint64_t waited_bytes = 0;
  while (!pieces.empty()) {
    const bool is_waiting = IsTrainerWaiting();
    if (is_waiting && staging_.room() > 0) {
      VARVE_RETURN_IF_ERROR(Gather(&pieces));
      continue;
    }
    if (is_waiting) waited_bytes += pieces[0].bytes;
    VARVE_RETURN_IF_ERROR(CopyPiece(pieces[0]));
    pieces = pieces.subspan(1);
  }
  VARVE_RETURN_IF_ERROR(Drain());
  return waited_bytes;
}

Status OneDevice::CopyPiece(const Move& piece) {
  const cudaEvent_t done = pieces_[num_pieces_++ % kPiecesInFlight].get();
  VARVE_CUDA(cudaEventSynchronize(done));  // of the piece so many before
  VARVE_CUDA(
      cudaMemcpyAsync(piece.to, piece.from, piece.bytes, cudaMemcpyDeviceToHost, reading_.get()));
  VARVE_CUDA(cudaEventRecord(done, reading_.get()));
  VARVE_CUDA(cudaEventRecord(released_.get(), reading_.get()));
  return Status::Ok();
}

Status OneDevice::Gather(std::span<Move>* pieces) {
  std::vector<DeviceChunk> gathered;
  while (!pieces->empty() && staging_.room() > 0) {
    Move& piece = pieces->front();
    const uint64_t bytes = std::min(piece.bytes, staging_.room());
    std::byte* const staged = staging_.Take(bytes);
    gathered.push_back({piece.from, bytes, staged});
    staged_.push_back({staged, piece.to, bytes, false});
    piece = {piece.from + bytes, piece.to + bytes, piece.bytes - bytes, piece.begins_tensor};
    if (piece.bytes == 0) *pieces = pieces->subspan(1);
  }
  VARVE_RETURN_IF_ERROR(gatherer_->Enqueue(gathered, reading_.get()));
  VARVE_CUDA(cudaEventRecord(released_.get(), reading_.get()));
  return Status::Ok();
}

Status OneDevice::Drain() {
  VARVE_CUDA(cudaStreamWaitEvent(draining_.get(), released_.get(), 0));
  for (const Move& move : Merge(staged_)) {
    VARVE_CUDA(
        cudaMemcpyAsync(move.to, move.from, move.bytes, cudaMemcpyDeviceToHost, draining_.get()));
  }
  return Status::Ok();
}

Status OneDevice::MarkRelease() {
  const DeviceScope scope(device());
  Status status = scope.status();
  if (status.ok()) status = CheckNotCapturing();
  if (status.ok()) {
    status = ToStatus(cudaStreamWaitEvent(trainer_.stream, released_.get(), 0),
                      "cudaStreamWaitEvent(trainer)");
  }
  if (!status.ok()) (void)cudaEventSynchronize(released_.get());  // then the host waits for it
  return status;
}

Status OneDevice::AwaitCopies() {
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  digests_.Take().status().IgnoreError();  // of a save that failed
  const Status read = ToStatus(cudaStreamSynchronize(reading_.get()), "cudaStreamSynchronize");
  const Status drained = ToStatus(cudaStreamSynchronize(draining_.get()), "cudaStreamSynchronize");
  return read.ok() ? drained : read;
}

Status OneDevice::Read(Bytes from, std::span<std::byte> to) {
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToHost,
                             draining_.get()));
  VARVE_CUDA(cudaStreamSynchronize(draining_.get()));
  return Status::Ok();
}

Status OneDevice::Write(Bytes from, std::byte* to, int half) {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_RETURN_IF_ERROR(MarkBegin());  // what still reads the old values goes first
  VARVE_CUDA(cudaStreamWaitEvent(reading_.get(), begun_.get(), 0));
  VARVE_CUDA(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, reading_.get()));
  VARVE_CUDA(cudaEventRecord(written_[half].get(), reading_.get()));
  return Status::Ok();
}

Status OneDevice::AwaitWrites(int half) {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaEventSynchronize(written_[half].get()));
  return Status::Ok();
}

}  // namespace varve::internal::gpu
