// SPDX-License-Identifier: Apache-2.0
//
// Copies checkpoints into a plain store, from one or from the members of a group. Each chunk is
// decoded and verified at the source, and shared or encoded anew at the target, one at a time. A
// frame cannot be copied as it is. The digests of the two stores have different seeds, and a frame
// names its base by an address that means nothing in another store.
#include "store/ops/copy.h"

#include <tbb/enumerable_thread_specific.h>

#include <mutex>
#include <unordered_map>

#include "base/util.h"
#include "store/db/store_impl.h"
#include "store/save/save_session.h"

namespace varve::internal {

namespace {

// Maps a chunk's digest in the source to its digest in the target, for chunks that this copy has
// read. The next step that names such a chunk need not read it again. It takes 32 bytes a chunk and
// some overhead. Thread-safe.
class DigestMap {
 public:
  // With equal seeds both stores have the same digests from the start.
  explicit DigestMap(bool is_identity) : is_identity_(is_identity) {}

  std::optional<Digest> Find(const Digest& here) const {
    if (is_identity_) return here;
    const std::lock_guard lock(mutex_);
    const auto it = there_.find(here);
    return it == there_.end() ? std::nullopt : std::optional(it->second);
  }
  void Add(const Digest& here, const Digest& there) {
    if (is_identity_) return;
    const std::lock_guard lock(mutex_);
    there_.emplace(here, there);
  }

 private:
  struct Hash {
    size_t operator()(const Digest& d) const { return static_cast<size_t>(d.lo); }
  };
  const bool is_identity_;
  mutable std::mutex mutex_;
  std::unordered_map<Digest, Digest, Hash> there_;
};

using ScratchOfThreads = tbb::enumerable_thread_specific<ChunkScratch>;

// The chunks of one tensor of the store that is copied from.
class StoredTensor : public ChunkSource {
 public:
  StoredTensor(const ChunkReader* reader, DType dtype, std::vector<ChunkRef> refs,
               DigestMap* digests, ScratchOfThreads* scratch)
      : reader_(reader),
        dtype_(dtype),
        refs_(std::move(refs)),
        digests_(digests),
        scratch_(scratch) {}

  std::optional<Digest> KnownDigest(uint64_t i) const override {
    return digests_->Find(refs_[i].digest);
  }
  Result<std::span<const std::byte>> Read(uint64_t i, std::vector<std::byte>* buffer) override {
    buffer->resize(refs_[i].raw_bytes);
    VARVE_RETURN_IF_ERROR(reader_->Read(refs_[i], dtype_, *buffer, &scratch_->local()));
    return std::span<const std::byte>(*buffer);
  }
  Status Learn(uint64_t i, const Digest& digest) override {
    digests_->Add(refs_[i].digest, digest);
    return Status::Ok();
  }

 private:
  const ChunkReader* const reader_;
  const DType dtype_;
  const std::vector<ChunkRef> refs_;
  DigestMap* const digests_;
  ScratchOfThreads* const scratch_;
};

class Copier {
 public:
  Copier(StoreImpl* to, const CopyOptions& options, uint64_t digest_seed)
      : to_(to), options_(options), digests_(digest_seed == to->digest_seed()) {}

  // `part` is all that is copied. Null: the whole step.
  Result<SaveReport> Copy(const ShardedReader& from, const StepPart* part = nullptr) {
    const CheckpointId& id = from.info().id;
    SaveOptions save{.run = options_.run.empty() ? id.run : options_.run,
                     .on_existing = options_.on_existing,
                     .progress = options_.progress};
    VARVE_ASSIGN_OR_RETURN(save.parent, FindParent(save.run, id.step));
    VARVE_ASSIGN_OR_RETURN(const auto session, to_->BeginSession(id.step, save));
    session->SetPartial();  // as complete as what is copied
    VARVE_RETURN_IF_ERROR(PutTensors(from, part, session.get()));
    VARVE_RETURN_IF_ERROR(PutRest(from, part, session.get()));
    Result<SaveReport> report = session->Commit();
    // Chunks that could not be read are no damage if the step was removed meanwhile.
    if (!report.ok()) {
      const Status status = from.WithFrozenView([&] { return report.status(); });
      if (status.code() == StatusCode::kNotFound) return status;
    }
    return report;
  }

 private:
  // A step is most like the newest earlier step in the target.
  Result<std::optional<uint64_t>> FindParent(const std::string& run, uint64_t step) const {
    const Result<RunRecord> there = to_->FindRun(run);
    if (there.status().code() == StatusCode::kNotFound) return std::optional<uint64_t>();
    VARVE_RETURN_IF_ERROR(there.status());
    return to_->NewestStepBefore({there->id, step});
  }

  struct Tensor {
    StoredShard shard;
    std::vector<ChunkRef> refs;
  };

