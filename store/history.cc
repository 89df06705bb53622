// SPDX-License-Identifier: Apache-2.0
//
// How tensors changed: the log of one tensor over a run, and the difference of two checkpoints.
#include "varve/history.h"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "codec/number.h"
#include "store/store_impl.h"
#include "store/util.h"

namespace varve {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using TensorKey = std::pair<std::string, uint32_t>;  // name, shard
using TensorMap = std::map<TensorKey, TensorRecord>;

bool SameGeometry(const TensorRecord& a, const TensorRecord& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.elements_per_chunk == b.elements_per_chunk;
}

struct ChangedChunk {
  uint64_t chunk = 0;
  std::optional<ChunkRef> before;  // unset when the tensor is new or reshaped
  ChunkRef after;
};

// The chunks of `after` that `before` does not have at the same place; `before` may be null. Lists that
// both name are not read.
Result<std::vector<ChangedChunk>> FindChanges(const StoreImpl& store, const TensorRecord* before,
                                              const TensorRecord& after) {
  std::vector<ChangedChunk> changes;
  for (size_t i = 0; i < after.lists.size(); ++i) {
    if (before != nullptr && before->lists[i] == after.lists[i]) continue;
    VARVE_ASSIGN_OR_RETURN(std::vector<ChunkRef> now, store.ReadList(after, i));
    std::vector<ChunkRef> then;
    if (before != nullptr) {
      VARVE_ASSIGN_OR_RETURN(then, store.ReadList(*before, i));
    }
    for (size_t k = 0; k < now.size(); ++k) {
      if (before != nullptr && then[k].digest == now[k].digest) continue;
      ChangedChunk& change = changes.emplace_back();
      change.chunk = i * kChunksPerList + k;
      if (before != nullptr) change.before = std::move(then[k]);
      change.after = std::move(now[k]);
    }
  }
  return changes;
}

// All tensors of a step whose key begins with `prefix`.
Status ReadTensors(const Database& database, const std::string& prefix, TensorMap* out) {
  return database.Scan(
      Family::kTensors, prefix, [&](std::string_view key, std::string_view value) -> Status {
        const auto parsed = keys::ParseTensor(key);
        if (!parsed.has_value()) return Status::Corruption("a malformed key in family tensors");
        VARVE_ASSIGN_OR_RETURN(TensorRecord record, DecodeTensorRecord(value));
        out->emplace(TensorKey(parsed->name, parsed->shard), std::move(record));
        return Status::Ok();
      });
}

// Compares a tensor (all its shards) with what it was one step before.
Result<TensorChange> CompareShards(const StoreImpl& store, uint64_t birth, const TensorMap& before,
                                   const TensorMap& after) {
  TensorChange change;
  std::set<ChunkAddress> stored;  // a frame that several chunks name is stored once
  for (const auto& [key, record] : after) {
    const auto it = before.find(key);
    const bool comparable = it != before.end() && SameGeometry(it->second, record);
    change.num_chunks += record.NumChunks();
    VARVE_ASSIGN_OR_RETURN(const auto changes,
                           FindChanges(store, comparable ? &it->second : nullptr, record));
    change.changed_chunks += changes.size();
    for (const ChangedChunk& chunk : changes) {
      change.changed_bytes += chunk.after.raw_bytes;
      const bool is_own = chunk.after.kind == ChunkKind::kStored && chunk.after.address.birth == birth;
      if (is_own && stored.insert(chunk.after.address).second) {
        change.stored_bytes += chunk.after.stored_bytes;
      }
    }
  }
  return change;
}

// What comparing the elements of one chunk adds to a ValueDiff.
struct PartialDiff {
  uint64_t changed_elements = 0;
  double max_abs = 0;
  double squares_of_difference = 0;
  double squares_before = 0;
};

template <typename T>
PartialDiff CompareNumbers(const std::vector<T>& before, const std::vector<T>& after,
                           size_t numbers_per_element) {
  PartialDiff diff;
  for (size_t i = 0; i < before.size(); i += numbers_per_element) {
    bool changed = false;
    for (size_t k = i; k < i + numbers_per_element; ++k) {
      const auto a = static_cast<double>(before[k]);
      const auto b = static_cast<double>(after[k]);
      diff.squares_before += a * a;
      const bool both_nan = before[k] != before[k] && after[k] != after[k];
      if (before[k] == after[k] || both_nan) continue;
      changed = true;
      const double delta = std::abs(b - a);
      diff.max_abs = std::isnan(delta) ? kInfinity : std::max(diff.max_abs, delta);
      diff.squares_of_difference += delta * delta;
    }
    if (changed) ++diff.changed_elements;
  }
  return diff;
}

PartialDiff CompareElements(DType dtype, std::span<const std::byte> before,
                            std::span<const std::byte> after) {
  const Numbers a = DecodeNumbers(dtype, before);
  const Numbers b = DecodeNumbers(dtype, after);
  return std::visit(
      [&](const auto& numbers) {
        using Vector = std::decay_t<decltype(numbers)>;
        return CompareNumbers(numbers, std::get<Vector>(b), dtype == DType::kC64 ? 2 : 1);
      },
      a);
}

ValueDiff Sum(const TensorRecord& record, std::span<const PartialDiff> parts) {
  ValueDiff diff{.num_elements = record.NumElements()};
  double squares_of_difference = 0, squares_before = 0;
  for (const PartialDiff& part : parts) {  // in the order of the chunks, so that the sum is always the same
    diff.changed_elements += part.changed_elements;
    diff.max_abs = std::max(diff.max_abs, part.max_abs);
    squares_of_difference += part.squares_of_difference;
    squares_before += part.squares_before;
  }
  const double ratio = std::sqrt(squares_of_difference) / std::sqrt(squares_before);
  if (diff.changed_elements > 0) diff.relative_norm = std::isnan(ratio) ? kInfinity : ratio;
  return diff;
}

// Reads all of `before`, for its norm, and of `after` the chunks that changed.
Result<ValueDiff> CompareValues(const StoreImpl& store, const TensorRecord& before,
                                std::span<const ChangedChunk> changes) {
  std::vector<ChunkRef> refs;
  for (size_t i = 0; i < before.lists.size(); ++i) {
    VARVE_ASSIGN_OR_RETURN(std::vector<ChunkRef> list, store.ReadList(before, i));
    std::move(list.begin(), list.end(), std::back_inserter(refs));
  }
  std::map<uint64_t, const ChunkRef*> after;
  for (const ChangedChunk& change : changes) after.emplace(change.chunk, &change.after);

  struct Worker {
    ChunkScratch scratch;
    std::vector<std::byte> before;
    std::vector<std::byte> after;
  };
  tbb::enumerable_thread_specific<Worker> workers;
  std::vector<PartialDiff> parts(refs.size());
  std::mutex mutex;
  Status error;
  const auto compare = [&](size_t i) -> Status {
    Worker& worker = workers.local();
    const ChunkRef& ref = refs[i];
    worker.before.resize(ref.raw_bytes);
    VARVE_RETURN_IF_ERROR(
        store.chunk_reader().Read(ref, before.dtype, worker.before, &worker.scratch));
    const auto it = after.find(i);
    const bool is_changed = it != after.end();
    if (is_changed && it->second->raw_bytes != ref.raw_bytes) {
      return Status::Corruption("chunk " + std::to_string(i) + " has another size than before");
    }
    worker.after.resize(ref.raw_bytes);
    if (is_changed) {
      VARVE_RETURN_IF_ERROR(
          store.chunk_reader().Read(*it->second, before.dtype, worker.after, &worker.scratch));
    }
    parts[i] = CompareElements(before.dtype, worker.before,
                               is_changed ? worker.after : worker.before);
    return Status::Ok();
  };
  tbb::task_arena arena(store.num_threads());
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, refs.size(), [&](size_t i) {
      const Status status = compare(i);
      const std::lock_guard lock(mutex);
      if (error.ok()) error = status;
    });
  });
  VARVE_RETURN_IF_ERROR(error);
  return Sum(before, parts);
}

