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
#include "store/shards/regions.h"

namespace varve::internal {

void StepFaults::Add(std::string_view tensor, const std::string& why) {
  if (reason.empty()) reason = why;
  if (!tensor.empty() && (tensors.empty() || tensors.back() != tensor)) {
    tensors.emplace_back(tensor);
  }
}

Status AddSteps(const Database& db, Family family, std::set<StepKey>* found) {
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
    if (IsShortage(key.status())) return key.status();
    const auto next =
        std::ranges::find_if(*found, [&](const StepKey& step) { return keys::Step(step) > from; });
    if (next == found->end()) break;
    from = keys::Step(*next);
  }
  for (std::string end;;) {
    const auto key = db.LastKeyBefore(family, "", end);
    if (IsShortage(key.status())) return key.status();
    if (!key.ok() || !key->has_value()) break;
    const auto step = step_of(**key);
    if (step.has_value()) found->insert(*step);
    end = step.has_value() ? keys::Step(*step) : **key;
  }
  return Status::Ok();
}

Status AddAllSteps(const Database& db, std::set<StepKey>* found) {
  // What one look finds helps the next around blocks that cannot be read.
  for (size_t before = SIZE_MAX; before != found->size();) {
    before = found->size();
    for (const Family family : {Family::kSteps, Family::kTensors, Family::kState}) {
      VARVE_RETURN_IF_ERROR(AddSteps(db, family, found));
    }
  }
  return Status::Ok();
}

namespace {

// The error is one of this process, and says nothing about the data.
bool IsOfThisProcess(const Status& status) {
  return status.code() == StatusCode::kAborted || IsShortage(status);
}

Status AddFault(std::string_view tensor, const Status& status, StepFaults* faults) {
  if (status.ok() || IsOfThisProcess(status)) return status;
  faults->Add(tensor,
              (tensor.empty() ? "" : "tensor " + std::string(tensor) + ": ") + status.message());
  return Status::Ok();
}

}  // namespace

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
  if (!opened.ok()) return AddFault("", opened.status(), faults);
  const ShardedReader& reader = **opened;
  VARVE_RETURN_IF_ERROR(AddFault("", CheckRecords(step, run), faults));
  const auto shards = reader.FindStored();
  if (IsShortage(shards.status())) return shards.status();
  if (shards.ok()) {
    for (const StoredShard& shard : *shards) {
      VARVE_RETURN_IF_ERROR(AddFault(shard.name, VerifyTensor(shard), faults));
      add(shard.record.LogicalBytes());
    }
  }
  VARVE_RETURN_IF_ERROR(AddFault("", reader.ReadTrainerProgress().status(), faults));
  VARVE_RETURN_IF_ERROR(AddFault("", reader.ReadTopology().status(), faults));
  const auto items = reader.ListBytes();
  if (!items.ok()) return AddFault("", items.status(), faults);
  for (const std::string& item : *items) {
    VARVE_RETURN_IF_ERROR(AddFault("", reader.ReadBytes(item).status(), faults));
  }
  return Status::Ok();
}

Result<StepPart> StepVerifier::FindPart(StepKey step, std::string_view run) {
  StepPart part;
  const auto opened = store_->OpenShardsOf(step, run);
  if (IsOfThisProcess(opened.status())) return opened.status();
  if (!opened.ok()) return part;
  const ShardedReader& reader = **opened;
  VARVE_RETURN_IF_ERROR(FindTensors(reader, step, &part));
  const auto note = [&part](const Status& status) {
    if (status.ok() || IsOfThisProcess(status)) return status;
    part.other_losses.push_back(status.message());
    return Status::Ok();
  };
  const auto progress = reader.ReadTrainerProgress();
  VARVE_RETURN_IF_ERROR(note(progress.status()));
  part.has_progress = progress.ok() && progress->has_value();
  const auto topology = reader.ReadTopology();
  VARVE_RETURN_IF_ERROR(note(topology.status()));
  part.has_topology = topology.ok() && topology->has_value();
  const auto items = reader.ListBytes();
  VARVE_RETURN_IF_ERROR(note(items.status()));
  if (!items.ok()) return part;
  for (const std::string& item : *items) {
    const Status read = reader.ReadBytes(item).status();
    VARVE_RETURN_IF_ERROR(note(read));
    if (read.ok()) part.items.push_back(item);
  }
  const auto record = store_->FindStep(step);
  if (IsOfThisProcess(record.status())) return record.status();
  const uint64_t expected = record.ok() && record->has_value() ? (*record)->num_items : 0;
  if (items->size() < expected) {
    part.other_losses.push_back(std::to_string(expected - items->size()) + " of " +
                                std::to_string(expected) + " items");
  }
  return part;
}

// Sorts the tensors of a step into those that can be read whole and those that cannot.
Status StepVerifier::FindTensors(const ShardedReader& reader, StepKey step, StepPart* part) {
  const auto stored = reader.FindStored();
  if (IsOfThisProcess(stored.status())) return stored.status();
  if (!stored.ok()) return FindTensorsByName(reader, step, part);
  const std::span<const StoredShard> all(*stored);
  for (size_t first = 0, end = 0; first < all.size(); first = end) {
    while (end < all.size() && all[end].name == all[first].name) ++end;
    VARVE_RETURN_IF_ERROR(AddTensor(all.subspan(first, end - first), part));
  }
  const Status whole = FindShards(reader, step).status();
  if (IsOfThisProcess(whole)) return whole;
  if (!whole.ok()) part->other_losses.push_back(whole.message());
  return Status::Ok();
}

