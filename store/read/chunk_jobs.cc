// SPDX-License-Identifier: Apache-2.0
#include "store/read/chunk_jobs.h"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "base/bytes_of.h"
#include "base/run_parallel.h"
#include "base/startable_threads.h"
#include "base/stop.h"
#include "store/shards/strided_copy.h"

namespace varve::internal {

namespace {

// Copies what is wanted of some elements of a decoded chunk to its places.
void Scatter(const ChunkJob& job, std::span<const std::byte> chunk, Range elements) {
  const DType dtype = job.part->record.dtype;
  const uint64_t chunk_begin = job.part->record.ChunkOffset(job.chunk);
  std::byte* const out = job.part->request->out().data();
  job.part->overlap.ForEachBlock(elements, [&](const CopyBlock& block) {
    CopyRuns(chunk.data() + (BytesOf(dtype, block.source) - chunk_begin),
             static_cast<int64_t>(BytesOf(dtype, block.source_step)),
             out + BytesOf(dtype, block.target),
             static_cast<int64_t>(BytesOf(dtype, block.target_step)), BytesOf(dtype, block.length),
             static_cast<int64_t>(block.count));
  });
}

// Returns the chunk's place in the caller's buffer, when all of it is wanted in one piece.
std::span<std::byte> DirectTarget(const ChunkJob& job) {
  const TensorRecord& record = job.part->record;
  const uint64_t bytes = record.ChunkBytes(job.chunk);
  const auto run = job.part->overlap.FindFirstRun(job.Elements());
  if (!run.has_value() || BytesOf(record.dtype, run->length) != bytes) return {};
  return job.part->request->out().subspan(BytesOf(record.dtype, run->target), bytes);
}

// Sorts chunks in the order of the files, so that the disk reads ahead, and a chunk before its
// rounded copies.
bool ReadsBefore(const ChunkJob& a, const ChunkJob& b) {
  return std::tie(a.ref.address, a.ref.kind) < std::tie(b.ref.address, b.ref.kind);
}

// Returns where a chunk starts in the buffer of its request, if it is scattered there in runs that
// are shorter than a cache line.
std::optional<uint64_t> WovenTarget(const ChunkJob& job) {
  constexpr uint64_t kLineBytes = 64;
  const DType dtype = job.part->record.dtype;
  const auto run = job.part->overlap.FindFirstRun(job.Elements());
  if (!run.has_value() || BytesOf(dtype, run->length) >= kLineBytes) return std::nullopt;
  return BytesOf(dtype, run->target);
}

// Groups that a thread runs together.
struct Bundle {
  std::vector<std::span<const ChunkJob>> groups;
  bool is_step = false;  // a chunk is predicted from those before it (RunStep)
};

// True: the chunk of `group` is likely predicted from that of `last`, which lies before it. A save
// writes the moments and the weight of a step side by side (replayed_step.h).
bool IsOfStep(std::span<const ChunkJob> last, std::span<const ChunkJob> group) {
  const ChunkRef& before = last[0].ref;
  const ChunkRef& ref = group[0].ref;
  return ref.kind == ChunkKind::kStored && before.kind == ChunkKind::kStored &&
         ref.predictor == Predictor::kReplay && ref.raw_bytes == before.raw_bytes &&
         ref.address.save_id == before.address.save_id &&
         ref.address.ordinal == before.address.ordinal + 1;
}

// Chunks that share cache lines of a buffer are decoded together, up to this many bytes, and then
// scattered a few elements at a time. So those lines stay in the nearest cache until all of the
// chunks have been there. Chunk by chunk, each run would fetch its line from memory and write it
// back.
constexpr uint64_t kWovenBytes = uint64_t{4} << 20;
constexpr int64_t kWovenElements = 256;  // each may touch a line

// Puts chunks that share cache lines into bundles. They come after all other chunks, which stay in
// the given order, and alone but for those of a step.
std::vector<Bundle> MakeBundles(std::span<const std::span<const ChunkJob>> groups) {
  constexpr uint64_t kNear = 4096;     // bytes in the buffer
  constexpr size_t kChunksOfStep = 3;  // two moments and a weight
  struct Woven {
    const ReadRequest* request;
    uint64_t target;
    std::span<const ChunkJob> group;
  };
  std::vector<Bundle> bundles;
  std::vector<Woven> woven;
  for (const std::span<const ChunkJob> group : groups) {
    const auto target = WovenTarget(group[0]);
    if (target.has_value()) {
      woven.push_back({group[0].part->request, *target, group});
    } else if (!bundles.empty() && bundles.back().groups.size() < kChunksOfStep &&
               IsOfStep(bundles.back().groups.back(), group)) {
      bundles.back().groups.push_back(group);
      bundles.back().is_step = true;
    } else {
      bundles.push_back({{group}});
    }
  }
  std::ranges::stable_sort(woven, std::less<>(),
                           [](const Woven& w) { return std::tie(w.request, w.target); });
  const Woven* first = nullptr;  // of the last bundle
  uint64_t bytes = 0;
  for (const Woven& w : woven) {
    const ChunkJob& job = w.group[0];
    const uint64_t more = job.part->record.ChunkBytes(job.chunk);
    const bool fits = first != nullptr && first->request == w.request &&
                      w.target - first->target < kNear && bytes + more <= kWovenBytes &&
                      w.group.size() == 1 && first->group.size() == 1;
    if (!fits) {
      bundles.emplace_back();
      first = &w;
      bytes = 0;
    }
    bundles.back().groups.push_back(w.group);
    bytes += more;
  }
  return bundles;
}

// Splits sorted jobs into chunks with their rounded copies.
std::vector<std::span<const ChunkJob>> GroupWithCopies(std::span<const ChunkJob> jobs) {
  std::vector<std::span<const ChunkJob>> groups;
  for (size_t begin = 0; begin < jobs.size();) {
    size_t end = begin + 1;
    while (end < jobs.size() && jobs[end].ref.kind == ChunkKind::kDerived &&
           jobs[end].ref.address == jobs[begin].ref.address) {
      ++end;
    }
    groups.push_back(jobs.subspan(begin, end - begin));
    begin = end;
  }
  return groups;
}

// One thread's work, with the memory that it reuses.
class ChunkWorker {
 public:
  explicit ChunkWorker(const ChunkReader* reader) : reader_(reader) {}

