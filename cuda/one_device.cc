// SPDX-License-Identifier: Apache-2.0
#include "cuda/one_device.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace varve::internal::gpu {
namespace {

// A piece is long enough for the bus, and for the host, which waits for one before it enqueues the
// next but one. It is short enough that the trainer, which may come at any time, does not wait long
// for the pieces under way.
constexpr uint64_t kMoveBytes = uint64_t{32} << 20;

constexpr uint64_t kMaxStep = INT32_MAX;  // cudaDevAttrMaxPitch, on all devices

std::string Describe(const cudaPointerAttributes& attributes) {
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged:
      return "memory of device " + std::to_string(attributes.device);
    default:
      return "memory of the host";
  }
}

// The kernels are compiled for it and what comes after it (VarveCuda.cmake).
constexpr int kMinMajor = 8;

Status CheckCapability(int device) {
  int major = 0;
  VARVE_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  if (major >= kMinMajor) return Status::Ok();
  return Status::Unavailable("its compute capability is " + std::to_string(major) +
                             ".x, and the kernels need " + std::to_string(kMinMajor) + ".0");
}

Result<Stream> MakeStreamOf(int device) {
  const DeviceScope scope(device);
  VARVE_RETURN_IF_ERROR(scope.status());
  return MakeStream();
}

}  // namespace

Result<std::unique_ptr<OneDevice>> OneDevice::Create(const CudaStream& stream,
                                                     const CudaOptions& options) {
  std::unique_ptr<OneDevice> device(new OneDevice(stream, nullptr, options));
  const Status status = device->Init(options.staging_bytes);
  if (!status.ok()) return status.WithContext("device " + std::to_string(stream.device));
  return device;
}

Result<std::unique_ptr<OneDevice>> OneDevice::Create(int id, const CudaOptions& options) {
  auto stream = MakeStreamOf(id);
  if (!stream.ok()) return stream.status().WithContext("device " + std::to_string(id));
  const CudaStream trainer{id, stream->get()};
  std::unique_ptr<OneDevice> device(new OneDevice(trainer, *std::move(stream), options));
  const Status status = device->Init(options.staging_bytes);
  if (!status.ok()) return status.WithContext("device " + std::to_string(id));
  return device;
}

Status OneDevice::Init(uint64_t staging_bytes) {
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_RETURN_IF_ERROR(CheckCapability(device()));
  if (following_ != nullptr) {
    VARVE_ASSIGN_OR_RETURN(followed_, MakeEvent());
  }
  VARVE_ASSIGN_OR_RETURN(reading_, MakeStream());
  VARVE_ASSIGN_OR_RETURN(copying_, MakeStream());
  VARVE_ASSIGN_OR_RETURN(joining_, MakeStream());
  VARVE_ASSIGN_OR_RETURN(draining_, MakeStream());
  VARVE_ASSIGN_OR_RETURN(comparing_, MakeStream());
  VARVE_ASSIGN_OR_RETURN(begun_, MakeEvent());
  VARVE_ASSIGN_OR_RETURN(digested_, MakeEvent());
  VARVE_ASSIGN_OR_RETURN(copied_, MakeEvent());
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
  for (const Stream* const stream : {&reading_, &copying_, &joining_, &draining_}) {
    if (*stream != nullptr) (void)cudaStreamSynchronize(stream->get());
  }
}

Status OneDevice::Follow(cudaStream_t stream) {
  if (following_ == nullptr) {
    return Status::InvalidArgument("the stream of device " + std::to_string(device()) +
                                   " was given, and cannot follow another one");
  }
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_RETURN_IF_ERROR(CheckNotCapturing(stream));
  VARVE_CUDA(cudaEventRecord(followed_.get(), stream));
  VARVE_CUDA(cudaStreamWaitEvent(following_.get(), followed_.get(), 0));
  return Status::Ok();
}

Status OneDevice::Release(cudaStream_t stream) const {
  const DeviceScope scope(device());
  Status status = scope.status();
  if (status.ok()) status = CheckNotCapturing(stream);
  if (status.ok()) {
    status = ToStatus(cudaStreamWaitEvent(stream, released_.get(), 0), "cudaStreamWaitEvent");
  }
  if (!status.ok()) (void)cudaEventSynchronize(released_.get());  // then the host waits for it
  return status;
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
  staged_.clear();
  chunks_.assign(chunks.begin(), chunks.end());
  copies_.assign(chunks.size(), nullptr);
  changed_.clear();
  VARVE_RETURN_IF_ERROR(digests_.Fit(chunks));
  VARVE_RETURN_IF_ERROR(digests_.SetChunks(chunks));
  if (gatherer_ != nullptr && chunks.size() <= max_gathered_) return Status::Ok();
  const size_t size = std::max(chunks.size(), 2 * max_gathered_);
  VARVE_ASSIGN_OR_RETURN(auto gatherer, DeviceCopier::Create(device(), size, staging_.size()));
  if (gatherer_ != nullptr) old_gatherers_.push_back(std::move(gatherer_));
  gatherer_ = std::move(gatherer);
  max_gathered_ = size;
  return Status::Ok();
}

