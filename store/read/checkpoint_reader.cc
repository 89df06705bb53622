// SPDX-License-Identifier: Apache-2.0
#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <tuple>

#include "base/startable_threads.h"
#include "base/util.h"
#include "store/db/guarded_store.h"
#include "store/db/store_impl.h"
#include "store/format/trainer_progress.h"
#include "store/read/sharded_reader.h"
#include "store/shards/overlap.h"
#include "store/shards/regions.h"
#include "store/shards/strided_copy.h"

namespace varve::internal {

namespace {

// The part of a request that one shard gives.
struct Part {
  const ReadRequest* request;
  TensorRecord record;
  Overlap overlap;  // of the shard and what is asked for
  std::string where;
};

// One chunk to read, and the place for its bytes.
struct ChunkJob {
  const Part* part = nullptr;
  uint64_t chunk = 0;
  ChunkRef ref;

  Range Elements() const {
    const auto n = static_cast<int64_t>(part->record.elements_per_chunk);
    const auto i = static_cast<int64_t>(chunk);
    return {i * n, (i + 1) * n};
  }
};

// What a thread reuses.
struct Worker {
  ChunkScratch scratch;
  std::vector<std::byte> whole;
  std::vector<std::byte> woven;  // chunks of a bundle, one after the other
};

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

// Elements of less than a byte can be moved by whole bytes only.
Status CheckWholeBytes(const Part& part) {
  const auto bits = static_cast<uint64_t>(DTypeBits(part.record.dtype));
  if (bits % 8 == 0) return Status::Ok();
  if (part.overlap.IsOnWholeBytes(bits)) return Status::Ok();
  return Status::InvalidArgument(part.where + ": a slice of " +
                                 std::string(DTypeName(part.record.dtype)) +
                                 " elements must start and end on whole bytes");
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
using Bundle = std::vector<std::span<const ChunkJob>>;

// Chunks that share cache lines of a buffer are decoded together, up to this many bytes, and then
// scattered a few elements at a time. So those lines stay in the nearest cache until all of the
// chunks have been there. Chunk by chunk, each run would fetch its line from memory and write it
// back.
constexpr uint64_t kWovenBytes = uint64_t{4} << 20;
constexpr int64_t kWovenElements = 256;  // each may touch a line

// Puts chunks that share cache lines into bundles. They come after all other chunks, which stay in
// the given order and alone.
std::vector<Bundle> MakeBundles(std::span<const std::span<const ChunkJob>> groups) {
  constexpr uint64_t kNear = 4096;  // bytes in the buffer
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
    } else {
      bundles.push_back({group});
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
    bundles.back().push_back(w.group);
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

class CheckpointReaderImpl : public ShardedReader {
 public:
  CheckpointReaderImpl(const StoreImpl* store, CheckpointInfo info, StepKey key, uint64_t save_id)
      : store_(store), info_(std::move(info)), key_(key), save_id_(save_id) {}

  const CheckpointInfo& info() const override { return info_; }
  Result<std::vector<StoredShard>> FindStored(std::string_view name) const override;
  Result<std::vector<StoredShard>> FindByPrefix(std::string_view prefix) const override;
  Status WithFrozenView(const std::function<Status()>& read) const override {
    return store_->WithFrozenView([&] { return Explain(read()); });
  }
  Result<TensorInfo> Find(std::string_view name, uint32_t shard) const override;
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    return Attempt([&] { return ReadManyOnce(requests); });
  }
  Result<std::vector<std::string>> ListBytes() const override;
  Result<std::vector<std::byte>> ReadBytes(std::string_view name) const override;
  Result<std::optional<TrainerProgress>> ReadTrainerProgress() const override;
  Result<std::optional<Topology>> ReadTopology() const override;

 private:
  // Runs a read. Beside a writer, what cannot be found or read may have moved. Then it catches up
  // and tries again, unless the step itself has been removed meanwhile.
  Status Attempt(const std::function<Status()>& read) const {
    return store_->WithCatchUp([&] { return Explain(read()); });
  }
  Status Explain(const Status& status) const;
  Status CheckStillThere() const;
  Result<std::vector<StoredShard>> FindStoredOnce(std::string_view name) const;
  // Returns the shards of this save whose keys start with the prefix.
  Result<std::vector<StoredShard>> ScanShards(std::string_view key_prefix) const;
  StoredShard MakeStored(std::string_view name, uint32_t number, TensorRecord record) const {
    return {std::string(name), number, store_, save_id_, std::move(record)};
  }
  Result<TensorRecord> FindRecord(std::string_view name, uint32_t shard) const;
  Result<std::vector<StoredShard>> FindShards(std::string_view name, uint32_t shard) const;
  Status AddParts(const ReadRequest& request, std::vector<Part>* parts) const;
  Status AddRegion(const ReadRequest& request, std::vector<StoredShard> shards,
                   const ShardLayout& region, std::vector<Part>* parts) const;
  Status AddPart(const ReadRequest& request, TensorRecord record, const ShardLayout& source,
                 const ShardLayout& target, std::vector<Part>* parts) const;
  Status AddJobs(const Part& part, std::vector<ChunkJob>* jobs) const;
  Status ReadManyOnce(std::span<const ReadRequest> requests) const;
  Status RunJob(const ChunkJob& job, std::span<const std::byte> source, Worker* worker) const;
  Status Decode(const ChunkJob& job, std::span<const std::byte> source, std::span<std::byte> target,
                Worker* worker) const;
  Status RunGroup(std::span<const ChunkJob> group, Worker* worker) const;
  Status RunWoven(const Bundle& bundle, Worker* worker) const;
  Status RunBundle(const Bundle& bundle, Worker* worker) const {
    return bundle.size() == 1 ? RunGroup(bundle[0], worker) : RunWoven(bundle, worker);
  }
  Result<std::optional<std::string>> GetState(const std::string& key) const;
  std::string Where(std::string_view name) const {
    return "tensor " + std::string(name) + " at " + StepName(info_.id.run, info_.id.step);
  }

  const StoreImpl* const store_;
  const CheckpointInfo info_;
  const StepKey key_;
  const uint64_t save_id_;
};

// Runs after a read, and proves that what was read is of this save. During a catch-up or a commit,
// keys that do not name their save may belong to the next save before the step's own record does.
Status CheckpointReaderImpl::CheckStillThere() const {
  store_->database()->AwaitCommits();
  VARVE_ASSIGN_OR_RETURN(const auto record, store_->FindStep(key_));
  const std::string step = StepName(info_.id.run, info_.id.step);
  if (!record.has_value()) return Status::NotFound(step + " was dropped while it was read");
  if (record->save_id != save_id_) {
    return Status::NotFound(step + " was replaced while it was read; open it again");
  }
  return Status::Ok();
}

Status CheckpointReaderImpl::Explain(const Status& status) const {
  if (status.ok() || status.code() == StatusCode::kInvalidArgument) return status;
  VARVE_RETURN_IF_ERROR(CheckStillThere());
  return status;
}

Result<std::vector<StoredShard>> CheckpointReaderImpl::FindStored(std::string_view name) const {
  std::vector<StoredShard> found;
  VARVE_RETURN_IF_ERROR(Attempt([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(found, FindStoredOnce(name));
    return Status::Ok();
  }));
  return found;
}

// No record says how many names start with the prefix. The step was there before the scan, so all
// its records were there if no commit was under way. If the step is still there, they were there
// until the end.
Result<std::vector<StoredShard>> CheckpointReaderImpl::FindByPrefix(std::string_view prefix) const {
  std::vector<StoredShard> found;
  VARVE_RETURN_IF_ERROR(Attempt([&]() -> Status {
    store_->database()->AwaitCommits();
    VARVE_ASSIGN_OR_RETURN(found, ScanShards(keys::Step(key_).append(prefix)));
    return CheckStillThere();
  }));
  return found;
}

Result<std::vector<StoredShard>> CheckpointReaderImpl::ScanShards(
    std::string_view key_prefix) const {
  std::vector<StoredShard> found;
  VARVE_RETURN_IF_ERROR(store_->database()->Scan(
      Family::kTensors, key_prefix, [&](std::string_view key, std::string_view value) {
        const auto parsed = keys::ParseTensor(key);
        if (!parsed.has_value()) return Status::Corruption("a malformed key in family tensors");
        Result<TensorRecord> record = DecodeTensorRecord(value);
        if (!record.ok()) return record.status().WithContext(Where(parsed->name));
        if (record->save_id == save_id_) {
          found.push_back(MakeStored(parsed->name, parsed->shard, *std::move(record)));
        }
        return Status::Ok();
      }));
  return found;
}

Result<std::vector<StoredShard>> CheckpointReaderImpl::FindStoredOnce(std::string_view name) const {
  VARVE_ASSIGN_OR_RETURN(
      std::vector<StoredShard> found,
      ScanShards(name.empty() ? keys::Step(key_) : keys::TensorPrefix(key_, name)));
  if (!name.empty()) {
    if (found.empty()) return Status::NotFound("no " + Where(name));
    return found;
  }
  VARVE_RETURN_IF_ERROR(CheckStillThere());
  if (found.size() == info_.num_tensors) return found;
  return Status::Corruption(StepName(info_.id.run, info_.id.step) + " has " +
                            std::to_string(found.size()) + " tensors, expected " +
                            std::to_string(info_.num_tensors));
}

Result<TensorRecord> CheckpointReaderImpl::FindRecord(std::string_view name, uint32_t shard) const {
  VARVE_ASSIGN_OR_RETURN(
      const auto value, store_->database()->Get(Family::kTensors, keys::Tensor(key_, name, shard)));
  if (!value.has_value()) {
    return Status::NotFound("no " + Where(name) +
                            (shard > 0 ? " shard " + std::to_string(shard) : std::string()));
  }
  Result<TensorRecord> record = DecodeTensorRecord(*value);
  if (!record.ok()) return record.status().WithContext(Where(name));
  if (record->save_id != save_id_) return Status::NotFound(Where(name) + " is not of this save");
  return record;
}

// Returns all shards of a tensor that has layouts. Otherwise it returns the shard of that number,
// or shard 0.
Result<std::vector<StoredShard>> CheckpointReaderImpl::FindShards(std::string_view name,
                                                                  uint32_t shard) const {
  std::vector<StoredShard> shards;
  if (shard != kAllShards) {
    VARVE_ASSIGN_OR_RETURN(TensorRecord record, FindRecord(name, shard));
    shards.push_back(MakeStored(name, shard, std::move(record)));
    return shards;
  }
  VARVE_ASSIGN_OR_RETURN(shards, FindStoredOnce(name));
  if (shards[0].record.layout.has_value()) return shards;
  if (shards[0].number != 0) {
    return Status::NotFound("no " + Where(name) + " shard 0; there is a shard " +
                            std::to_string(shards[0].number));
  }
  shards.resize(1);
  return shards;
}

Result<TensorInfo> CheckpointReaderImpl::Find(std::string_view name, uint32_t shard) const {
  std::vector<TensorInfo> found;
  VARVE_RETURN_IF_ERROR(Attempt([&]() -> Status {
    found.clear();
    VARVE_ASSIGN_OR_RETURN(const auto shards, FindShards(name, shard));
    for (const StoredShard& stored : shards) found.push_back(MakeTensorInfo(stored));
    return Status::Ok();
  }));
  return shard == kAllShards ? JoinShards(std::move(found))[0] : found[0];
}

Status CheckpointReaderImpl::AddPart(const ReadRequest& request, TensorRecord record,
                                     const ShardLayout& source, const ShardLayout& target,
                                     std::vector<Part>* parts) const {
  parts->push_back({&request, std::move(record), Overlap(source, target), Where(request.name())});
  return CheckWholeBytes(parts->back());
}

// Adds a region. It is read from all shards, or from the part of the shard that was asked for.
Status CheckpointReaderImpl::AddRegion(const ReadRequest& request, std::vector<StoredShard> shards,
                                       const ShardLayout& region, std::vector<Part>* parts) const {
  std::vector<ShardLayout> layouts;
  for (const StoredShard& shard : shards) {
    layouts.push_back(shard.record.layout.value_or(ShardLayout::Whole(shard.record.shape)));
  }
  if (request.shard() != kAllShards) {
    if (layouts[0].global_shape != region.global_shape) {
      return Status::InvalidArgument(Where(request.name()) + ": the region is " + ToString(region) +
                                     ", shard " + std::to_string(request.shard()) + " is " +
                                     ToString(layouts[0]));
    }
    return AddPart(request, std::move(shards[0].record), layouts[0], region, parts);
  }
  const Result<RegionPlan> plan = PlanRegion(layouts, region);
  if (!plan.ok()) return plan.status().WithContext(Where(request.name()));
  if (plan->same.has_value()) {
    TensorRecord& record = shards[*plan->same].record;
    const ShardLayout local = ShardLayout::Whole(record.shape);
    return AddPart(request, std::move(record), local, local, parts);
  }
  FillPadding(request, region);
  for (const size_t i : plan->parts) {
    VARVE_RETURN_IF_ERROR(AddPart(request, std::move(shards[i].record), layouts[i], region, parts));
  }
  return Status::Ok();
}

// Looks up what a request reads.
Status CheckpointReaderImpl::AddParts(const ReadRequest& request, std::vector<Part>* parts) const {
  if (request.region() != nullptr) {
    const Status valid = ValidateLayout(*request.region());
    if (!valid.ok()) return valid.WithContext(Where(request.name()));
  }
  VARVE_ASSIGN_OR_RETURN(std::vector<StoredShard> shards,
                         FindShards(request.name(), request.shard()));
  const TensorRecord& first = shards[0].record;
  const bool is_global = request.shard() == kAllShards && first.layout.has_value();
  const std::vector<int64_t> shape = is_global ? first.layout->global_shape : first.shape;
  const DType dtype = first.dtype;
  ShardLayout wanted;
  if (request.region() != nullptr) {
    wanted = *request.region();
  } else {
    Result<ShardLayout> box = LayoutOfSlice(shape, request.slice());
    if (!box.ok()) return box.status().WithContext(Where(request.name()));
    wanted = *std::move(box);
  }
  VARVE_RETURN_IF_ERROR(CheckBuffer(Where(request.name()), request, dtype, wanted));
  if (is_global || request.region() != nullptr) {
    return AddRegion(request, std::move(shards), wanted, parts);
  }
  return AddPart(request, std::move(shards[0].record), ShardLayout::Whole(shape), wanted, parts);
}

// Adds a job for each chunk that has some of the wanted elements. It reads only lists that name
// such a chunk.
Status CheckpointReaderImpl::AddJobs(const Part& part, std::vector<ChunkJob>* jobs) const {
  std::vector<ChunkRef> refs;
  uint64_t loaded = UINT64_MAX;
  if (part.overlap.Count() == 0) return Status::Ok();
  for (uint64_t chunk = 0; chunk < part.record.NumChunks(); ++chunk) {
    ChunkJob job{&part, chunk, {}};
    if (part.overlap.Count(job.Elements()) == 0) continue;
    const uint64_t list = chunk / kChunksPerList;
    if (list != loaded) {
      Result<std::vector<ChunkRef>> read = store_->ReadList(part.record, list);
      if (!read.ok()) return read.status().WithContext(part.where);
      refs = *std::move(read);
      loaded = list;
    }
    job.ref = refs[chunk % kChunksPerList];
    jobs->push_back(std::move(job));
  }
  return Status::Ok();
}

Status CheckpointReaderImpl::RunJob(const ChunkJob& job, std::span<const std::byte> source,
                                    Worker* worker) const {
  const TensorRecord& record = job.part->record;
  std::span<std::byte> target = DirectTarget(job);
  const bool direct = !target.empty();
  if (!direct) {
    worker->whole.resize(record.ChunkBytes(job.chunk));
    target = worker->whole;
  }
  VARVE_RETURN_IF_ERROR(Decode(job, source, target, worker));
  if (!direct) Scatter(job, target, job.Elements());
  return Status::Ok();
}

Status CheckpointReaderImpl::Decode(const ChunkJob& job, std::span<const std::byte> source,
                                    std::span<std::byte> target, Worker* worker) const {
  const TensorRecord& record = job.part->record;
  const ChunkReader& reader = store_->chunk_reader();
  Status status = job.ref.kind == ChunkKind::kDerived && !source.empty()
                      ? reader.MakeDerived(job.ref, record.dtype, source, target)
                      : reader.Read(job.ref, record.dtype, target, &worker->scratch);
  // A frame that its step names is never just missing. Attempt checks whether the step is still
  // there.
  if (status.code() == StatusCode::kNotFound) status = Status::Corruption(status.message());
  if (!status.ok()) {
    return status.WithContext(job.part->where + ", chunk " + std::to_string(job.chunk));
  }
  return Status::Ok();
}

// Each group is one chunk. All of them go to places near each other.
Status CheckpointReaderImpl::RunWoven(const Bundle& bundle, Worker* worker) const {
  uint64_t bytes = 0, elements = 0;  // of all, and the most of one
  for (const auto& group : bundle) {
    const TensorRecord& record = group[0].part->record;
    const uint64_t of_chunk = record.ChunkBytes(group[0].chunk);
    bytes += of_chunk;
    elements = std::max(elements, of_chunk * 8 / static_cast<uint64_t>(DTypeBits(record.dtype)));
  }
  worker->woven.resize(std::max<size_t>(worker->woven.size(), bytes));
  std::vector<std::span<std::byte>> chunks;
  uint64_t at = 0;
  for (const auto& group : bundle) {
    const ChunkJob& job = group[0];
    chunks.push_back(std::span(worker->woven).subspan(at, job.part->record.ChunkBytes(job.chunk)));
    at += chunks.back().size();
    VARVE_RETURN_IF_ERROR(Decode(job, {}, chunks.back(), worker));
  }
  for (int64_t begin = 0; begin < static_cast<int64_t>(elements); begin += kWovenElements) {
    for (size_t i = 0; i < bundle.size(); ++i) {
      const Range held = bundle[i][0].Elements();
      const int64_t first = held.begin + begin;
      if (first >= held.end) continue;
      Scatter(bundle[i][0], chunks[i], {first, std::min(held.end, first + kWovenElements)});
    }
  }
  return Status::Ok();
}

// A chunk that has been decoded into the caller's buffer is the source of its rounded copies.
Status CheckpointReaderImpl::RunGroup(std::span<const ChunkJob> group, Worker* worker) const {
  std::span<const std::byte> source;
  for (const ChunkJob& job : group) {
    VARVE_RETURN_IF_ERROR(RunJob(job, source, worker));
    if (job.ref.kind == ChunkKind::kStored && source.empty()) source = DirectTarget(job);
  }
  return Status::Ok();
}

Status CheckpointReaderImpl::ReadManyOnce(std::span<const ReadRequest> requests) const {
  std::vector<Part> parts;
  for (const ReadRequest& request : requests) {
    VARVE_RETURN_IF_ERROR(AddParts(request, &parts));
  }
  std::vector<ChunkJob> jobs;
  for (const Part& part : parts) VARVE_RETURN_IF_ERROR(AddJobs(part, &jobs));
  std::stable_sort(jobs.begin(), jobs.end(), ReadsBefore);
  const std::vector<Bundle> bundles = MakeBundles(GroupWithCopies(jobs));
  if (bundles.size() == 1) {
    Worker worker;
    return RunBundle(bundles[0], &worker);
  }
  tbb::enumerable_thread_specific<Worker> workers;
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status error;
  tbb::task_arena arena(StartableThreads(store_->num_threads()));
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, bundles.size(), [&](size_t i) {
      if (failed) return;
      const Status status = RunBundle(bundles[i], &workers.local());
      if (status.ok()) return;
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) error = status;
    });
  });
  return error;
}

