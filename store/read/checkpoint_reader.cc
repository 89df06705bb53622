// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "base/util.h"
#include "store/db/guarded_store.h"
#include "store/db/store_impl.h"
#include "store/format/trainer_progress.h"
#include "store/read/chunk_jobs.h"
#include "store/read/sharded_reader.h"
#include "store/shards/overlap.h"
#include "store/shards/regions.h"

namespace varve::internal {

namespace {

// Elements of less than a byte can be moved by whole bytes only.
Status CheckWholeBytes(const ReadPart& part) {
  const auto bits = static_cast<uint64_t>(DTypeBits(part.record.dtype));
  if (bits % 8 == 0) return Status::Ok();
  if (part.overlap.IsOnWholeBytes(bits)) return Status::Ok();
  return Status::InvalidArgument(part.where + ": a slice of " +
                                 std::string(DTypeName(part.record.dtype)) +
                                 " elements must start and end on whole bytes");
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
  Status AddParts(const ReadRequest& request, std::vector<ReadPart>* parts) const;
  Status AddRegion(const ReadRequest& request, std::vector<StoredShard> shards,
                   const ShardLayout& region, std::vector<ReadPart>* parts) const;
  Status AddPart(const ReadRequest& request, TensorRecord record, const ShardLayout& source,
                 const ShardLayout& target, std::vector<ReadPart>* parts) const;
  Status AddJobs(const ReadPart& part, std::vector<ChunkJob>* jobs) const;
  Status ReadManyOnce(std::span<const ReadRequest> requests) const;
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
  if (!record.has_value())
    return Status::NotFound(step +
                            " was dropped while it was read; open a step that is still there");
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
                                     std::vector<ReadPart>* parts) const {
  parts->push_back({&request, std::move(record), Overlap(source, target), Where(request.name())});
  return CheckWholeBytes(parts->back());
}

// Adds a region. It is read from all shards, or from the part of the shard that was asked for.
Status CheckpointReaderImpl::AddRegion(const ReadRequest& request, std::vector<StoredShard> shards,
                                       const ShardLayout& region,
                                       std::vector<ReadPart>* parts) const {
  std::vector<ShardLayout> layouts;
  for (const StoredShard& shard : shards) {
    layouts.push_back(LayoutOf(shard.record));
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
Status CheckpointReaderImpl::AddParts(const ReadRequest& request,
                                      std::vector<ReadPart>* parts) const {
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
Status CheckpointReaderImpl::AddJobs(const ReadPart& part, std::vector<ChunkJob>* jobs) const {
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

Status CheckpointReaderImpl::ReadManyOnce(std::span<const ReadRequest> requests) const {
  std::vector<ReadPart> parts;
  for (const ReadRequest& request : requests) {
    VARVE_RETURN_IF_ERROR(AddParts(request, &parts));
  }
  std::vector<ChunkJob> jobs;
  for (const ReadPart& part : parts) VARVE_RETURN_IF_ERROR(AddJobs(part, &jobs));
  return RunChunkJobs(std::move(jobs), store_->chunk_reader(), store_->num_threads());
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

Result<std::unique_ptr<ShardedReader>> StoreImpl::OpenShardsOf(StepKey key,
                                                               std::string_view run) const {
  VARVE_ASSIGN_OR_RETURN(const auto record, FindStep(key));
  if (!record.has_value()) return Status::NotFound("no " + StepName(run, key.step));
  RunNames names(this);
  VARVE_ASSIGN_OR_RETURN(CheckpointInfo info, MakeInfo(run, key, *record, &names));
  std::unique_ptr<ShardedReader> reader = std::make_unique<GuardedReader<CheckpointReaderImpl>>(
      this, std::move(info), key, record->save_id);
  return reader;
}

}  // namespace varve::internal
