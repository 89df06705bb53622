// SPDX-License-Identifier: Apache-2.0
//
// How tensors changed: the log of one tensor over a run, and the difference of two checkpoints.
#include "store/ops/history.h"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>
#include <tbb/parallel_invoke.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "base/bytes_of.h"
#include "base/startable_threads.h"
#include "base/stop.h"
#include "base/util.h"
#include "store/db/store_impl.h"
#include "store/ops/value_diff.h"
#include "store/read/list_reader.h"

namespace varve::internal {

namespace {

using Shards = std::span<const StoredShard>;  // of one tensor, by rising number

bool SameGeometry(const TensorRecord& a, const TensorRecord& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.elements_per_chunk == b.elements_per_chunk &&
         a.layout == b.layout;
}

const StoredShard* FindNumber(Shards shards, uint32_t number) {
  const auto it = std::find_if(shards.begin(), shards.end(),
                               [&](const StoredShard& shard) { return shard.number == number; });
  return it == shards.end() ? nullptr : &*it;
}

struct ChangedChunk {
  uint64_t chunk = 0;
  ChunkRef after;
};

// Returns the lists of a shard. Lists that `other` names, too, are not read but taken from
// `of_other`, or are null when that is empty. `other` may be null.
Result<std::vector<ChunkList>> ReadLists(const StoredShard& shard, const StoredShard* other,
                                         const ListReader& reader,
                                         std::span<const ChunkList> of_other = {}) {
  std::vector<ChunkList> lists;
  for (size_t i = 0; i < shard.record.lists.size(); ++i) {
    if (other != nullptr && other->store == shard.store &&
        other->record.lists[i] == shard.record.lists[i]) {
      lists.push_back(of_other.empty() ? nullptr : of_other[i]);
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(ChunkList list, reader.Read(shard, i));
    lists.push_back(std::move(list));
  }
  return lists;
}

// Returns the chunks of `after` that `before` does not have at the same place. `before` has the
// same geometry or is empty, and the stores of both have one digest seed.
std::vector<ChangedChunk> FindChanges(std::span<const ChunkList> before,
                                      std::span<const ChunkList> after) {
  std::vector<ChangedChunk> changes;
  for (size_t i = 0; i < after.size(); ++i) {
    if (!before.empty() && before[i] == after[i]) continue;
    for (size_t k = 0; k < after[i]->size(); ++k) {
      const ChunkRef& now = (*after[i])[k];
      if (!before.empty() && (*before[i])[k].digest == now.digest) continue;
      ChangedChunk& change = changes.emplace_back();
      change.chunk = i * kChunksPerList + k;
      change.after = now;
    }
  }
  return changes;
}

// A shard of a logged tensor with its lists. Comparing it with a later one needs nothing else of
// its step, which may be dropped by then.
struct LoggedShard {
  StoredShard stored;
  std::vector<ChunkList> lists;
};
using LoggedTensor = std::vector<LoggedShard>;  // all its shards

// Returns the shard that this one can be compared with, chunk by chunk, or null.
const LoggedShard* FindComparable(const LoggedTensor& before, const StoredShard& shard) {
  const auto it = std::find_if(before.begin(), before.end(), [&](const LoggedShard& other) {
    return other.stored.number == shard.number && SameGeometry(other.stored.record, shard.record);
  });
  return it == before.end() ? nullptr : &*it;
}

Result<LoggedTensor> ReadTensor(Shards shards, const LoggedTensor& before) {
  LoggedTensor tensor;
  const ListReader reader;
  for (const StoredShard& shard : shards) {
    const LoggedShard* const then = FindComparable(before, shard);
    VARVE_ASSIGN_OR_RETURN(auto lists, then == nullptr
                                           ? ReadLists(shard, nullptr, reader)
                                           : ReadLists(shard, &then->stored, reader, then->lists));
    tensor.push_back({shard, std::move(lists)});
  }
  return tensor;
}

// Compares a tensor with what it was one step before.
TensorChange Compare(const LoggedTensor& before, const LoggedTensor& after) {
  TensorChange change;
  // A frame that several chunks name is stored once.
  std::set<std::pair<const StoreImpl*, ChunkAddress>> stored;
  for (const auto& [shard, lists] : after) {
    const LoggedShard* const then = FindComparable(before, shard);
    change.num_chunks += shard.record.NumChunks();
    const auto changes =
        FindChanges(then == nullptr ? std::vector<ChunkList>() : then->lists, lists);
    change.changed_chunks += changes.size();
    for (const ChangedChunk& chunk : changes) {
      change.changed_bytes += chunk.after.raw_bytes;
      const bool is_own =
          chunk.after.kind == ChunkKind::kStored && chunk.after.address.save_id == shard.save_id;
      if (is_own && stored.emplace(shard.store, chunk.after.address).second) {
        change.stored_bytes += chunk.after.stored_bytes;
      }
    }
  }
  return change;
}

// One thread's work, with the memory that it reuses.
struct ValueWorker {
  ChunkScratch scratch;
  std::vector<std::byte> before;
  std::vector<std::byte> after;
};

// Reads a chunk as it was and as it is, which differ. A frame that both need is decoded once.
Status ReadBoth(const StoredShard& before, const ChunkRef& was, const StoredShard& after,
                const ChunkRef& is, ValueWorker* worker) {
  if (before.store == after.store && was.kind == ChunkKind::kStored &&
      is.kind == ChunkKind::kStored && was.address != is.address) {
    const std::array refs = {&was, &is};
    const std::array<std::span<std::byte>, 2> out = {worker->before, worker->after};
    if (before.store->chunk_reader().ReadTogether(refs, out, &worker->scratch).ok()) {
      return Status::Ok();
    }
    // Alone, each says what is wrong with it.
  }
  const DType dtype = before.record.dtype;
  VARVE_RETURN_IF_ERROR(
      before.store->chunk_reader().Read(was, dtype, worker->before, &worker->scratch));
  return after.store->chunk_reader().Read(is, dtype, worker->after, &worker->scratch);
}

// Reads all of `before`, for its norm, and the changed chunks of `after`.
Result<ValueDiff> CompareValues(const StoredShard& before, const StoredShard& after,
                                std::span<const ChangedChunk> changes) {
  const DType dtype = before.record.dtype;
  std::vector<ChunkRef> refs;
  for (size_t i = 0; i < before.record.lists.size(); ++i) {
    VARVE_ASSIGN_OR_RETURN(std::vector<ChunkRef> list, before.store->ReadList(before.record, i));
    std::move(list.begin(), list.end(), std::back_inserter(refs));
  }
  std::map<uint64_t, const ChunkRef*> changed;
  for (const ChangedChunk& change : changes) changed.emplace(change.chunk, &change.after);

  tbb::enumerable_thread_specific<ValueWorker> workers;
  std::vector<PartialDiff> parts(refs.size());
  std::mutex mutex;
  Status error;
  const StopFlag stop;
  const auto compare = [&](size_t i) -> Status {
    VARVE_RETURN_IF_ERROR(stop.Check());
    ValueWorker& worker = workers.local();
    const ChunkRef& ref = refs[i];
    worker.before.resize(ref.raw_bytes);
    const auto it = changed.find(i);
    if (it == changed.end()) {
      VARVE_RETURN_IF_ERROR(
          before.store->chunk_reader().Read(ref, dtype, worker.before, &worker.scratch));
      parts[i] = CompareElements(dtype, worker.before, worker.before);
      return Status::Ok();
    }
    worker.after.resize(ref.raw_bytes);  // of equal size, as the geometries are equal
    VARVE_RETURN_IF_ERROR(ReadBoth(before, ref, after, *it->second, &worker));
    parts[i] = CompareElements(dtype, worker.before, worker.after);
    return Status::Ok();
  };
  tbb::task_arena arena(StartableThreads(after.store->num_threads()));
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, refs.size(), [&](size_t i) {
      const Status status = compare(i);
      const std::lock_guard lock(mutex);
      if (error.ok()) error = status;
    });
  });
  VARVE_RETURN_IF_ERROR(error);
  return Sum(before.record.NumElements(), parts);
}