Result<TensorDiff> DiffTensor(const StoreImpl& store, const TensorKey& key,
                              const TensorRecord& before, const TensorRecord& after,
                              const DiffOptions& options) {
  TensorDiff diff{.name = key.first, .shard = key.second};
  diff.reshaped = !SameGeometry(before, after);
  diff.num_chunks = after.NumChunks();
  VARVE_ASSIGN_OR_RETURN(const auto changes,
                         FindChanges(store, diff.reshaped ? nullptr : &before, after));
  diff.changed_chunks = changes.size();
  for (const ChangedChunk& change : changes) diff.changed_bytes += change.after.raw_bytes;
  const bool whole_bytes = DTypeBits(before.dtype) % 8 == 0;
  if (options.values && !diff.reshaped && whole_bytes && !changes.empty()) {
    VARVE_ASSIGN_OR_RETURN(diff.values, CompareValues(store, before, changes));
  }
  return diff;
}

}  // namespace

Result<std::vector<TensorChange>> StoreImpl::Log(std::string_view run,
                                                 std::string_view tensor) const {
  VARVE_RETURN_IF_ERROR(ValidateName("tensor name", tensor));
  VARVE_RETURN_IF_ERROR(Refresh());
  std::vector<TensorChange> log;
  const auto read = [&]() -> Status {
    log.clear();
    VARVE_ASSIGN_OR_RETURN(const RunRecord found, FindRun(run));
    TensorMap before;
    bool seen = false;
    const auto visit = [&](std::string_view key, std::string_view value) -> Status {
      const auto step = keys::ParseStep(key);
      if (!step.has_value()) return Status::Corruption("a malformed key in family steps");
      VARVE_ASSIGN_OR_RETURN(const StepRecord record, DecodeStepRecord(value));
      constexpr size_t kShardBytes = 4;
      std::string prefix = keys::Tensor(*step, tensor, 0);
      prefix.resize(prefix.size() - kShardBytes);
      TensorMap now;
      VARVE_RETURN_IF_ERROR(ReadTensors(*database_, prefix, &now));
      if (now.empty()) return Status::Ok();  // it may come back later
      VARVE_ASSIGN_OR_RETURN(TensorChange change, CompareShards(*this, record.birth, before, now));
      change.step = step->step;
      if (change.changed_chunks > 0 || !seen || before.size() != now.size()) log.push_back(change);
      seen = true;
      before = std::move(now);
      return Status::Ok();
    };
    VARVE_RETURN_IF_ERROR(database_->Scan(Family::kSteps, keys::RunPrefix(found.id), visit));
    if (seen) return Status::Ok();
    return Status::NotFound("no tensor " + std::string(tensor) + " at any step of run " +
                            std::string(run));
  };
  VARVE_RETURN_IF_ERROR(WithFrozenView(read));
  return log;
}