// The same where records are lost, or a block of them cannot be read.
Status StepVerifier::FindTensorsByName(const ShardedReader& reader, StepKey step, StepPart* part) {
  uint64_t num_found = 0;
  VARVE_ASSIGN_OR_RETURN(const std::set<std::string> names, FindNames(step));
  for (const std::string& name : names) {
    const auto shards = reader.FindStored(name);
    if (IsOfThisProcess(shards.status())) return shards.status();
    if (shards.status().code() == StatusCode::kNotFound) continue;  // another save or step has it
    if (shards.ok()) {
      num_found += shards->size();
      VARVE_RETURN_IF_ERROR(AddTensor(*shards, part));
    } else {
      part->lost_tensors.push_back(name);
    }
  }
  const uint64_t expected = reader.info().num_tensors;
  part->other_losses.push_back("the records of " +
                               std::to_string(expected - std::min(num_found, expected)) + " of " +
                               std::to_string(expected) + " tensors and shards");
  return Status::Ok();
}

// Returns the names that tensors of a step may have. It looks from both ends, so one block that
// cannot be read hides no name but those in it. These are found if the nearest step that can be
// read has them, too.
Result<std::set<std::string>> StepVerifier::FindNames(StepKey step) const {
  std::set<std::string> names;
  const Database& db = *store_->database();
  const std::string prefix = keys::Step(step);
  const auto add = [&names](const std::string& key) {
    if (const auto tensor = keys::ParseTensor(key)) names.emplace(tensor->name);
  };
  std::string from = prefix;
  auto key = db.FirstKeyFrom(Family::kTensors, prefix, from);
  for (; key.ok() && key->has_value(); key = db.FirstKeyFrom(Family::kTensors, prefix, from)) {
    add(**key);
    from = **key + '\0';
  }
  if (key.ok()) return names;
  if (IsOfThisProcess(key.status())) return key.status();
  std::string end = keys::PrefixEnd(prefix);
  while (true) {
    key = db.LastKeyBefore(Family::kTensors, prefix, end);
    if (IsOfThisProcess(key.status())) return key.status();
    if (!key.ok() || !key->has_value() || **key < from) break;
    add(**key);
    end = **key;
  }
  VARVE_RETURN_IF_ERROR(AddNamesNear(step, &names));
  return names;
}

// Adds the names of the tensors of the nearest step of the run whose records can all be read.
Status StepVerifier::AddNamesNear(StepKey step, std::set<std::string>* names) const {
  auto steps = store_->StepsFrom(step.run, 0);
  if (!steps.ok()) return IsOfThisProcess(steps.status()) ? steps.status() : Status::Ok();
  const auto distance = [step](uint64_t other) {
    return other > step.step ? other - step.step : step.step - other;
  };
  std::ranges::sort(*steps, {}, distance);
  for (const uint64_t other : *steps) {
    const auto reader = store_->OpenShardsOf({step.run, other}, "");
    if (IsOfThisProcess(reader.status())) return reader.status();
    if (!reader.ok()) continue;
    const auto shards = (*reader)->FindStored();
    if (IsOfThisProcess(shards.status())) return shards.status();
    if (!shards.ok()) continue;
    for (const StoredShard& shard : *shards) names->insert(shard.name);
    break;
  }
  return Status::Ok();
}

// Adds the tensor whose shards these are.
Status StepVerifier::AddTensor(std::span<const StoredShard> shards, StepPart* part) {
  std::vector<ShardLayout> layouts;
  bool is_whole = true;
  for (const StoredShard& shard : shards) {
    const Status read = VerifyTensor(shard);
    if (IsOfThisProcess(read)) return read;
    is_whole = is_whole && read.ok();
    if (shard.record.layout.has_value()) layouts.push_back(*shard.record.layout);
  }
  // The record of a shard may be lost. Shards without layouts make no tensor together.
  is_whole = is_whole && (layouts.empty() || ProveCoverage(layouts).ok());
  (is_whole ? part->kept_tensors : part->lost_tensors).push_back(shards[0].name);
  if (is_whole) part->shards.insert(part->shards.end(), shards.begin(), shards.end());
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
  const ListKey key{record.lists[index], record.dtype, record.GeometryOfList(index)};
  if (const auto known = lists_.find(key); known != lists_.end()) return &known->second;
  ListVerdict verdict;
  const auto refs = store_->ReadList(record, index);
  if (IsShortage(refs.status())) return refs.status();
  if (!refs.ok()) {
    verdict.fault = refs.status().message();
  } else {
    for (const ChunkRef& ref : *refs) keys::AppendIndex(ref.digest, &verdict.digests);
    const uint64_t first = index * kChunksPerList;
    const Status read =
        presence_.has_value() ? FindChunks(*refs, first) : VerifyChunks(*refs, record.dtype, first);
    if (IsOfThisProcess(read)) return read;
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
  for (const auto& [index, status] : damaged) {
    if (IsShortage(status)) return status;
  }
  const auto& [index, status] = *damaged.begin();
  return Status::Corruption("chunk " + std::to_string(first + index) + ": " + status.message());
}

// Looks for chunks without reading them, and returns what is wrong with the first that is lost.
Status StepVerifier::FindChunks(const std::vector<ChunkRef>& refs, uint64_t first) {
  VARVE_RETURN_IF_ERROR(StopFlag().Check());
  for (size_t i = 0; i < refs.size(); ++i) {
    if (!refs[i].NamesFrame()) continue;
    const Status found = presence_->Find(refs[i].address);
    if (IsOfThisProcess(found)) return found;
    if (found.ok()) continue;
    return Status::Corruption("chunk " + std::to_string(first + i) + ": " + found.message());
  }
  return Status::Ok();
}

}  // namespace varve::internal