bool HasWholeBytes(DType dtype) { return DTypeBits(dtype) % 8 == 0; }

// `before` may be null when there was no such shard.
Result<TensorDiff> DiffShard(const StoredShard* before, const StoredShard& after,
                             const DiffOptions& options, const ListReader& reader) {
  TensorDiff diff{.name = after.name, .shard = after.number};
  diff.reshaped = before == nullptr || !SameGeometry(before->record, after.record);
  diff.num_chunks = after.record.NumChunks();
  std::vector<ChunkList> then;
  if (!diff.reshaped) {
    VARVE_ASSIGN_OR_RETURN(then, ReadLists(*before, &after, reader));
  }
  VARVE_ASSIGN_OR_RETURN(const auto now,
                         ReadLists(after, diff.reshaped ? nullptr : before, reader));
  const std::vector<ChangedChunk> changes = FindChanges(then, now);
  diff.changed_chunks = changes.size();
  for (const ChangedChunk& change : changes) diff.changed_bytes += change.after.raw_bytes;
  if (options.values && !diff.reshaped && HasWholeBytes(after.record.dtype) && !changes.empty()) {
    VARVE_ASSIGN_OR_RETURN(diff.values, CompareValues(*before, after, changes));
  }
  return diff;
}

// Compares bytes instead of digests: shards that were cut in another way, as one tensor, or shards
// of stores with different digest seeds. It counts pieces of as many elements as a chunk has.
class BytesDiff {
 public:
  // Compares the shards of this number, or with kAllShards the global tensors.
  BytesDiff(const ShardedReader& before, const ShardedReader& after, const StoredShard& shard,
            uint32_t number, std::function<void(uint64_t bytes)> done)
      : before_(before),
        after_(after),
        name_(shard.name),
        number_(number),
        dtype_(shard.record.dtype),
        per_piece_(shard.record.elements_per_chunk),
        region_(ShardLayout::Whole(number == kAllShards ? GlobalShape(shard) : shard.record.shape)),
        num_elements_(region_.NumGlobal()),
        done_(std::move(done)) {}

