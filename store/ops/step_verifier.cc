// SPDX-License-Identifier: Apache-2.0
#include "store/ops/step_verifier.h"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <mutex>

#include "base/startable_threads.h"
#include "base/stop.h"
#include "base/util.h"
#include "store/format/root_digest.h"

namespace varve::internal {

void StepFaults::Add(std::string_view tensor, const std::string& why) {
  if (reason.empty()) reason = why;
  if (!tensor.empty() && (tensors.empty() || tensors.back() != tensor)) {
    tensors.emplace_back(tensor);
  }
}

void AddSteps(const Database& db, Family family, std::set<StepKey>* found) {
  constexpr size_t kStepKeyBytes = 12;
  const auto step_of = [](const std::string& key) {
    return keys::ParseStep(std::string_view(key).substr(0, kStepKeyBytes));
  };
  for (std::string from;;) {
    const auto key = db.FirstKeyFrom(family, "", from);
    if (key.ok() && !key->has_value()) break;
    if (key.ok()) {
      const auto step = step_of(**key);
      if (step.has_value()) found->insert(*step);
      from = step.has_value() ? keys::PrefixEnd(keys::Step(*step)) : **key + '\0';
      if (from.empty()) break;
      continue;
    }
    const auto next =
        std::ranges::find_if(*found, [&](const StepKey& step) { return keys::Step(step) > from; });
    if (next == found->end()) break;
    from = keys::Step(*next);
  }
  for (std::string end;;) {
    const auto key = db.LastKeyBefore(family, "", end);
    if (!key.ok() || !key->has_value()) break;
    const auto step = step_of(**key);
    if (step.has_value()) found->insert(*step);
    end = step.has_value() ? keys::Step(*step) : **key;
  }
}

// Returns the tensors of a step, after it has compared their number and their root digest.
Result<std::vector<StoredShard>> StepVerifier::FindShards(const ShardedReader& reader,
                                                          StepKey step) const {
  VARVE_ASSIGN_OR_RETURN(const auto record, store_->FindStep(step));
  if (!record.has_value()) return Status::Corruption("the step has no record");
  VARVE_ASSIGN_OR_RETURN(std::vector<StoredShard> shards, reader.FindStored());
  std::string root;
  for (const StoredShard& shard : shards) {
    AppendToRoot(shard.name, shard.number, shard.record.View(), &root);
  }
  if (ComputeDigest(store_->digest_seed(), AsBytes(root)) == record->root) return shards;
  return Status::Corruption("its tensors do not have the root digest of its record");
}

Status StepVerifier::CheckRecords(StepKey step, std::string_view run) const {
  VARVE_ASSIGN_OR_RETURN(const auto reader, store_->OpenShardsOf(step, run));
  VARVE_RETURN_IF_ERROR(FindShards(*reader, step).status());
  VARVE_ASSIGN_OR_RETURN(const auto record, store_->FindStep(step));
  VARVE_ASSIGN_OR_RETURN(const auto items, reader->ListBytes());
  if (record.has_value() && items.size() == record->num_items) return Status::Ok();
  return Status::Corruption("it has " + std::to_string(items.size()) + " items, expected " +
                            std::to_string(record.has_value() ? record->num_items : 0));
}

Status StepVerifier::Verify(StepKey step, std::string_view run,
                            const std::function<void(uint64_t)>& add, StepFaults* faults) {
  const auto opened = store_->OpenShardsOf(step, run);
  if (!opened.ok()) {
    faults->Add("", opened.status().message());
    return Status::Ok();
  }
  const ShardedReader& reader = **opened;
  if (const Status records = CheckRecords(step, run); !records.ok()) {
    faults->Add("", records.message());
  }
  if (const auto shards = reader.FindStored(); shards.ok()) {
    for (const StoredShard& shard : *shards) {
      const Status read = VerifyTensor(shard);
      if (read.code() == StatusCode::kAborted) return read;
      if (!read.ok()) faults->Add(shard.name, "tensor " + shard.name + ": " + read.message());
      add(shard.record.LogicalBytes());
    }
  }
  const auto note = [&](const Status& status) {
    if (!status.ok()) faults->Add("", status.message());
  };
  note(reader.ReadTrainerProgress().status());
  note(reader.ReadTopology().status());
  const auto items = reader.ListBytes();
  note(items.status());
  if (!items.ok()) return Status::Ok();
  for (const std::string& item : *items) note(reader.ReadBytes(item).status());
  return Status::Ok();
}

Status StepVerifier::VerifyTensor(const StoredShard& shard) {
  std::string all;
  for (size_t i = 0; i < shard.record.lists.size(); ++i) {
    VARVE_ASSIGN_OR_RETURN(const ListVerdict* const list, VerifyList(shard.record, i));
    if (!list->fault.empty()) return Status::Corruption(list->fault);
    all += list->digests;
  }
  if (ComputeDigest(store_->digest_seed(), AsBytes(all)) == shard.record.content) {
    return Status::Ok();
  }
  return Status::Corruption("its lists do not have the content digest of its record");
}

Result<const StepVerifier::ListVerdict*> StepVerifier::VerifyList(const TensorRecord& record,
                                                                  size_t index) {
  const ListKey key{record.lists[index], record.dtype};
  if (const auto known = lists_.find(key); known != lists_.end()) return &known->second;
  ListVerdict verdict;
  const auto refs = store_->ReadList(record, index);
  if (!refs.ok()) {
    verdict.fault = refs.status().message();
  } else {
    for (const ChunkRef& ref : *refs) keys::AppendIndex(ref.digest, &verdict.digests);
    const Status read = VerifyChunks(*refs, record.dtype, index * kChunksPerList);
    if (read.code() == StatusCode::kAborted) return read;
    verdict.fault = read.message();
  }
  return &lists_.emplace(key, std::move(verdict)).first->second;
}

// Reads chunks, and returns what is wrong with the first that is damaged. `first` is the number of
// the first chunk.
Status StepVerifier::VerifyChunks(const std::vector<ChunkRef>& refs, DType dtype, uint64_t first) {
  struct Worker {
    ChunkScratch scratch;
    std::vector<std::byte> out;
  };
  const StopFlag stop;
  tbb::enumerable_thread_specific<Worker> workers;
  std::mutex mutex;
  std::map<size_t, Status> damaged;  // guarded by mutex
  const auto is_sound = [&](const ChunkRef& ref) {
    if (ref.kind != ChunkKind::kStored) return false;
    const auto known = sound_.find({ref.address, dtype});
    return known != sound_.end() && known->second == ref.digest;
  };
  tbb::task_arena arena(StartableThreads(store_->num_threads()));
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, refs.size(), [&](size_t i) {
      if (stop.is_set() || is_sound(refs[i])) return;
      Worker& worker = workers.local();
      worker.out.resize(refs[i].raw_bytes);
      const Status status =
          store_->chunk_reader().Read(refs[i], dtype, worker.out, &worker.scratch);
      if (status.ok()) return;
      const std::lock_guard lock(mutex);
      damaged.emplace(i, status);
    });
  });
  VARVE_RETURN_IF_ERROR(stop.Check());
  for (size_t i = 0; i < refs.size(); ++i) {
    if (refs[i].kind == ChunkKind::kStored && !damaged.contains(i)) {
      sound_[{refs[i].address, dtype}] = refs[i].digest;
    }
  }
  if (damaged.empty()) return Status::Ok();
  const auto& [index, status] = *damaged.begin();
  return Status::Corruption("chunk " + std::to_string(first + index) + ": " + status.message());
}

}  // namespace varve::internal
