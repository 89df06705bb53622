// SPDX-License-Identifier: Apache-2.0
#include "cuda/one_device.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace varve::gpu {
namespace {

// Long enough for the bus, short enough that the trainer, which may come at any time, does not wait
// long for those under way.
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
  VARVE_ASSIGN_OR_RETURN(begun_, MakeEvent());
  VARVE_ASSIGN_OR_RETURN(released_, MakeEvent());
  for (Event& event : pieces_) {
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

Status OneDevice::Prepare(std::span<const Bytes> chunks) {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  const auto is_small = [](const Bytes& bytes) { return bytes.size() <= SmallChunks::kMaxBytes; };
  const auto small = static_cast<size_t>(std::ranges::count_if(chunks, is_small));
  const size_t large = chunks.size() - small;
  if (digester_ == nullptr || large > max_large_) {
    VARVE_ASSIGN_OR_RETURN(digester_, DeviceDigester::Create(device(), large));
    VARVE_ASSIGN_OR_RETURN(gatherer_, DeviceCopier::Create(device(), large, staging_.size()));
    max_large_ = large;
  }
  if (small_ == nullptr || small > max_small_) {
    VARVE_ASSIGN_OR_RETURN(small_, SmallChunks::Create(device(), small));
    max_small_ = small;
  }
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

void OneDevice::List(std::vector<Bytes> chunks) {
  chunks_.clear();
  size_t places[2] = {};
  for (const Bytes& bytes : chunks) {
    Chunk chunk{.bytes = bytes};
    chunk.place = places[chunk.is_small() ? 1 : 0]++;
    chunks_.push_back(chunk);
  }
}

bool OneDevice::HasChangedBefore(size_t i, const std::vector<Chunk>& before) const {
  return i < before.size() && before[i].has_changed &&
         before[i].bytes.data() == chunks_[i].bytes.data();
}

Status OneDevice::BeginDigests(uint64_t seed, std::vector<Bytes> chunks,
                               std::function<bool()> is_awaited) {
  const std::vector<Chunk> before = std::move(chunks_);
  is_awaited_ = std::move(is_awaited);
  staged_.clear();
  staging_.Clear();
  num_pieces_ = 0;
  List(std::move(chunks));
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaStreamWaitEvent(reading_.get(), begun_.get(), 0));
  const Status enqueued = EnqueueDigests(seed, before);
  VARVE_CUDA(cudaEventRecord(released_.get(), reading_.get()));  // whatever of it was enqueued
  return enqueued;
}

Status OneDevice::EnqueueDigests(uint64_t seed, const std::vector<Chunk>& before) {
  std::vector<DeviceChunk> large;
  std::vector<Bytes> small;
  const bool is_awaited = is_awaited_();
  for (size_t i = 0; i < chunks_.size(); ++i) {
    Chunk& chunk = chunks_[i];
    if (chunk.is_small()) {
      small.push_back(chunk.bytes);
      continue;
    }
    std::byte* copy = nullptr;
    if (is_awaited && HasChangedBefore(i, before)) copy = staging_.Take(chunk.bytes.size());
    chunk.staged = copy;
    large.push_back({chunk.bytes.data(), chunk.bytes.size(), copy});
  }
  if (large.size() > max_large_ || small.size() > max_small_) {
    return Status::FailedPrecondition(
        std::to_string(large.size()) + " large and " + std::to_string(small.size()) +
        " small chunks, expected at most " + std::to_string(max_large_) + " and " +
        std::to_string(max_small_) + ", as Prepare was told");
  }
  if (!small.empty()) VARVE_RETURN_IF_ERROR(small_->Begin(small, reading_.get()));
  if (!large.empty()) VARVE_RETURN_IF_ERROR(digester_->Enqueue(seed, large, reading_.get()));
  digests_.assign(chunks_.size(), Digest{});
  seed_ = seed;
  return Status::Ok();
}

Result<std::span<const Digest>> OneDevice::TakeDigests() {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  std::span<const Digest> large;
  if (digester_ != nullptr) {
    VARVE_ASSIGN_OR_RETURN(large, digester_->Take());
  }
  if (small_ != nullptr) VARVE_RETURN_IF_ERROR(small_->Await());
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    digests_[i] =
        chunk.is_small() ? ComputeDigest(seed_, (*small_)[chunk.place]) : large[chunk.place];
  }
  return std::span<const Digest>(digests_);
}

// Neighbours become one, up to the length of a piece.
std::vector<OneDevice::Move> OneDevice::Merge(std::span<const Move> moves) {
  std::vector<Move> merged;
  for (const Move& move : moves) {
    Move* const last = merged.empty() ? nullptr : &merged.back();
    const bool follows = last != nullptr && last->from + last->bytes == move.from &&
                         last->to + last->bytes == move.to &&
                         last->bytes + move.bytes <= kPieceBytes;
    if (follows) {
      last->bytes += move.bytes;
    } else {
      merged.push_back(move);
    }
  }
  return merged;
}

Status OneDevice::CopyToHost(std::span<const Copy> copies) {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  std::vector<Move> moves;
  for (const Copy& copy : copies) {
    Chunk& chunk = chunks_[copy.chunk];
    chunk.has_changed = true;
    const Bytes bytes = chunk.bytes;
    if (chunk.is_small()) {
      std::memcpy(copy.to, (*small_)[chunk.place].data(), bytes.size());
    } else if (chunk.staged != nullptr) {
      staged_.push_back({chunk.staged, copy.to, bytes.size()});
    } else {
      moves.push_back({bytes.data(), copy.to, bytes.size()});
    }
  }
  const std::vector<Move> merged = Merge(moves);
  std::span<const Move> pieces = merged;
  while (!pieces.empty()) {
    if (staging_.HasRoom(pieces[0].bytes) && is_awaited_()) {
      VARVE_RETURN_IF_ERROR(Gather(&pieces));
      continue;
    }
    VARVE_RETURN_IF_ERROR(CopyPiece(pieces[0]));
    pieces = pieces.subspan(1);
  }
  return Drain();
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

Status OneDevice::Gather(std::span<const Move>* pieces) {
  std::vector<DeviceChunk> gathered;
  for (; !pieces->empty(); *pieces = pieces->subspan(1)) {
    const Move& piece = pieces->front();
    std::byte* const staged = staging_.Take(piece.bytes);
    if (staged == nullptr) break;
    gathered.push_back({piece.from, piece.bytes, staged});
    staged_.push_back({staged, piece.to, piece.bytes});
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
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaStreamWaitEvent(trainer_.stream, released_.get(), 0));
  return Status::Ok();
}

Status OneDevice::AwaitCopies() {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  if (digester_ != nullptr) digester_->Take().status().IgnoreError();  // of a save that failed
  const Status read = ToStatus(cudaStreamSynchronize(reading_.get()), "cudaStreamSynchronize");
  const Status drained = ToStatus(cudaStreamSynchronize(draining_.get()), "cudaStreamSynchronize");
  return read.ok() ? drained : read;
}

Status OneDevice::Read(Bytes from, std::span<std::byte> to) {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToHost,
                             draining_.get()));
  VARVE_CUDA(cudaStreamSynchronize(draining_.get()));
  return Status::Ok();
}

Status OneDevice::Write(Bytes from, std::byte* to) {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  const std::lock_guard lock(write_mutex_);
  if (!is_writing_) {  // behind what still reads the old values
    VARVE_RETURN_IF_ERROR(MarkBegin());
    VARVE_CUDA(cudaStreamWaitEvent(reading_.get(), begun_.get(), 0));
    is_writing_ = true;
  }
  VARVE_CUDA(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, reading_.get()));
  return Status::Ok();
}

Status OneDevice::AwaitWrites() {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  const std::lock_guard lock(write_mutex_);
  is_writing_ = false;
  VARVE_CUDA(cudaStreamSynchronize(reading_.get()));
  return Status::Ok();
}

}  // namespace varve::gpu
