// SPDX-License-Identifier: Apache-2.0
#include "store/save_pipeline.h"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_pipeline.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstring>

#include "codec/rounded_copy.h"
#include "store/gather.h"
#include "store/low_priority.h"
#include "store/reference_counts.h"
#include "store/util.h"

namespace varve {
namespace {

// Memory that one chunk in flight may take, as a multiple of its raw bytes: a gathered copy, its
// frame, RocksDB's copy of that, and slack.
constexpr uint64_t kBytesInFlightPerRawByte = 4;
constexpr uint64_t kTypicalChunkBytes = uint64_t{1} << 20;

}  // namespace

std::string ParentWarning(const std::string& tensor, const Status& status) {
  return "tensor " + tensor + " is stored anew, as it cannot be read in the step before: " +
         status.message();
}

// One chunk in flight.
struct SavePipeline::Job {
  SaveTensor* tensor = nullptr;
  uint64_t chunk = 0;
  std::span<const std::byte> raw;
  std::vector<std::byte> gathered;
  bool is_new = false;
  bool is_rounded_copy = false;
  const ChunkRef* repeated = nullptr;  // the equal chunk placed earlier in this save
  std::vector<std::byte> frame;
  std::optional<BaseEdge> edge;

  ChunkRef& ref() const { return tensor->refs[chunk]; }
  const ChunkRef* parent() const {
    return chunk < tensor->parent_refs.size() ? &tensor->parent_refs[chunk] : nullptr;
  }
};

// What a thread reuses.
struct SavePipeline::Worker {
  FrameEncoder encoder;
  ChunkScratch scratch;
  std::vector<std::byte> compared;
};

SavePipeline::SavePipeline(StoreImpl* store, uint64_t birth, const SaveOptions& options)
    : store_(store),
      birth_(birth),
      verify_sharing_(options.verify_sharing),
      num_threads_(options.num_threads > 0 ? options.num_threads : store->num_threads()),
      low_priority_(options.low_priority),
      codec_(options.codec.value_or(store->options().codec)),
      progress_(options.progress),
      files_(store->database(), store->incoming(), birth) {}

SavePipeline::~SavePipeline() {
  for (const uint64_t birth : pinned_births_) store_->pins()->UnpinBirth(birth);
}

void SavePipeline::Fail(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = status;
  failed_ = true;
}

Status SavePipeline::Run(std::vector<std::unique_ptr<SaveTensor>>* tensors) {
  tensors_ = tensors;
  for (const auto& tensor : *tensors) total_bytes_ += tensor->record.LogicalBytes();
  tbb::enumerable_thread_specific<Worker> workers;
  const uint64_t budget = store_->options().pipeline_budget_bytes;
  const auto in_flight = static_cast<size_t>(
      std::clamp<uint64_t>(budget / (kBytesInFlightPerRawByte * kTypicalChunkBytes), 2,
                           4 * static_cast<uint64_t>(num_threads_)));
  const auto parallel = tbb::filter_mode::parallel;
  const auto in_order = tbb::filter_mode::serial_in_order;
  tbb::task_arena arena(num_threads_, low_priority_ ? static_cast<unsigned>(num_threads_) : 1);
  std::optional<LowPriorityHelpers> helpers;
  if (low_priority_) helpers.emplace(&arena, num_threads_ - 1);
  arena.execute([&] {
    tbb::parallel_pipeline(
        in_flight,
        tbb::make_filter<void, Job*>(in_order,
                                     [&](tbb::flow_control& control) -> Job* {
                                       Job* job = failed_ ? nullptr : NextJob();
                                       if (job == nullptr) control.stop();
                                       return job;
                                     }) &
            tbb::make_filter<Job*, Job*>(parallel,
                                         [&](Job* job) {
                                           if (!failed_) Examine(job, &workers.local());
                                           return job;
                                         }) &
            tbb::make_filter<Job*, Job*>(in_order,
                                         [&](Job* job) {
                                           if (!failed_) Place(job);
                                           return job;
                                         }) &
            tbb::make_filter<Job*, Job*>(parallel,
                                         [&](Job* job) {
                                           if (!failed_) Encode(job, &workers.local());
                                           return job;
                                         }) &
            tbb::make_filter<Job*, void>(in_order, [&](Job* job) {
              if (!failed_) Write(job);
              if (job->tensor->chunks != nullptr) job->tensor->chunks->Done(job->chunk);
              Report(*job);
              const std::lock_guard lock(mutex_);
              idle_.push_back(job);
            }));
  });
  if (failed_) return error_;
  return files_.Finish();
}

SavePipeline::Job* SavePipeline::NextJob() {
  while (next_tensor_ < tensors_->size() &&
         next_chunk_ == (*tensors_)[next_tensor_]->record.NumChunks()) {
    ++next_tensor_;
    next_chunk_ = 0;
  }
  if (next_tensor_ == tensors_->size()) return nullptr;
  SaveTensor* const tensor = (*tensors_)[next_tensor_].get();
  if (next_chunk_ == 0) {
    LoadParent(tensor);
    tensor->refs.resize(tensor->record.NumChunks());
  }
  Job* job = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      job = idle_.back();
      idle_.pop_back();
    }
  }
  if (job == nullptr) job = jobs_.emplace_back(std::make_unique<Job>()).get();
  job->tensor = tensor;
  job->chunk = next_chunk_++;
  job->is_new = job->is_rounded_copy = false;
  job->repeated = nullptr;
  job->edge.reset();
  return job;
}