  static const std::vector<int64_t>& GlobalShape(const StoredShard& shard) {
    return shard.record.layout ? shard.record.layout->global_shape : shard.record.shape;
  }

  Result<TensorDiff> Run(const DiffOptions& options) {
    TensorDiff diff{.name = name_, .shard = number_ == kAllShards ? 0 : number_};
    std::vector<PartialDiff> parts;
    const bool compares_values = options.values && HasWholeBytes(dtype_);
    for (int64_t begin = 0; begin < num_elements_; begin += kPiecesAtOnce * per_piece_) {
      region_.flat = {begin, std::min(begin + kPiecesAtOnce * per_piece_, num_elements_)};
      VARVE_RETURN_IF_ERROR(Read(before_, "the earlier checkpoint", &a_));
      VARVE_RETURN_IF_ERROR(Read(after_, "the later checkpoint", &b_));
      const size_t piece_bytes = BytesOf(dtype_, per_piece_);
      for (size_t at = 0; at < b_.size(); at += piece_bytes) {
        const size_t size = std::min(piece_bytes, b_.size() - at);
        const std::span<const std::byte> a = std::span(a_).subspan(at, size);
        const std::span<const std::byte> b = std::span(b_).subspan(at, size);
        ++diff.num_chunks;
        if (!std::ranges::equal(a, b)) {
          ++diff.changed_chunks;
          diff.changed_bytes += size;
        }
        if (compares_values) parts.push_back(CompareElements(dtype_, a, b));
      }
      if (done_) done_(b_.size());
    }
    if (!parts.empty() && diff.changed_chunks > 0) {
      diff.values = Sum(static_cast<uint64_t>(num_elements_), parts);
    }
    return diff;
  }

 private:
  static constexpr int64_t kPiecesAtOnce = 16;  // some MiB, which are read in parallel