  Status PutTensors(const ShardedReader& from, const StepPart* part, SaveSession* session) {
    const auto tensors = std::make_shared<std::vector<Tensor>>();  // the session shares it
    VARVE_RETURN_IF_ERROR(
        from.WithFrozenView([&] { return ReadTensors(from, part, tensors.get()); }));
    for (Tensor& tensor : *tensors) {
      StoredShard& shard = tensor.shard;
      shard.record.name = std::move(shard.name);
      const std::shared_ptr<const TensorSpec> spec(tensors, &shard.record);
      VARVE_RETURN_IF_ERROR(session->PutSource(
          spec, shard.number,
          std::make_unique<StoredTensor>(&shard.store->chunk_reader(), shard.record.dtype,
                                         std::move(tensor.refs), &digests_, &scratch_)));
    }
    return Status::Ok();
  }

  static Status ReadTensors(const ShardedReader& from, const StepPart* part,
                            std::vector<Tensor>* tensors) {
    tensors->clear();  // of an earlier attempt
    std::vector<StoredShard> shards;
    if (part != nullptr) {
      shards = part->shards;
    } else {
      VARVE_ASSIGN_OR_RETURN(shards, from.FindStored());
    }
    for (StoredShard& shard : shards) {
      Tensor& tensor = tensors->emplace_back(Tensor{std::move(shard), {}});
      const Status status = ReadChunks(&tensor);
      if (!status.ok()) return status.WithContext("tensor " + tensor.shard.name);
    }
    return Status::Ok();
  }

  static Status ReadChunks(Tensor* tensor) {
    const TensorRecord& record = tensor->shard.record;
    const uint32_t expected = ElementsPerChunk(record.dtype);
    if (record.elements_per_chunk != expected) {
      return Status::FailedPrecondition("is cut into chunks of " +
                                        std::to_string(record.elements_per_chunk) +
                                        " elements, expected " + std::to_string(expected));
    }
    for (size_t i = 0; i < record.lists.size(); ++i) {
      VARVE_ASSIGN_OR_RETURN(std::vector<ChunkRef> list, tensor->shard.store->ReadList(record, i));
      std::move(list.begin(), list.end(), std::back_inserter(tensor->refs));
    }
    return Status::Ok();
  }

  static Status PutRest(const CheckpointReader& reader, const StepPart* part, SaveSession* writer) {
    const CheckpointInfo& info = reader.info();
    writer->SetCreated(info.created);
    for (const auto& [name, value] : info.metrics) {
      VARVE_RETURN_IF_ERROR(writer->SetMetric(name, value));
    }
    for (const std::string& tag : info.tags) VARVE_RETURN_IF_ERROR(writer->AddTag(tag));
    if (part == nullptr || part->has_progress) {
      VARVE_ASSIGN_OR_RETURN(const auto state, reader.ReadTrainerProgress());
      if (state.has_value()) VARVE_RETURN_IF_ERROR(writer->SetTrainerProgress(*state));
    }
    if (part == nullptr || part->has_topology) {
      VARVE_ASSIGN_OR_RETURN(const auto topology, reader.ReadTopology());
      if (topology.has_value()) VARVE_RETURN_IF_ERROR(writer->SetTopology(*topology));
    }
    std::vector<std::string> items;
    if (part != nullptr) {
      items = part->items;
    } else {
      VARVE_ASSIGN_OR_RETURN(items, reader.ListBytes());
    }
    for (const std::string& item : items) {
      VARVE_ASSIGN_OR_RETURN(const auto value, reader.ReadBytes(item));
      VARVE_RETURN_IF_ERROR(writer->PutBytes(item, value));
    }
    return Status::Ok();
  }

  StoreImpl* const to_;
  const CopyOptions& options_;
  DigestMap digests_;
  ScratchOfThreads scratch_;
};

}  // namespace

Result<std::vector<SaveReport>> CopyCheckpoints(
    std::span<const CheckpointId> ids, uint64_t digest_seed, Store* destination,
    const CopyOptions& options,
    const std::function<Result<std::unique_ptr<ShardedReader>>(const CheckpointId&)>& open) {
  auto* const to = dynamic_cast<StoreImpl*>(destination);
  if (to == nullptr) {
    return Status::FailedPrecondition(
        "the root of a group is written by its ranks together; "
        "copy into a plain store");
  }
  Copier copier(to, options, digest_seed);
  std::vector<SaveReport> reports;
  for (const CheckpointId& id : ids) {
    const auto copy = [&]() -> Result<SaveReport> {
      VARVE_ASSIGN_OR_RETURN(const auto reader, open(id));
      return copier.Copy(*reader);
    };
    Result<SaveReport> report = copy();
    if (!report.ok()) return report.status().WithContext("copying " + StepName(id.run, id.step));
    reports.push_back(*std::move(report));
  }
  return reports;
}

Result<SaveReport> CopyPart(const ShardedReader& from, const StepPart& part, StoreImpl* destination,
                            const CopyOptions& options) {
  Copier copier(destination, options, destination->digest_seed());
  return copier.Copy(from, &part);
}

Result<std::vector<SaveReport>> StoreImpl::CopyTo(Store* destination,
                                                  std::span<const CheckpointId> ids,
                                                  const CopyOptions& options) const {
  return CopyCheckpoints(ids, digest_seed(), destination, options,
                         [&](const CheckpointId& id) { return OpenShards(id.run, id.step); });
}

}  // namespace varve::internal