Status OneDevice::CheckNotCapturing(cudaStream_t stream) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  VARVE_CUDA(cudaStreamIsCapturing(stream, &status));
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

// Chunks that will probably need staging on the device have a place there.
void OneDevice::PlaceStaged() {
  const std::vector<size_t> before = std::exchange(changed_, {});
  std::ranges::fill(copies_, nullptr);
  if (!trainer_says_.waits_at_once) return;
  for (const size_t i : before) {
    const uint64_t bytes = chunks_[i].bytes.size();
    if (!ChunkDigests::IsSmall(bytes)) copies_[i] = staging_.Take(bytes);
  }
}

Status OneDevice::BeginDigests(uint64_t seed, DeviceTensorSource::Trainer trainer) {
  trainer_says_ = std::move(trainer);
  staged_.clear();
  staging_.Clear();
  num_pieces_ = 0;
  PlaceStaged();
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaStreamWaitEvent(reading_.get(), begun_.get(), 0));
  const bool waits_at_once = trainer_says_.waits_at_once;
  const Status enqueued =
      digests_.Begin(seed, reading_.get(),
                     {.copies = copies_,
                      .blocks_per_processor = waits_at_once ? 0 : digest_blocks_,
                      .in_parts = !waits_at_once});
  // Whatever was enqueued before the error.
  VARVE_CUDA(cudaEventRecord(digested_.get(), reading_.get()));
  VARVE_CUDA(cudaStreamWaitEvent(joining_.get(), digested_.get(), 0));
  VARVE_CUDA(cudaEventRecord(released_.get(), joining_.get()));
  return enqueued;
}

Result<std::span<const Digest>> OneDevice::TakeDigests(size_t have) {
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  return digests_.TakePart(have);
}

Status OneDevice::EnqueueDigestNow(uint64_t seed, Chunks chunks) {
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_RETURN_IF_ERROR(other_digests_.SetChunks(chunks));
  VARVE_CUDA(cudaStreamWaitEvent(comparing_.get(), begun_.get(), 0));
  return other_digests_.Begin(seed, comparing_.get(), {.blocks_per_processor = digest_blocks_});
}

void OneDevice::BeginDigestNow(uint64_t seed, Chunks chunks) {
  begun_now_ = EnqueueDigestNow(seed, chunks);
}

Result<std::span<const Digest>> OneDevice::TakeDigestNow() {
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  auto digests =
      begun_now_.ok() ? other_digests_.Take() : Result<std::span<const Digest>>(begun_now_);
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
        last->to + last->bytes == move.to && last->bytes + move.bytes <= kMoveBytes;
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
    const DeviceTensorSource::Chunk& chunk = chunks_[copy.chunk];
    std::byte* const staged = copies_[copy.chunk];
    changed_.push_back(copy.chunk);
    const Bytes bytes = chunk.bytes;
    if (ChunkDigests::IsSmall(bytes.size())) {
      std::memcpy(copy.to, digests_.small(copy.chunk).data(), bytes.size());
    } else if (staged != nullptr) {
      staged_.push_back({staged, copy.to, bytes.size(), false});
    } else {
      moves.push_back({bytes.data(), copy.to, bytes.size(), chunk.begins_tensor});
    }
  }
  std::vector<Move> merged = Merge(moves);
  std::span<Move> left = merged;
  uint64_t waited_bytes = 0;
  while (!left.empty()) {
    const bool is_waiting = IsTrainerWaiting();
    if (is_waiting && staging_.room() > 0) {
      VARVE_RETURN_IF_ERROR(Gather(&left));
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, CopyPiece(&left));
    if (is_waiting) waited_bytes += bytes;
  }
  staged_ = Merge(staged_);  // here, so that Drain takes no memory
  return waited_bytes;
}