  Status Read(const ShardedReader& reader, std::string_view which,
              std::vector<std::byte>* out) const {
    VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, NumBytes(dtype_, region_.LocalShape()));
    out->resize(bytes);
    const ReadRequest request = number_ == kAllShards
                                    ? ReadRequest::Region(name_, region_, *out)
                                    : ReadRequest::Shard(name_, number_, *out, region_);
    const Status status = reader.ReadMany(std::array{request});
    return status.ok() ? status : status.WithContext(std::string(which));
  }

  const ShardedReader& before_;
  const ShardedReader& after_;
  const std::string name_;
  const uint32_t number_;
  const DType dtype_;
  const int64_t per_piece_;
  ShardLayout region_;
  const int64_t num_elements_;
  const std::function<void(uint64_t bytes)> done_;
  std::vector<std::byte> a_, b_;
};

// True when both have all shards of one global tensor of the same type and shape.
bool AreOneTensor(Shards a, Shards b) {
  if (!a[0].record.layout && !b[0].record.layout) return false;
  return a[0].record.dtype == b[0].record.dtype &&
         BytesDiff::GlobalShape(a[0]) == BytesDiff::GlobalShape(b[0]);
}

bool AreCutAlike(Shards a, Shards b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const StoredShard& x, const StoredShard& y) {
                      return x.number == y.number && SameGeometry(x.record, y.record);
                    });
}

// Shards that make one tensor count as that tensor, without replicas and padding.
std::vector<TensorBytes> BytesOfTensors(Shards shards) {
  std::vector<TensorBytes> tensors;
  bool is_joined = false;
  for (const StoredShard& shard : shards) {
    const bool is_first = tensors.empty() || tensors.back().name != shard.name;
    if (is_first) tensors.push_back({shard.name});
    const bool is_part = shard.record.layout.has_value();
    if (!is_first && is_joined && is_part) continue;
    is_joined = is_part;
    const auto bytes = NumBytes(shard.record.dtype, BytesDiff::GlobalShape(shard));
    tensors.back().bytes += bytes.ok() ? *bytes : 0;
  }
  return tensors;
}

class Differ {
 public:
  Differ(const ShardedReader& before, const ShardedReader& after, const DiffOptions& options,
         const DiffProgress& progress, std::vector<TensorBytes>* bytes_after)
      : before_(before),
        after_(after),
        options_(options),
        progress_(progress),
        bytes_after_(bytes_after) {}

  // Both are in the order of names, so one pass over the two finds what they have in common.
  Result<CheckpointDiff> Run() {
    Result<std::vector<StoredShard>> all_before = std::vector<StoredShard>(),
                                     all_after = all_before;
    tbb::task_arena arena(StartableThreads(2));
    arena.execute([&] {
      tbb::parallel_invoke([&] { all_before = FindShards(before_); },
                           [&] { all_after = FindShards(after_); });
    });
    VARVE_RETURN_IF_ERROR(all_before.status());
    VARVE_RETURN_IF_ERROR(all_after.status());
    Shards before = *all_before, after = *all_after;
    const bool by_digest = !before.empty() && !after.empty() &&
                           before[0].store->digest_seed() == after[0].store->digest_seed();
    if (by_digest) lists_.ReadAheadDifferent(before, after);
    for (const StoredShard& shard : after) total_bytes_ += shard.record.LogicalBytes();
    if (bytes_after_ != nullptr) *bytes_after_ = BytesOfTensors(after);
    while (!before.empty() || !after.empty()) {
      const Shards a = FirstTensor(before), b = FirstTensor(after);
      const bool is_removed = b.empty() || (!a.empty() && a[0].name < b[0].name);
      const bool is_added = a.empty() || (!b.empty() && b[0].name < a[0].name);
      if (is_removed) {
        diff_.removed.push_back(a[0].name);
      } else if (is_added) {
        diff_.added.push_back(b[0].name);
      } else {
        const Status status = Compare(a, b);
        if (!status.ok()) return status.WithContext("tensor " + a[0].name);
      }
      uint64_t of_tensor = 0;
      for (const StoredShard& shard : is_removed ? Shards() : b) {
        of_tensor += shard.record.LogicalBytes();
      }
      passed_bytes_ += of_tensor;
      within_ = 0;
      Report();
      if (!is_added) before = before.subspan(a.size());
      if (!is_removed) after = after.subspan(b.size());
    }
    return std::move(diff_);
  }

