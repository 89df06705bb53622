// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_digest.h"

#include <algorithm>
#include <string>

namespace varve::internal::gpu {
Result<std::unique_ptr<DeviceDigester>> DeviceDigester::Create(int device, size_t max_chunks) {
  std::unique_ptr<DeviceDigester> digester(new DeviceDigester(device));
  VARVE_RETURN_IF_ERROR(digester->Init(max_chunks));
  return digester;
}

DeviceDigester::~DeviceDigester() {
  const CaptureApart apart;
  Take().status().IgnoreError();  // what is enqueued refers to this
}

Status DeviceDigester::Init(size_t max_chunks) {
  max_chunks = std::max<size_t>(max_chunks, 1);  // not all allocators know nothing
  const DeviceScope scope(device_);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(LoadKernels(&shapes_));
  VARVE_ASSIGN_OR_RETURN(runs_, AllocatePinned<DigestRun>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(copies_, AllocatePinned<std::byte*>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(digests_, AllocatePinned<Digest>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(device_runs_, AllocateOnDevice<DigestRun>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(device_copies_, AllocateOnDevice<std::byte*>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(device_digests_, AllocateOnDevice<Digest>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(next_, AllocateOnDevice<uint32_t>(2 * kMaxParts));
  for (Event& event : done_) {
    VARVE_ASSIGN_OR_RETURN(event, MakeEvent());
  }
  return Status::Ok();
}

Status DeviceDigester::SetChunks(std::span<const PlacedChunk> chunks, size_t places,
                                 uint64_t part_bytes) {
  VARVE_RETURN_IF_ERROR(CheckTaken());
  VARVE_RETURN_IF_ERROR(CheckChunks(chunks, places));
  are_runs_there_ = false;
  places_ = places;
  ListParts({chunks.begin(), chunks.end()}, part_bytes);
  return Status::Ok();
}

Status DeviceDigester::Enqueue(uint64_t seed, std::span<const DeviceChunk> chunks,
                               cudaStream_t stream) {
  std::vector<PlacedChunk> placed;
  std::vector<std::byte*> copies;
  for (const DeviceChunk& chunk : chunks) {
    placed.push_back({chunk.data, chunk.bytes, static_cast<uint32_t>(placed.size())});
    copies.push_back(chunk.copy);
  }
  VARVE_RETURN_IF_ERROR(SetChunks(placed, placed.size(), UINT64_MAX));
  return Enqueue(seed, stream, {.copies = copies});
}

Status DeviceDigester::Enqueue(uint64_t seed, cudaStream_t stream, const How& how) {
  VARVE_RETURN_IF_ERROR(CheckTaken());
  if (num_jobs_ == 0) return Status::Ok();
  const Status enqueued = EnqueueBatch(seed, stream, how);
  is_pending_ = enqueued.ok();
  are_runs_there_ = enqueued.ok();
  if (!enqueued.ok()) (void)cudaStreamSynchronize(stream);  // a part may be, which refers to this
  return enqueued;
}

Result<std::span<Digest>> DeviceDigester::TakePart(size_t have) {
  if (!is_pending_) return std::span<Digest>(digests_.data(), places_);
  size_t part = 0;
  while (enqueued_[part].end_place <= have) ++part;
  VARVE_CUDA(cudaEventSynchronize(done_[part].get()));
  is_pending_ = part + 1 < enqueued_.size();
  return std::span<Digest>(digests_.data(), enqueued_[part].end_place);
}

Status DeviceDigester::CheckTaken() const {
  if (!is_pending_) return Status::Ok();
  return Status::FailedPrecondition("the batch of digests before has not been taken");
}

Status DeviceDigester::CheckChunks(std::span<const PlacedChunk> chunks, size_t places) const {
  if (places > digests_.size()) {
    return Status::InvalidArgument("a batch of " + std::to_string(places) +
                                   " chunks, expected at most " + std::to_string(digests_.size()));
  }
  const auto is_short = [](const PlacedChunk& chunk) { return chunk.bytes < kMinDigestBytes; };
  const auto found = std::ranges::find_if(chunks, is_short);
  if (found == chunks.end()) return Status::Ok();
  return Status::InvalidArgument("chunk " + std::to_string(found - chunks.begin()) + " has " +
                                 std::to_string(found->bytes) + " bytes, expected at least " +
                                 std::to_string(kMinDigestBytes));
}

// Cuts the chunks into parts of equal numbers of places. Precondition: there are no more chunks
// than places.
void DeviceDigester::ListParts(std::vector<PlacedChunk> chunks, uint64_t part_bytes) {
  uint64_t bytes = 0;
  for (const PlacedChunk& chunk : chunks) bytes += chunk.bytes;
  const size_t most = std::clamp<size_t>(places_, 1, kMaxParts);
  const size_t count = std::clamp<size_t>(bytes / part_bytes, 1, most);
  parts_.clear();
  num_jobs_ = 0;
  num_runs_ = 0;
  const std::span<PlacedChunk> all(chunks);
  for (size_t part = 1; part <= count; ++part) {
    const size_t end = places_ * part / count;
    const auto is_before = [](const PlacedChunk& chunk, size_t place) {
      return chunk.place < place;
    };
    const auto last = std::lower_bound(all.begin(), all.end(), end, is_before);
    const std::span<PlacedChunk> of_part =
        all.first(static_cast<size_t>(last - all.begin())).subspan(num_jobs_);
    std::ranges::stable_sort(of_part, std::ranges::greater(), &PlacedChunk::bytes);
    ListRuns(of_part);
    parts_.push_back({num_jobs_, end});
  }
}

void DeviceDigester::ListRuns(std::span<const PlacedChunk> chunks) {
  for (const PlacedChunk& chunk : chunks) {
    DigestRun* const last = num_runs_ > 0 ? &runs_[num_runs_ - 1] : nullptr;
    const uint32_t in_last = last != nullptr ? num_jobs_ - last->first_job : 0;
    const bool follows = last != nullptr && last->chunk_bytes == chunk.bytes &&
                         last->data + in_last * last->chunk_bytes == chunk.data &&
                         last->first_place + in_last == chunk.place;
    if (!follows) runs_[num_runs_++] = {chunk.data, chunk.bytes, num_jobs_, chunk.place};
    ++num_jobs_;
  }
}

Status DeviceDigester::EnqueueBatch(uint64_t seed, cudaStream_t stream, const How& how) {
  const DeviceScope scope(device_);
  VARVE_RETURN_IF_ERROR(scope.status());
  if (!are_runs_there_) {
    VARVE_CUDA(cudaMemcpyAsync(device_runs_.data(), runs_.data(), num_runs_ * sizeof(DigestRun),
                               cudaMemcpyHostToDevice, stream));
  }
  How with = how;
  const auto is_copied = [](const std::byte* copy) { return copy != nullptr; };
  if (std::ranges::none_of(how.copies, is_copied)) with.copies = {};
  if (!with.copies.empty()) {
    std::ranges::copy(with.copies, copies_.data());
    VARVE_CUDA(cudaMemcpyAsync(device_copies_.data(), copies_.data(), with.copies.size_bytes(),
                               cudaMemcpyHostToDevice, stream));
  }
  VARVE_CUDA(cudaMemsetAsync(next_.data(), 0, next_.size() * sizeof(uint32_t), stream));
  const uint32_t room = shapes_.digest_blocks;
  const uint32_t wanted = how.blocks_per_processor == 0 ? room : how.blocks_per_processor;
  const uint32_t blocks = shapes_.processors * std::min(wanted, room);
  const DigestKeys keys = MakeDigestKeys(seed);
  enqueued_ = how.in_parts ? parts_ : std::vector<Part>{parts_.back()};
  Part begin;
  for (size_t i = 0; i < enqueued_.size(); begin = enqueued_[i++]) {
    VARVE_RETURN_IF_ERROR(EnqueuePart(begin, enqueued_[i], keys, blocks, with, stream, i));
  }
  return Status::Ok();
}

Status DeviceDigester::EnqueuePart(const Part& begin, const Part& end, const DigestKeys& keys,
                                   uint32_t blocks, const How& how, cudaStream_t stream,
                                   size_t number) {
  const uint32_t jobs = end.end_job - begin.end_job;
  const uint32_t num_by_warps = NumByWarps(jobs, blocks * kWarpsPerBlock);
  const bool has_device_alone = how.blocks_per_processor == 0;
  const DigestBatch batch = {
      .runs = device_runs_.data(),
      .num_runs = static_cast<uint32_t>(num_runs_),
      .first = begin.end_job,
      .size = jobs,
      .num_by_warps = num_by_warps,
      .has_wide_blocks = has_device_alone && num_by_warps == 0 && jobs <= shapes_.processors,
      .next = next_.data() + 2 * number,
      .copies = how.copies.empty() ? nullptr : device_copies_.data(),
      .digests = device_digests_.data()};
  if (jobs > 0) VARVE_CUDA(LaunchDigests(batch, keys, blocks, stream));
  const size_t places = end.end_place - begin.end_place;
  VARVE_CUDA(cudaMemcpyAsync(digests_.data() + begin.end_place,
                             device_digests_.data() + begin.end_place, places * sizeof(Digest),
                             cudaMemcpyDeviceToHost, stream));
  VARVE_CUDA(cudaEventRecord(done_[number].get(), stream));
  return Status::Ok();
}

}  // namespace varve::internal::gpu