Result<CheckpointDiff> StoreImpl::Diff(const CheckpointId& before, const CheckpointId& after,
                                       const DiffOptions& options) const {
  VARVE_RETURN_IF_ERROR(Refresh());
  CheckpointDiff diff;
  const auto read = [&]() -> Status {
    diff = {};
    TensorMap a, b;
    for (const auto& [id, map] : {std::pair(&before, &a), {&after, &b}}) {
      VARVE_ASSIGN_OR_RETURN(const auto step, RequireStep(*id));
      VARVE_RETURN_IF_ERROR(ReadTensors(*database_, keys::Step(step.first), map));
      if (options.include) {
        std::erase_if(*map, [&](const auto& entry) { return !options.include(entry.first.first); });
      }
    }
    for (const auto& [key, record] : a) {
      const auto it = b.find(key);
      if (it == b.end()) {
        diff.removed.push_back(key.first);
        continue;
      }
      Result<TensorDiff> tensor = DiffTensor(*this, key, record, it->second, options);
      if (!tensor.ok()) return tensor.status().WithContext("tensor " + key.first);
      if (tensor->reshaped || tensor->changed_chunks > 0) {
        diff.changed.push_back(*std::move(tensor));
      } else {
        diff.unchanged.push_back(key.first);
      }
    }
    for (const auto& [key, record] : b) {
      if (!a.contains(key)) diff.added.push_back(key.first);
    }
    return Status::Ok();
  };
  VARVE_RETURN_IF_ERROR(WithFrozenView(read));
  return diff;
}

}  // namespace varve