// A last step that cannot be read is no reason to lose this save: the tensor is stored as if it were new.
void SavePipeline::LoadParent(SaveTensor* tensor) {
  const size_t num_lists = tensor->parent.has_value() ? tensor->parent->lists.size() : 0;
  for (size_t i = 0; i < num_lists; ++i) {
    Result<std::vector<ChunkRef>> refs = store_->ReadList(*tensor->parent, i);
    if (!refs.ok()) {
      warnings_.push_back(ParentWarning(tensor->name, refs.status()));
      tensor->parent.reset();
      tensor->parent_refs.clear();
      return;
    }
    std::move(refs->begin(), refs->end(), std::back_inserter(tensor->parent_refs));
  }
}

void SavePipeline::Examine(Job* job, Worker* worker) {
  const SaveTensor& t = *job->tensor;
  ChunkRef& ref = job->ref();
  ref.raw_bytes = static_cast<uint32_t>(t.record.ChunkBytes(job->chunk));
  if (SharesKnown(job, worker)) return;
  if (const Status fetched = FetchRaw(job); !fetched.ok()) {
    return Fail(fetched.WithContext("tensor " + t.name));
  }
  ref.digest = ComputeDigest(store_->digest_seed(), job->raw);
  if (t.chunks != nullptr) {
    if (const Status learned = t.chunks->Learn(job->chunk, ref.digest); !learned.ok()) {
      return Fail(learned.WithContext("tensor " + t.name));
    }
  }
  if (SharesParent(job, worker)) return;
  if (job->raw.size() <= kMaxInlineBytes) {
    ref.kind = ChunkKind::kInline;
    ref.literal = AsString(job->raw);
    return;
  }
  const auto element_bytes = std::clamp<size_t>(static_cast<size_t>(DTypeBits(t.dtype)) / 8, 1, 8);
  if (IsConstant(job->raw, element_bytes)) {
    ref.kind = ChunkKind::kConstant;
    ref.literal = AsString(job->raw.first(element_bytes));
    return;
  }
  if (t.source != nullptr) {
    const Result<bool> rounded = EqualsRoundedSource(*job, worker);
    if (!rounded.ok()) return Fail(rounded.status().WithContext("tensor " + t.derived_from));
    job->is_rounded_copy = *rounded;
    if (job->is_rounded_copy) return;
  }
  job->is_new = !SharesIndexed(job, worker);
}

// A chunk whose digest its source knows need not be read when the store has it.
bool SavePipeline::SharesKnown(Job* job, Worker* worker) {
  const SaveTensor& t = *job->tensor;
  if (t.chunks == nullptr || verify_sharing_) return false;
  const std::optional<Digest> digest = t.chunks->KnownDigest(job->chunk);
  if (!digest.has_value()) return false;
  job->ref().digest = *digest;
  job->raw = {};
  return SharesParent(job, worker) || SharesIndexed(job, worker);
}