// The host has seen the digest of what is copied, so the tensor is as it was at the begin.
Result<uint64_t> OneDevice::CopyPiece(std::span<Move>* moves) {
  const cudaEvent_t done = pieces_[num_pieces_++ % kPiecesInFlight].get();
  VARVE_CUDA(cudaEventSynchronize(done));  // of the piece so many before
  uint64_t bytes = 0;
  do {
    const Move& move = moves->front();
    VARVE_CUDA(
        cudaMemcpyAsync(move.to, move.from, move.bytes, cudaMemcpyDeviceToHost, copying_.get()));
    bytes += move.bytes;
    *moves = moves->subspan(1);
  } while (!moves->empty() && bytes + moves->front().bytes <= kMoveBytes);
  VARVE_CUDA(cudaEventRecord(done, copying_.get()));
  VARVE_RETURN_IF_ERROR(MarkCopied());
  return bytes;
}

// `released_` comes after what copying_ has by now, and after all digests.
Status OneDevice::MarkCopied() {
  VARVE_CUDA(cudaEventRecord(copied_.get(), copying_.get()));
  VARVE_CUDA(cudaStreamWaitEvent(joining_.get(), copied_.get(), 0));
  VARVE_CUDA(cudaEventRecord(released_.get(), joining_.get()));
  return Status::Ok();
}

Status OneDevice::Gather(std::span<Move>* moves) {
  std::vector<DeviceChunk> gathered;
  while (!moves->empty() && staging_.room() > 0) {
    Move& move = moves->front();
    const uint64_t bytes = std::min(move.bytes, staging_.room());
    std::byte* const staged = staging_.Take(bytes);
    gathered.push_back({move.from, bytes, staged});
    staged_.push_back({staged, move.to, bytes, false});
    move = {move.from + bytes, move.to + bytes, move.bytes - bytes, move.begins_tensor};
    if (move.bytes == 0) *moves = moves->subspan(1);
  }
  VARVE_RETURN_IF_ERROR(gatherer_->Enqueue(gathered, copying_.get()));
  return MarkCopied();
}

Status OneDevice::Drain() {
  const std::vector<Move> staged = std::exchange(staged_, {});
  if (staged.empty()) return Status::Ok();
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaStreamWaitEvent(draining_.get(), released_.get(), 0));
  for (const Move& move : staged) {
    VARVE_CUDA(
        cudaMemcpyAsync(move.to, move.from, move.bytes, cudaMemcpyDeviceToHost, draining_.get()));
  }
  return Status::Ok();
}

Status OneDevice::MarkRelease() { return Release(trainer_.stream); }

Status OneDevice::AwaitCopies() {
  const DeviceScope scope(device(), DeviceScope::Thread::kOurs);
  VARVE_RETURN_IF_ERROR(scope.status());
  digests_.Take().status().IgnoreError();  // of a save that failed
  Status first;
  for (const Stream* const stream : {&reading_, &copying_, &joining_, &draining_}) {
    const Status done = ToStatus(cudaStreamSynchronize(stream->get()), "cudaStreamSynchronize");
    if (first.ok()) first = done;
  }
  return first;
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

Status OneDevice::CopyOnDevice(std::span<const DeviceTensorSource::Block> blocks) {
  if (blocks.empty()) return Status::Ok();
  const DeviceScope scope(device());
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_RETURN_IF_ERROR(MarkBegin());  // what still reads the old values goes first
  VARVE_CUDA(cudaStreamWaitEvent(reading_.get(), begun_.get(), 0));
  Status status;
  for (const auto& block : blocks) {
    if (status.ok()) status = CopyBlock(block);
  }
  const Status done = ToStatus(cudaStreamSynchronize(reading_.get()), "cudaStreamSynchronize");
  return status.ok() ? done : status;
}

Status OneDevice::CopyBlock(const DeviceTensorSource::Block& block) {
  const bool is_dense =
      block.count == 1 || (block.from_step == block.bytes && block.to_step == block.bytes);
  if (is_dense) {
    VARVE_CUDA(cudaMemcpyAsync(block.to, block.from, block.bytes * block.count,
                               cudaMemcpyDeviceToDevice, reading_.get()));
    return Status::Ok();
  }
  if (std::max(block.from_step, block.to_step) <= kMaxStep) {
    VARVE_CUDA(cudaMemcpy2DAsync(block.to, block.to_step, block.from, block.from_step, block.bytes,
                                 block.count, cudaMemcpyDeviceToDevice, reading_.get()));
    return Status::Ok();
  }
  for (uint64_t i = 0; i < block.count; ++i) {
    VARVE_CUDA(cudaMemcpyAsync(block.to + i * block.to_step, block.from + i * block.from_step,
                               block.bytes, cudaMemcpyDeviceToDevice, reading_.get()));
  }
  return Status::Ok();
}

}  // namespace varve::internal::gpu