 private:
  Result<std::vector<StoredShard>> FindShards(const ShardedReader& reader) const {
    VARVE_ASSIGN_OR_RETURN(std::vector<StoredShard> shards, reader.FindStored());
    std::erase_if(shards, [&](const StoredShard& shard) {
      return options_.include && !options_.include(shard.name);
    });
    return shards;
  }
  // Returns the shards of the first name. Returns none for an empty list.
  static Shards FirstTensor(Shards shards) {
    const auto end = std::find_if(shards.begin(), shards.end(), [&](const StoredShard& shard) {
      return shard.name != shards[0].name;
    });
    return shards.first(static_cast<size_t>(end - shards.begin()));
  }

  // A tensor has changed when one of its shards has. A shard that exists only in one of the two is
  // a reshaped one.
  Status Compare(Shards a, Shards b) {
    const size_t num_before = diff_.changed.size();
    const bool by_digest = a[0].store->digest_seed() == b[0].store->digest_seed();
    if (AreOneTensor(a, b) && !(by_digest && AreCutAlike(a, b))) {
      VARVE_ASSIGN_OR_RETURN(TensorDiff diff, CompareBytes(b[0], kAllShards));
      Add(std::move(diff));
    } else {
      for (const StoredShard& shard : b) {
        const StoredShard* const then = FindNumber(a, shard.number);
        const bool is_alike = then != nullptr && SameGeometry(then->record, shard.record);
        VARVE_ASSIGN_OR_RETURN(TensorDiff diff, is_alike && !by_digest
                                                    ? CompareBytes(shard, shard.number)
                                                    : DiffShard(then, shard, options_, lists_));
        Add(std::move(diff));
      }
      for (const StoredShard& shard : a) {
        if (FindNumber(b, shard.number) != nullptr) continue;
        Add({.name = shard.name, .shard = shard.number, .reshaped = true});
      }
    }
    if (diff_.changed.size() == num_before) diff_.unchanged.push_back(b[0].name);
    return Status::Ok();
  }
  Result<TensorDiff> CompareBytes(const StoredShard& shard, uint32_t number) {
    BytesDiff diff(before_, after_, shard, number, [this](uint64_t bytes) {
      within_ += bytes;
      Report();
    });
    return diff.Run(options_);
  }
  void Report() const {
    if (progress_) progress_(passed_bytes_ + within_, total_bytes_);
  }
  void Add(TensorDiff diff) {
    if (diff.reshaped || diff.changed_chunks > 0) diff_.changed.push_back(std::move(diff));
  }

  const ShardedReader& before_;
  const ShardedReader& after_;
  const DiffOptions& options_;
  const DiffProgress& progress_;
  std::vector<TensorBytes>* const bytes_after_;  // may be null
  uint64_t total_bytes_ = 0;                     // of the tensors of `after`
  uint64_t passed_bytes_ = 0;                    // of those that have been compared
  uint64_t within_ = 0;                          // of the tensor that is being compared
  ListReader lists_;
  CheckpointDiff diff_;
};