Status SavePipeline::FetchRaw(Job* job) const {
  const SaveTensor& t = *job->tensor;
  const uint64_t offset = t.record.ChunkOffset(job->chunk);
  const uint64_t bytes = t.record.ChunkBytes(job->chunk);
  if (t.chunks != nullptr) {
    VARVE_ASSIGN_OR_RETURN(job->raw, t.chunks->Read(job->chunk, &job->gathered));
    if (job->raw.size() == bytes) return Status::Ok();
    return Status::Corruption("chunk " + std::to_string(job->chunk) + " has " +
                              std::to_string(job->raw.size()) + " bytes, expected " +
                              std::to_string(bytes));
  }
  if (t.strides.empty()) {
    job->raw = {t.data + offset, bytes};
  } else {
    const auto element_bytes = static_cast<size_t>(DTypeBits(t.dtype)) / 8;
    job->gathered.resize(bytes);
    Gather(t.shape, t.strides, t.data, offset / element_bytes, bytes / element_bytes, element_bytes,
           job->gathered.data());
    job->raw = job->gathered;
  }
  return Status::Ok();
}

// Both tensors are dense and cut at the same elements; only the last chunk may have more of them in
// the source.
Result<bool> SavePipeline::EqualsRoundedSource(const Job& job, Worker* worker) const {
  const SaveTensor& t = *job.tensor;
  const SaveTensor& from = *t.source;
  if (from.record.ChunkBytes(job.chunk) != 2 * job.raw.size()) return false;
  std::span<const std::byte> source;
  if (from.chunks != nullptr) {
    const auto read = from.chunks->Read(job.chunk, &worker->compared);
    if (read.status().code() == StatusCode::kNotFound) return false;
    if (!read.ok()) return read.status();
    source = *read;
  } else {
    source = {from.data + 2 * t.record.ChunkOffset(job.chunk), 2 * job.raw.size()};
  }
  return source.size() == 2 * job.raw.size() && IsRoundedCopy(t.dtype, source, job.raw);
}

bool SavePipeline::SharesParent(Job* job, Worker* worker) {
  const ChunkRef* parent = job->parent();
  if (parent == nullptr || parent->digest != job->ref().digest ||
      parent->raw_bytes != job->ref().raw_bytes ||
      (verify_sharing_ && !SameBytes(*parent, job->tensor->dtype, job->raw, worker))) {
    return false;
  }
  job->ref() = *parent;
  return true;
}

// Looks the digest up in the index, which is only a hint: the frame it points to must be there and
// must name the same digest. The commit checks once more that it is alive.
bool SavePipeline::SharesIndexed(Job* job, Worker* worker) {
  ChunkRef& ref = job->ref();
  const auto value = store_->database()->Get(Family::kIndex, keys::Index(ref.digest));
  if (!value.ok() || !value->has_value()) return false;
  const std::optional<ChunkAddress> address = DecodeAddress(**value);
  if (!address.has_value()) return false;
  rocksdb::PinnableSlice frame;
  const Result<FrameInfo> info = PinFrame(*address, &frame);
  if (!info.ok() || info->digest != ref.digest || info->raw_bytes != ref.raw_bytes) return false;
  if (!HasReadableCount(*store_->database(), *address)) return false;
  // Its bases must stay as well: a drop may take the last reference of all of them meanwhile.
  std::optional<ChunkAddress> base = info->base;
  for (int depth = 1; base.has_value(); ++depth) {
    rocksdb::PinnableSlice ignored;
    const Result<FrameInfo> base_info = PinFrame(*base, &ignored);
    if (!base_info.ok() || depth == kMaxChain) return false;
    base = base_info->base;
  }
  ChunkRef known = ref;
  known.kind = ChunkKind::kStored;
  known.address = *address;
  known.predictor = info->predictor;
  known.stored_bytes = static_cast<uint32_t>(frame.size());
  if (verify_sharing_ && !SameBytes(known, job->tensor->dtype, job->raw, worker)) return false;
  ref = known;
  return true;
}