  // `fetched` may be null, and outlives the call.
  Status Run(const Bundle& bundle, const FetchedFrames* fetched) {
    scratch_.fetched = fetched;
    if (bundle.groups.size() == 1) return RunGroup(bundle.groups[0]);
    return bundle.is_step ? RunStep(bundle) : RunWoven(bundle);
  }

 private:
  // The group is one chunk, and perhaps its rounded copies. They are made from the chunk if that
  // was read, too.
  Status RunGroup(std::span<const ChunkJob> group) {
    const ChunkJob& first = group[0];
    VARVE_ASSIGN_OR_RETURN(const auto chunk, RunJob(first, {}, &source_));
    const bool is_source = first.ref.kind == ChunkKind::kStored;
    for (const ChunkJob& copy : group.subspan(1)) {
      VARVE_RETURN_IF_ERROR(
          RunJob(copy, is_source ? chunk : std::span<const std::byte>(), &copy_).status());
    }
    return Status::Ok();
  }

  // The frames that several of the chunks need are decoded once.
  Status RunStep(const Bundle& bundle) {
    std::vector<const ChunkRef*> refs;
    std::vector<std::span<std::byte>> out;
    step_.resize(bundle.groups.size());
    for (size_t i = 0; i < bundle.groups.size(); ++i) {
      const ChunkJob& job = bundle.groups[i][0];
      std::span<std::byte> target = DirectTarget(job);
      if (target.empty()) target = step_[i].Resize(job.part->record.ChunkBytes(job.chunk));
      refs.push_back(&job.ref);
      out.push_back(target);
    }
    if (!reader_->ReadTogether(refs, out, &scratch_).ok()) {
      // Alone, each says what is wrong with it.
      for (const auto& group : bundle.groups) VARVE_RETURN_IF_ERROR(RunGroup(group));
      return Status::Ok();
    }
    for (size_t i = 0; i < bundle.groups.size(); ++i) {
      const auto& group = bundle.groups[i];
      if (DirectTarget(group[0]).empty()) Scatter(group[0], out[i], group[0].Elements());
      for (const ChunkJob& copy : group.subspan(1)) {
        VARVE_RETURN_IF_ERROR(RunJob(copy, out[i], &copy_).status());
      }
    }
    return Status::Ok();
  }

  // Each group is one chunk. All of them go to places near each other.
  Status RunWoven(const Bundle& bundle) {
    uint64_t bytes = 0;
    int64_t elements = 0;  // the most of one
    for (const auto& group : bundle.groups) {
      const Range held = group[0].Elements();
      bytes += group[0].part->record.ChunkBytes(group[0].chunk);
      elements = std::max(elements, held.end - held.begin);
    }
    const std::span<std::byte> woven = woven_.Resize(bytes);
    std::vector<std::span<std::byte>> chunks;
    uint64_t at = 0;
    for (const auto& group : bundle.groups) {
      const uint64_t of_chunk = group[0].part->record.ChunkBytes(group[0].chunk);
      chunks.push_back(woven.subspan(at, of_chunk));
      at += of_chunk;
      VARVE_RETURN_IF_ERROR(ReadInto(group[0], {}, chunks.back()));
    }
    for (int64_t begin = 0; begin < elements; begin += kWovenElements) {
      for (size_t i = 0; i < bundle.groups.size(); ++i) {
        const ChunkJob& job = bundle.groups[i][0];
        const Range held = job.Elements();
        const int64_t first = held.begin + begin;
        if (first >= held.end) continue;
        Scatter(job, chunks[i], {first, std::min(held.end, first + kWovenElements)});
      }
    }
    return Status::Ok();
  }