Result<std::optional<std::string>> CheckpointReaderImpl::GetState(const std::string& key) const {
  std::optional<std::string> value;
  VARVE_RETURN_IF_ERROR(store_->WithCatchUp([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(value, store_->database()->Get(Family::kState, key));
    return CheckStillThere();
  }));
  return value;
}

Result<std::vector<std::string>> CheckpointReaderImpl::ListBytes() const {
  std::vector<std::string> names;
  VARVE_RETURN_IF_ERROR(Attempt([&]() -> Status {
    names.clear();
    VARVE_RETURN_IF_ERROR(store_->database()->Scan(Family::kState, keys::ItemPrefix(key_),
                                                   [&](std::string_view key, std::string_view) {
                                                     if (const auto name = keys::ParseItem(key))
                                                       names.emplace_back(*name);
                                                     return Status::Ok();
                                                   }));
    return CheckStillThere();
  }));
  return names;
}

Result<std::vector<std::byte>> CheckpointReaderImpl::ReadBytes(std::string_view name) const {
  VARVE_ASSIGN_OR_RETURN(const auto value, GetState(keys::Item(key_, name)));
  const std::string where =
      "item " + std::string(name) + " at " + StepName(info_.id.run, info_.id.step);
  if (!value.has_value()) return Status::NotFound("no " + where);
  Result<ItemRecord> record = DecodeItemRecord(*value);
  if (!record.ok()) return record.status().WithContext(where);
  const auto bytes = AsBytes(record->value);
  if (ComputeDigest(store_->digest_seed(), bytes) != record->digest) {
    return Status::Corruption(where + ": does not have its digest " + ToHex(record->digest));
  }
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Result<std::optional<TrainerProgress>> CheckpointReaderImpl::ReadTrainerProgress() const {
  VARVE_ASSIGN_OR_RETURN(const auto value, GetState(keys::TrainerProgress(key_)));
  if (!value.has_value()) return std::optional<TrainerProgress>();
  VARVE_ASSIGN_OR_RETURN(TrainerProgress state, DecodeTrainerProgress(*value));
  return std::optional<TrainerProgress>(std::move(state));
}

Result<std::optional<Topology>> CheckpointReaderImpl::ReadTopology() const {
  VARVE_ASSIGN_OR_RETURN(const auto value, GetState(keys::Topology(key_)));
  if (!value.has_value()) return std::optional<Topology>();
  VARVE_ASSIGN_OR_RETURN(Topology topology, DecodeTopology(*value));
  return std::optional<Topology>(std::move(topology));
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> StoreImpl::OpenCheckpoint(std::string_view run,
                                                                    uint64_t step) const {
  VARVE_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> reader, OpenShards(run, step));
  return reader;
}

Result<std::unique_ptr<ShardedReader>> StoreImpl::OpenShards(std::string_view run,
                                                             uint64_t step) const {
  VARVE_RETURN_IF_ERROR(Refresh());
  std::unique_ptr<ShardedReader> reader;
  VARVE_RETURN_IF_ERROR(WithCatchUp([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const RunRecord found, FindRun(run));
    const StepKey key{found.id, step};
    VARVE_ASSIGN_OR_RETURN(const auto record, FindStep(key));
    if (!record.has_value()) return Status::NotFound("no " + StepName(run, step));
    database_->AwaitCommits();  // from here on the rest of the step is to be seen as well
    RunNames names(this);
    VARVE_ASSIGN_OR_RETURN(CheckpointInfo info, MakeInfo(run, key, *record, &names));
    VARVE_ASSIGN_OR_RETURN(info.tags, TagsOf(key));
    reader = std::make_unique<GuardedReader<CheckpointReaderImpl>>(this, std::move(info), key,
                                                                   record->save_id);
    return Status::Ok();
  }));
  return reader;
}

}  // namespace varve::internal