Result<FrameInfo> SavePipeline::PinFrame(ChunkAddress address, rocksdb::PinnableSlice* frame) {
  if (!PinForSave(address.birth)) return Status::Aborted("being reclaimed");
  VARVE_RETURN_IF_ERROR(store_->database()->GetFrame(address, frame));
  return ParseFrame(AsBytes({frame->data(), frame->size()}));
}

bool SavePipeline::SameBytes(const ChunkRef& ref, DType dtype, std::span<const std::byte> raw,
                             Worker* worker) {
  worker->compared.resize(raw.size());
  return store_->chunk_reader().Read(ref, dtype, worker->compared, &worker->scratch).ok() &&
         std::memcmp(worker->compared.data(), raw.data(), raw.size()) == 0;
}

bool SavePipeline::PinForSave(uint64_t birth) {
  const std::lock_guard lock(mutex_);
  if (pinned_births_.contains(birth)) return true;
  if (!store_->pins()->PinBirth(birth)) return false;
  pinned_births_.insert(birth);
  return true;
}

void SavePipeline::Place(Job* job) {
  ChunkRef& ref = job->ref();
  if (job->is_rounded_copy) {
    // The source chunk was placed before; Write fills in where.
    if (job->tensor->source->refs[job->chunk].kind == ChunkKind::kStored) {
      ref.kind = ChunkKind::kDerived;
      job->repeated = &job->tensor->source->refs[job->chunk];
      return;
    }
    job->is_rounded_copy = false;
    job->is_new = true;
  }
  if (!job->is_new) return;
  const auto [it, is_first] = placed_.try_emplace(ref.digest, job->tensor, job->chunk);
  if (!is_first) {
    const ChunkRef& earlier = it->second.first->refs[it->second.second];
    if (earlier.raw_bytes == ref.raw_bytes &&
        (!verify_sharing_ || EqualsPlaced(*it->second.first, it->second.second, job->raw))) {
      job->is_new = false;
      job->repeated = &earlier;
      return;
    }
  }
  ref.kind = ChunkKind::kStored;
  ref.address = {birth_, next_ordinal_++};
}

// Compares with a chunk of this save that was placed before, in the caller's memory or read again. A
// strided one is not gathered again for that: it simply is not shared.
bool SavePipeline::EqualsPlaced(const SaveTensor& tensor, uint64_t chunk,
                                std::span<const std::byte> raw) {
  if (tensor.chunks != nullptr) {
    std::vector<std::byte> buffer;
    const auto again = tensor.chunks->Read(chunk, &buffer);
    return again.ok() && again->size() == raw.size() &&
           std::memcmp(again->data(), raw.data(), raw.size()) == 0;
  }
  return tensor.strides.empty() && tensor.record.ChunkBytes(chunk) == raw.size() &&
         std::memcmp(tensor.data + tensor.record.ChunkOffset(chunk), raw.data(), raw.size()) == 0;
}