// With `skips`, steps that are damaged are left out.
Result<KnownLog> LogOf(std::string_view run, std::string_view tensor,
                       std::span<const CheckpointInfo> steps, const OpenStepOfRun& open,
                       bool skips) {
  KnownLog log;
  std::unique_ptr<ShardedReader> before;
  LoggedTensor then;
  const auto add = [&](uint64_t step) -> Status {
    VARVE_ASSIGN_OR_RETURN(std::unique_ptr<ShardedReader> reader, open(step));
    VARVE_ASSIGN_OR_RETURN(const auto shards, reader->FindStored(tensor));
    LoggedTensor now;
    VARVE_RETURN_IF_ERROR(reader->WithFrozenView([&]() -> Status {
      VARVE_ASSIGN_OR_RETURN(now, ReadTensor(shards, then));
      return Status::Ok();
    }));
    TensorChange change = Compare(then, now);
    change.step = step;
    if (change.changed_chunks > 0 || then.size() != now.size()) log.changes.push_back(change);
    then = std::move(now);
    before = std::move(reader);
    return Status::Ok();
  };
  for (const CheckpointInfo& info : steps) {
    const Status status = add(info.id.step);
    // The step lacks the tensor, or was dropped meanwhile. A later step may have it again.
    if (status.ok() || status.code() == StatusCode::kNotFound) continue;
    if (!skips || status.code() != StatusCode::kCorruption) return status;
    const std::string name = StepName(run, info.id.step);
    const bool is_named = status.message().find(name) != std::string::npos;
    log.errors.push_back(is_named ? status.message() : name + ": " + status.message());
  }
  if (before != nullptr || !log.errors.empty()) return log;
  return Status::NotFound("no tensor " + std::string(tensor) + " at any step of run " +
                          std::string(run));
}

}  // namespace

Result<CheckpointDiff> DiffCheckpoints(const ShardedReader& before, const ShardedReader& after,
                                       const DiffOptions& options, const DiffProgress& progress,
                                       std::vector<TensorBytes>* bytes_after) {
  CheckpointDiff diff;
  const auto read = [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(diff, Differ(before, after, options, progress, bytes_after).Run());
    return Status::Ok();
  };
  VARVE_RETURN_IF_ERROR(before.WithFrozenView([&] { return after.WithFrozenView(read); }));
  return diff;
}

Result<std::vector<TensorChange>> LogTensor(const Store& store, std::string_view run,
                                            std::string_view tensor, const OpenStepOfRun& open) {
  VARVE_RETURN_IF_ERROR(ValidateName("tensor name", tensor));
  VARVE_ASSIGN_OR_RETURN(const auto steps, store.ListCheckpoints(run));
  VARVE_ASSIGN_OR_RETURN(KnownLog log, LogOf(run, tensor, steps, open, /*skips=*/false));
  return std::move(log.changes);
}

Result<KnownLog> LogKnown(const Store& store, std::string_view run, std::string_view tensor) {
  VARVE_RETURN_IF_ERROR(ValidateName("tensor name", tensor));
  VARVE_ASSIGN_OR_RETURN(KnownCheckpoints known, store.ListKnownCheckpoints());
  std::erase_if(known.checkpoints, [&](const auto& info) { return info.id.run != run; });
  const auto open = [&](uint64_t step) { return ShardedReader::Open(store, run, step); };
  VARVE_ASSIGN_OR_RETURN(KnownLog log, LogOf(run, tensor, known.checkpoints, open, /*skips=*/true));
  log.errors.insert(log.errors.begin(), known.errors.begin(), known.errors.end());
  return log;
}

Result<std::vector<TensorChange>> StoreImpl::Log(std::string_view run,
                                                 std::string_view tensor) const {
  VARVE_RETURN_IF_ERROR(Refresh());
  std::vector<TensorChange> log;
  // Beside a writer that drops steps, this reads everything in one state.
  VARVE_RETURN_IF_ERROR(WithFrozenView([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(
        log, LogTensor(*this, run, tensor, [&](uint64_t step) { return OpenShards(run, step); }));
    return Status::Ok();
  }));
  return log;
}

Result<CheckpointDiff> StoreImpl::Diff(const CheckpointId& before, const CheckpointId& after,
                                       const DiffOptions& options) const {
  VARVE_ASSIGN_OR_RETURN(const auto a, OpenShards(before.run, before.step));
  VARVE_ASSIGN_OR_RETURN(const auto b, OpenShards(after.run, after.step));
  return DiffCheckpoints(*a, *b, options);
}

}  // namespace varve::internal