  // Reads a chunk and copies what is wanted of it to its place. Returns the bytes of the chunk,
  // wherever they are now.
  Result<std::span<const std::byte>> RunJob(const ChunkJob& job, std::span<const std::byte> source,
                                            ChunkBuffer* buffer) {
    const std::span<std::byte> target = DirectTarget(job);
    if (!target.empty()) {
      VARVE_RETURN_IF_ERROR(ReadInto(job, source, target));
      return std::span<const std::byte>(target);
    }
    VARVE_ASSIGN_OR_RETURN(const auto chunk, ReadInPlace(job, source, buffer));
    Scatter(job, chunk, job.Elements());
    return chunk;
  }

  Result<std::span<const std::byte>> ReadInPlace(const ChunkJob& job,
                                                 std::span<const std::byte> source,
                                                 ChunkBuffer* buffer) {
    const TensorRecord& record = job.part->record;
    const uint64_t bytes = record.ChunkBytes(job.chunk);
    if (!source.empty()) {
      const std::span<std::byte> decoded = buffer->decoded.Resize(bytes);
      VARVE_RETURN_IF_ERROR(ReadInto(job, source, decoded));
      return std::span<const std::byte>(decoded);
    }
    auto chunk = reader_->ReadInPlace(job.ref, record.dtype, bytes, buffer, &scratch_);
    if (!chunk.ok()) return AtChunk(job, chunk.status());
    return chunk;
  }

  // `source` is what a rounded copy is made of, and empty if that is not known.
  Status ReadInto(const ChunkJob& job, std::span<const std::byte> source,
                  std::span<std::byte> target) {
    const DType dtype = job.part->record.dtype;
    return AtChunk(job, source.empty() ? reader_->Read(job.ref, dtype, target, &scratch_)
                                       : reader_->MakeDerived(job.ref, dtype, source, target));
  }

  static Status AtChunk(const ChunkJob& job, Status status) {
    if (status.ok()) return status;
    return status.WithContext(job.part->where + ", chunk " + std::to_string(job.chunk));
  }

  const ChunkReader* const reader_;
  ChunkScratch scratch_;
  ChunkBuffer source_;  // the first chunk of a group
  ChunkBuffer copy_;
  ReusedBuffer woven_;              // chunks of a bundle, one after the other
  std::vector<ReusedBuffer> step_;  // chunks of a step that are not decoded where they are wanted
};

Status RunBundles(std::span<const Bundle> bundles, const ChunkReader& reader, int num_threads) {
  const StopFlag stop;
  if (bundles.size() == 1) return ChunkWorker(&reader).Run(bundles[0], nullptr);
  tbb::enumerable_thread_specific<ChunkWorker> workers(&reader);
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status error;
  tbb::task_arena arena(StartableThreads(num_threads));
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, bundles.size(), [&](size_t i) {
      if (failed) return;
      Status status = stop.Check();
      if (status.ok()) status = workers.local().Run(bundles[i], nullptr);
      if (status.ok()) return;
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) error = status;
    });
  });
  return error;
}

// Bundles whose frames are fetched together, in one request if they lie beside each other.
constexpr uint64_t kBatchBytes = uint64_t{8} << 20;
constexpr int kBatches = 4;  // at the same time

FetchedFrames FetchFor(std::span<const Bundle> bundles, const ChunkReader& reader) {
  std::vector<ChunkAddress> addresses;
  for (const Bundle& bundle : bundles) {
    for (const auto& group : bundle.groups) {
      const ChunkKind kind = group[0].ref.kind;
      const bool has_frame = kind == ChunkKind::kStored || kind == ChunkKind::kDerived;
      if (has_frame) addresses.push_back(group[0].ref.address);
    }
  }
  return reader.Fetch(std::move(addresses));
}

std::vector<std::span<const Bundle>> CutIntoBatches(std::span<const Bundle> bundles) {
  std::vector<std::span<const Bundle>> batches;
  uint64_t bytes = kBatchBytes;  // of the last batch
  for (const Bundle& bundle : bundles) {
    if (bytes >= kBatchBytes) {
      batches.emplace_back(&bundle, 0);
      bytes = 0;
    }
    for (const auto& group : bundle.groups)
      bytes += group[0].part->record.ChunkBytes(group[0].chunk);
    batches.back() = {batches.back().data(), batches.back().size() + 1};
  }
  return batches;
}

// While the frames of some batches are on their way, those of others are decoded.
Status RunFarBundles(std::span<const Bundle> bundles, const ChunkReader& reader) {
  const auto batches = CutIntoBatches(bundles);
  return RunParallel(batches.size(), kBatches, [&](size_t i) {
    const FetchedFrames fetched = FetchFor(batches[i], reader);
    ChunkWorker worker(&reader);
    for (const Bundle& bundle : batches[i]) VARVE_RETURN_IF_ERROR(worker.Run(bundle, &fetched));
    return Status::Ok();
  });
}

}  // namespace

Status RunChunkJobs(std::vector<ChunkJob> jobs, const ChunkReader& reader, int num_threads) {
  VARVE_RETURN_IF_ERROR(StopFlag().Check());
  std::ranges::stable_sort(jobs, ReadsBefore);
  const std::vector<Bundle> bundles = MakeBundles(GroupWithCopies(jobs));
  return reader.is_far() ? RunFarBundles(bundles, reader)
                         : RunBundles(bundles, reader, num_threads);
}

}  // namespace varve::internal