// Offers the same chunk of the last step as a base; where its chain has grown as long as it may,
// the keyframe at the chain's end, so that chains turn into stars.
void SavePipeline::Encode(Job* job, Worker* worker) {
  if (!job->is_new) return;
  const StoreOptions& options = store_->options();
  EncodeInput input{.raw = job->raw,
                    .dtype = job->tensor->dtype,
                    .digest = job->ref().digest,
                    .codec = codec_,
                    .max_depth = options.max_delta_depth,
                    .max_path_ratio = options.max_path_ratio};
  std::vector<StoredChunk> chain;
  FrameBase base;
  const ChunkRef* parent = job->parent();
  const bool wants_base = codec_ == Codec::kAuto || codec_ == Codec::kMax;
  if (wants_base && parent != nullptr && parent->kind == ChunkKind::kStored &&
      parent->raw_bytes == job->raw.size() && parent->address.birth < birth_) {
    Result<std::vector<StoredChunk>> read =
        store_->chunk_reader().ReadChain(parent->address, &worker->scratch);
    // A base that cannot be read is no reason to lose this save: the chunk becomes a keyframe.
    if (read.ok()) chain = *std::move(read);
  }
  ChunkAddress address = parent != nullptr ? parent->address : ChunkAddress{};
  if (!chain.empty()) {
    size_t pick = 0;
    const StoredChunk& nearest = chain.front();
    const StoredChunk& keyframe = chain.back();
    const double next_path =
        static_cast<double>(nearest.info.path_bytes) + static_cast<double>(nearest.frame_bytes);
    if (chain.size() > 1 &&
        (static_cast<int>(nearest.info.depth) >= options.max_delta_depth ||
         next_path > options.max_path_ratio * static_cast<double>(keyframe.frame_bytes))) {
      pick = chain.size() - 1;
      address = *chain[pick - 1].info.base;
    }
    const StoredChunk& chosen = chain[pick];
    base = {.address = address,
            .digest = chosen.info.digest,
            .raw = chosen.raw,
            .depth = chosen.info.depth,
            .path_bytes = chosen.info.path_bytes};
    input.base = &base;
    job->edge = BaseEdge{.ordinal = job->ref().address.ordinal,
                         .base = address,
                         .base_digest = chosen.info.digest,
                         .base_raw_bytes = chosen.info.raw_bytes,
                         .base_stored_bytes = chosen.frame_bytes,
                         .base_predictor = chosen.info.predictor};
  }
  if (const Status encoded = worker->encoder.Encode(input, &job->frame); !encoded.ok()) {
    Fail(encoded.WithContext("tensor " + job->tensor->name));
  }
}

void SavePipeline::Write(Job* job) {
  ChunkRef& ref = job->ref();
  if (job->repeated != nullptr) {
    const ChunkRef& other = *job->repeated;  // written before: chunks come in order
    ref.address = other.address;
    ref.stored_bytes = other.stored_bytes;
    ref.predictor = other.predictor;
    if (ref.kind != ChunkKind::kDerived) ref.kind = other.kind;
    return;
  }
  if (!job->is_new) return;
  const Result<FrameInfo> info = ParseFrame(job->frame);
  const Result<PlaneUses> planes = ParsePlanes(job->frame);
  Status status = info.ok() ? planes.status() : info.status();
  if (status.ok()) status = files_.Add(ref.address, job->frame);
  if (!status.ok()) return Fail(status.WithContext("tensor " + job->tensor->name));
  ref.predictor = info->predictor;
  ref.stored_bytes = static_cast<uint32_t>(job->frame.size());
  if (info->base.has_value()) frames_.edges.push_back(*job->edge);
  new_chunks_.emplace_back(ref.digest, ref.address.ordinal);
  ++totals_.chunks;
  totals_.raw_bytes += ref.raw_bytes;
  totals_.stored_bytes += ref.stored_bytes;
  totals_.by_codec[static_cast<size_t>(info->predictor)].Add({1, ref.raw_bytes, ref.stored_bytes});
  NotePlanes(ref, *planes);
}

void SavePipeline::NotePlanes(const ChunkRef& ref, const PlaneUses& uses) {
  const uint32_t ordinal = ref.address.ordinal;
  for (size_t c = 0; c < uses.size(); ++c) {
    if (uses[c].num_planes == 0) continue;
    frames_.planes.push_back({.ordinal = ordinal,
                              .coder = static_cast<StreamCoder>(c),
                              .num_planes = uses[c].num_planes,
                              .bytes = uses[c].bytes});
  }
  const CoderTotals planes = frames_.PlanesOf(ordinal, ref.raw_bytes);
  for (size_t c = 0; c < planes.size(); ++c) totals_.by_coder[c].Add(planes[c]);
}

void SavePipeline::Report(const Job& job) {
  if (progress_ == nullptr) return;
  done_bytes_ += job.ref().raw_bytes;
  const auto now = std::chrono::steady_clock::now();
  if (now - reported_ < std::chrono::milliseconds(100)) return;
  reported_ = now;
  progress_(done_bytes_, total_bytes_);
}

}  // namespace varve
