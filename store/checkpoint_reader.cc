// SPDX-License-Identifier: Apache-2.0
#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <tuple>

#include "store/slice.h"
#include "store/store_impl.h"
#include "store/trainer_state.h"
#include "store/util.h"

namespace varve {
namespace {

// One chunk to read, and where its bytes go.
struct ChunkJob {
  const ReadRequest* request = nullptr;
  const SliceRuns* runs = nullptr;
  const TensorRecord* record = nullptr;
  uint64_t chunk = 0;
  ChunkRef ref;
};

// What a thread reuses.
struct Worker {
  ChunkScratch scratch;
  std::vector<std::byte> whole;
};

// A request with everything looked up.
struct Lookup {
  TensorRecord record;
  SliceRuns runs;
};

// Copies the parts of a decoded chunk that the slice wants to where they belong.
void Scatter(const SliceRuns& runs, uint64_t chunk_begin, std::span<const std::byte> chunk,
             std::span<std::byte> out) {
  const uint64_t chunk_end = chunk_begin + chunk.size();
  for (uint64_t k = runs.FirstRunAfter(chunk_begin); k < runs.num_runs(); ++k) {
    const uint64_t run_begin = runs.Begin(k);
    if (run_begin >= chunk_end) return;
    const uint64_t from = std::max(run_begin, chunk_begin);
    const uint64_t to = std::min(run_begin + runs.run_bytes(), chunk_end);
    std::memcpy(out.data() + k * runs.run_bytes() + (from - run_begin),
                chunk.data() + (from - chunk_begin), to - from);
  }
}

// Where in the caller's buffer the chunk belongs, when the slice has all of it in one piece.
std::span<std::byte> DirectTarget(const ChunkJob& job) {
  const uint64_t begin = job.record->ChunkOffset(job.chunk);
  const uint64_t bytes = job.record->ChunkBytes(job.chunk);
  const uint64_t k = job.runs->FirstRunAfter(begin);
  const uint64_t run_begin = job.runs->Begin(k);
  if (begin < run_begin || run_begin + job.runs->run_bytes() < begin + bytes) return {};
  return job.request->out.subspan(k * job.runs->run_bytes() + (begin - run_begin), bytes);
}

// In the order of the files, so that the disk reads ahead; a chunk before its rounded copies.
bool ReadsBefore(const ChunkJob& a, const ChunkJob& b) {
  return std::tie(a.ref.address, a.ref.kind) < std::tie(b.ref.address, b.ref.kind);
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

class CheckpointReaderImpl : public CheckpointReader {
 public:
  CheckpointReaderImpl(const StoreImpl* store, CheckpointInfo info, StepKey key, uint64_t birth)
      : store_(store), info_(std::move(info)), key_(key), birth_(birth) {}

  const CheckpointInfo& info() const override { return info_; }
  Result<std::vector<TensorInfo>> List() const override;
  Result<TensorInfo> Find(std::string_view name, uint32_t shard) const override;
  Status Read(std::string_view name, std::span<std::byte> out) const override {
    return ReadMany(std::vector<ReadRequest>{{.name = name, .out = out}});
  }
  Status ReadSlice(std::string_view name, std::span<const Range> slice,
                   std::span<std::byte> out) const override {
    return ReadMany(std::vector<ReadRequest>{{.name = name, .out = out, .slice = slice}});
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    return Attempt([&] { return ReadManyOnce(requests); });
  }
  Result<std::vector<std::string>> ListBytes() const override;
  Result<std::vector<std::byte>> ReadBytes(std::string_view name) const override;
  Result<std::optional<TrainerState>> ReadTrainerState() const override;
  Result<std::optional<Topology>> ReadTopology() const override;

 private:
  // Runs a read. Beside a writer, what cannot be found or read may have moved on: catch up and try
  // again, unless the step itself has gone meanwhile.
  Status Attempt(const std::function<Status()>& read) const;
  Status CheckStillThere() const;
  Status ListOnce(std::vector<TensorInfo>* out) const;
  Result<TensorRecord> FindRecord(std::string_view name, uint32_t shard) const;
  Result<Lookup> LookUp(const ReadRequest& request) const;
  Status AddJobs(const ReadRequest& request, const Lookup& lookup,
                 std::vector<ChunkJob>* jobs) const;
  Status ReadManyOnce(std::span<const ReadRequest> requests) const;
  Status RunJob(const ChunkJob& job, std::span<const std::byte> source, Worker* worker) const;
  Status RunGroup(std::span<const ChunkJob> group, Worker* worker) const;
  Result<std::optional<std::string>> GetState(const std::string& key) const;
  std::string Where(std::string_view name) const {
    return "tensor " + std::string(name) + " at " + StepName(info_.id.run, info_.id.step);
  }

  const StoreImpl* const store_;
  const CheckpointInfo info_;
  const StepKey key_;
  const uint64_t birth_;
};

TensorInfo MakeTensorInfo(std::string_view name, uint32_t shard, const TensorRecord& record) {
  return {.name = std::string(name),
          .shard = shard,
          .dtype = record.dtype,
          .shape = record.shape,
          .logical_bytes = record.LogicalBytes(),
          .num_chunks = record.NumChunks(),
          .role = record.role,
          .alias_of = record.alias_of,
          .derived_from = record.derived_from,
          .content = {record.content.lo, record.content.hi}};
}

// After a read: proves that what was read is of this save. Keys that do not name their birth may be of
// the next one before the step's own record is, while a catch-up is under way.
Status CheckpointReaderImpl::CheckStillThere() const {
  store_->database()->AwaitCatchUp();
  VARVE_ASSIGN_OR_RETURN(const auto record, store_->FindStep(key_));
  const std::string step = StepName(info_.id.run, info_.id.step);
  if (!record.has_value()) return Status::NotFound(step + " was dropped while it was read");
  if (record->birth != birth_) {
    return Status::NotFound(step + " was replaced while it was read; open it again");
  }
  return Status::Ok();
}

Status CheckpointReaderImpl::Attempt(const std::function<Status()>& read) const {
  return store_->WithCatchUp([&] {
    const Status status = read();
    if (status.ok() || status.code() == StatusCode::kInvalidArgument) return status;
    VARVE_RETURN_IF_ERROR(CheckStillThere());
    return status;
  });
}

Result<std::vector<TensorInfo>> CheckpointReaderImpl::List() const {
  std::vector<TensorInfo> out;
  VARVE_RETURN_IF_ERROR(Attempt([&] { return ListOnce(&out); }));
  return out;
}

Status CheckpointReaderImpl::ListOnce(std::vector<TensorInfo>* out) const {
  out->clear();
  VARVE_RETURN_IF_ERROR(store_->database()->Scan(
      Family::kTensors, keys::Step(key_), [&](std::string_view key, std::string_view value) {
        const auto parsed = keys::ParseTensor(key);
        if (!parsed.has_value()) return Status::Corruption("a malformed key in family tensors");
        Result<TensorRecord> record = DecodeTensorRecord(value);
        if (!record.ok()) return record.status().WithContext(Where(parsed->name));
        if (record->birth == birth_) {
          out->push_back(MakeTensorInfo(parsed->name, parsed->shard, *record));
        }
        return Status::Ok();
      }));
  if (out->size() == info_.num_tensors) return CheckStillThere();
  return Status::Corruption(StepName(info_.id.run, info_.id.step) + " has " +
                            std::to_string(out->size()) + " tensors, expected " +
                            std::to_string(info_.num_tensors));
}

Result<TensorRecord> CheckpointReaderImpl::FindRecord(std::string_view name,
                                                      uint32_t shard) const {
  VARVE_ASSIGN_OR_RETURN(const auto value, store_->database()->Get(
                                               Family::kTensors, keys::Tensor(key_, name, shard)));
  if (!value.has_value()) {
    return Status::NotFound("no " + Where(name) +
                            (shard > 0 ? " shard " + std::to_string(shard) : std::string()));
  }
  Result<TensorRecord> record = DecodeTensorRecord(*value);
  if (!record.ok()) return record.status().WithContext(Where(name));
  if (record->birth != birth_) return Status::NotFound(Where(name) + " is not of this save");
  return record;
}

Result<TensorInfo> CheckpointReaderImpl::Find(std::string_view name, uint32_t shard) const {
  std::optional<TensorInfo> found;
  VARVE_RETURN_IF_ERROR(Attempt([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const TensorRecord record, FindRecord(name, shard));
    found = MakeTensorInfo(name, shard, record);
    return Status::Ok();
  }));
  return *std::move(found);
}

Result<Lookup> CheckpointReaderImpl::LookUp(const ReadRequest& request) const {
  Lookup lookup;
  VARVE_ASSIGN_OR_RETURN(lookup.record, FindRecord(request.name, request.shard));
  Result<SliceRuns> runs =
      SliceRuns::Make(lookup.record.dtype, lookup.record.shape, request.slice);
  if (!runs.ok()) return runs.status().WithContext(Where(request.name));
  lookup.runs = *std::move(runs);
  if (request.out.size() != lookup.runs.total_bytes()) {
    return Status::InvalidArgument(Where(request.name) + ": the buffer has " +
                                   std::to_string(request.out.size()) + " bytes, the read " +
                                   std::to_string(lookup.runs.total_bytes()));
  }
  return lookup;
}

// Adds a job for each chunk that overlaps the slice; only the lists that name such a chunk are read.
Status CheckpointReaderImpl::AddJobs(const ReadRequest& request, const Lookup& lookup,
                                     std::vector<ChunkJob>* jobs) const {
  const TensorRecord& record = lookup.record;
  std::vector<ChunkRef> refs;
  uint64_t loaded = UINT64_MAX;
  const uint64_t num_chunks = lookup.runs.num_runs() == 0 ? 0 : record.NumChunks();
  for (uint64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const uint64_t begin = record.ChunkOffset(chunk);
    const uint64_t k = lookup.runs.FirstRunAfter(begin);
    if (k == lookup.runs.num_runs()) break;
    if (lookup.runs.Begin(k) >= begin + record.ChunkBytes(chunk)) continue;
    const uint64_t list = chunk / kChunksPerList;
    if (list != loaded) {
      Result<std::vector<ChunkRef>> read = store_->ReadList(record, list);
      if (!read.ok()) return read.status().WithContext(Where(request.name));
      refs = *std::move(read);
      loaded = list;
    }
    jobs->push_back(
        {&request, &lookup.runs, &lookup.record, chunk, refs[chunk % kChunksPerList]});
  }
  return Status::Ok();
}

Status CheckpointReaderImpl::RunJob(const ChunkJob& job, std::span<const std::byte> source,
                                    Worker* worker) const {
  std::span<std::byte> target = DirectTarget(job);
  const bool direct = !target.empty();
  if (!direct) {
    worker->whole.resize(job.record->ChunkBytes(job.chunk));
    target = worker->whole;
  }
  const ChunkReader& reader = store_->chunk_reader();
  const DType dtype = job.record->dtype;
  Status status = job.ref.kind == ChunkKind::kDerived && !source.empty()
                      ? reader.MakeDerived(job.ref, dtype, source, target)
                      : reader.Read(job.ref, dtype, target, &worker->scratch);
  // A frame that its step names is never just absent; Attempt looks whether the step is still there.
  if (status.code() == StatusCode::kNotFound) status = Status::Corruption(status.message());
  if (!status.ok()) {
    return status.WithContext(Where(job.request->name) + ", chunk " + std::to_string(job.chunk));
  }
  if (!direct) Scatter(*job.runs, job.record->ChunkOffset(job.chunk), target, job.request->out);
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
  std::vector<Lookup> lookups;
  lookups.reserve(requests.size());
  std::vector<ChunkJob> jobs;
  for (const ReadRequest& request : requests) {
    VARVE_ASSIGN_OR_RETURN(Lookup lookup, LookUp(request));
    lookups.push_back(std::move(lookup));
    VARVE_RETURN_IF_ERROR(AddJobs(request, lookups.back(), &jobs));
  }
  std::stable_sort(jobs.begin(), jobs.end(), ReadsBefore);
  const auto groups = GroupWithCopies(jobs);
  if (groups.size() == 1) {
    Worker worker;
    return RunGroup(groups[0], &worker);
  }
  tbb::enumerable_thread_specific<Worker> workers;
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status error;
  tbb::task_arena arena(store_->num_threads());
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, groups.size(), [&](size_t i) {
      if (failed) return;
      const Status status = RunGroup(groups[i], &workers.local());
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
    VARVE_RETURN_IF_ERROR(store_->database()->Scan(
        Family::kState, keys::ItemPrefix(key_), [&](std::string_view key, std::string_view) {
          if (const auto name = keys::ParseItem(key)) names.emplace_back(*name);
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

Result<std::optional<TrainerState>> CheckpointReaderImpl::ReadTrainerState() const {
  VARVE_ASSIGN_OR_RETURN(const auto value, GetState(keys::TrainerState(key_)));
  if (!value.has_value()) return std::optional<TrainerState>();
  VARVE_ASSIGN_OR_RETURN(TrainerState state, DecodeTrainerState(*value));
  return std::optional<TrainerState>(std::move(state));
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
  VARVE_RETURN_IF_ERROR(Refresh());
  std::unique_ptr<CheckpointReader> reader;
  VARVE_RETURN_IF_ERROR(WithCatchUp([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const RunRecord found, FindRun(run));
    const StepKey key{found.id, step};
    VARVE_ASSIGN_OR_RETURN(const auto record, FindStep(key));
    if (!record.has_value()) return Status::NotFound("no " + StepName(run, step));
    VARVE_ASSIGN_OR_RETURN(const auto tags, ListTags(found.id));
    VARVE_ASSIGN_OR_RETURN(CheckpointInfo info, MakeInfo(run, key, *record, tags));
    reader = std::make_unique<CheckpointReaderImpl>(this, std::move(info), key, record->birth);
    return Status::Ok();
  }));
  return reader;
}

}  // namespace varve
