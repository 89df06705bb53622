// SPDX-License-Identifier: Apache-2.0
#include "store/save/save_pipeline.h"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_pipeline.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes_of.h"
#include "base/low_priority.h"
#include "base/startable_threads.h"
#include "base/util.h"
#include "codec/predict/rounded_copy.h"
#include "store/db/cursor.h"
#include "store/db/reference_counts.h"
#include "store/save/base_choice.h"
#include "store/shards/strides.h"

namespace varve::internal {

namespace {

// Memory that one chunk in flight may take, as a multiple of its raw bytes: a gathered copy, its
// frame, RocksDB's copy of that, and slack.
constexpr uint64_t kBytesInFlightPerRawByte = 4;
constexpr uint64_t kTypicalChunkBytes = uint64_t{1} << 20;
// Chunks that go through the stages together: as many as are small next to one of typical size.
// Going through costs as much for a few bytes as for a MiB.
constexpr uint64_t kJobBytes = uint64_t{64} << 10;
constexpr size_t kJobPieces = 256;
// What is kept of tensors that are done for those to come: of as many as a few jobs have, 256 KiB.
constexpr size_t kKeptFlights = 4 * kJobPieces;
constexpr size_t kKeptRefs = 2;

}  // namespace

std::string ParentWarning(std::string_view tensor, const Status& status) {
  return "tensor " + std::string(tensor) +
         " is stored anew, as it cannot be read in the step before: " + status.message();
}

// One chunk in flight, or a tensor that goes through as a whole because its source knows that no
// chunk of it has changed.
struct SavePipeline::Piece {
  SaveTensor* tensor = nullptr;
  uint64_t chunk = 0;
  bool is_whole = false;
  std::span<const std::byte> raw;
  std::vector<std::byte> gathered;
  bool is_new = false;
  bool is_rounded_copy = false;
  const ChunkRef* source = nullptr;  // the chunk that it is the rounded copy of
  std::optional<uint32_t> repeated;  // the ordinal of an equal chunk, placed earlier in this save
  // Set: the piece stands for this tensor of its step, and the others of the step stand beside it.
  std::optional<size_t> in_step;  // ReplayedChunk::kMoment, ...
  std::vector<std::byte> frame;
  std::vector<BaseEdge> bases;  // chunks of earlier saves that the frame may have as sources

  ChunkRef& ref() const { return tensor->flight->refs[chunk]; }
  const ChunkRef* parent() const {
    const auto& refs = tensor->flight->parent_refs;
    return chunk < refs.size() ? &refs[chunk] : nullptr;
  }
};

struct SavePipeline::Job {
  std::vector<Piece> pieces;  // those beyond the number keep their buffers for later
  size_t num_pieces = 0;
  uint64_t bytes = 0;
};

// The lists of parents, which follow one another where a whole state is saved again and again.
class SavePipeline::ParentLists {
 public:
  explicit ParentLists(const StoreImpl* store) : store_(store) {}

  Status Append(const SaveTensor& tensor, size_t index, std::vector<ChunkRef>* refs) {
    // For one alone a search costs less than a cursor.
    if (num_read_++ == 1) cursor_.emplace(store_->database(), Family::kLists);
    const ListAddress list = tensor.parent_lists()[index];
    return store_->AppendList(list, tensor.parent_chunks - index * kChunksPerList,
                              cursor_.has_value() ? &*cursor_ : nullptr, refs);
  }

 private:
  const StoreImpl* const store_;
  std::optional<Cursor> cursor_;
  int num_read_ = 0;
};

// What a thread reuses.
struct SavePipeline::Worker {
  FrameEncoder encoder;
  ChunkScratch scratch;
  std::vector<std::byte> compared;
  ReplayedChunk replayed;  // of the step whose pieces are being encoded
};

SavePipeline::SavePipeline(StoreImpl* store, uint64_t save_id, const SaveOptions& options)
    : store_(store),
      save_id_(save_id),
      verify_sharing_(options.verify_sharing),
      num_threads_(options.num_threads > 0 ? options.num_threads : store->num_threads()),
      low_priority_(options.low_priority),
      compression_(options.compression.value_or(store->options().compression)),
      from_keyframes_(options.from_keyframes),
      progress_(options.progress),
      files_(store->database(), store->incoming(), save_id) {}

SavePipeline::~SavePipeline() {
  for (const uint64_t save_id : pinned_saves_) store_->pins()->UnpinSave(save_id);
}

void SavePipeline::Fail(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = status;
  failed_ = true;
}

Status SavePipeline::Run(std::span<SaveTensor* const> tensors, SaveTensors* keep) {
  tensors_ = tensors;
  keep_ = keep;
  bool has_steps = false;
  for (SaveTensor* const tensor : tensors) {
    total_bytes_ += tensor->Geometry().LogicalBytes();
    has_steps = has_steps || tensor->step() != nullptr;
    ++tensor->num_users;
    if (tensor->master() != nullptr) ++tensor->master()->num_users;
  }
  tbb::enumerable_thread_specific<Worker> workers;
  const uint64_t budget = store_->options().pipeline_budget_bytes;
  // A step has a chunk of each of its tensors in flight.
  const uint64_t chunks = has_steps ? ReplayedStep::kNumTensors : 1;
  const auto in_flight = static_cast<size_t>(
      std::clamp<uint64_t>(budget / (chunks * kBytesInFlightPerRawByte * kTypicalChunkBytes), 2,
                           4 * static_cast<uint64_t>(num_threads_)));
  const auto parallel = tbb::filter_mode::parallel;
  const auto in_order = tbb::filter_mode::serial_in_order;
  const int num_threads = low_priority_ ? num_threads_ : StartableThreads(num_threads_);
  tbb::task_arena arena(num_threads, low_priority_ ? static_cast<unsigned>(num_threads) : 1);
  std::optional<LowPriorityHelpers> helpers;
  if (low_priority_) helpers.emplace(&arena, num_threads_ - 1);
  const auto examine = [&](Job* job) {
    Worker* const worker = &workers.local();
    return ForEachPiece(job, [&](Piece* piece) { Examine(piece, worker); });
  };
  const auto encode = [&](Job* job) { return Encode(job, &workers.local()); };
  arena.execute([&] {
    tbb::parallel_pipeline(
        in_flight,
        tbb::make_filter<void, Job*>(in_order,
                                     [&](tbb::flow_control& control) -> Job* {
                                       if (stop_.is_set()) Fail(stop_.Check());
                                       Job* const job = failed_ ? nullptr : NextJob();
                                       if (job == nullptr) control.stop();
                                       return job;
                                     }) &
            tbb::make_filter<Job*, Job*>(parallel, examine) &
            tbb::make_filter<Job*, Job*>(
                in_order,
                [&](Job* job) { return ForEachPiece(job, [&](Piece* piece) { Place(piece); }); }) &
            tbb::make_filter<Job*, Job*>(parallel, encode) &
            tbb::make_filter<Job*, void>(in_order, [&](Job* job) {
              for (size_t i = 0; i < job->num_pieces; ++i) {
                if (!failed_) Write(&job->pieces[i]);
                Finish(&job->pieces[i]);
              }
              const std::lock_guard lock(mutex_);
              idle_.push_back(job);
            }));
  });
  placed_ = {};
  if (failed_) return error_;
  return files_.Finish();
}

template <typename Stage>
SavePipeline::Job* SavePipeline::ForEachPiece(Job* job, const Stage& stage) {
  for (size_t i = 0; i < job->num_pieces && !failed_; ++i) stage(&job->pieces[i]);
  return job;
}

SavePipeline::Job* SavePipeline::NextJob() {
  Job* const job = TakeIdleJob();
  job->num_pieces = 0;
  job->bytes = 0;
  ParentLists lists(store_);
  while (job->num_pieces < kJobPieces && AddNextPieces(job, &lists)) {
  }
  return job->num_pieces > 0 ? job : nullptr;
}

SavePipeline::Job* SavePipeline::TakeIdleJob() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Job* const job = idle_.back();
      idle_.pop_back();
      return job;
    }
  }
  return jobs_.emplace_back(std::make_unique<Job>()).get();
}

// Its source knows that, and which chunks the store has of it.
bool SavePipeline::IsUnchanged(const SaveTensor& tensor) const {
  return !verify_sharing_ && tensor.are_parents_known && tensor.chunks->AreUnchanged();
}

// False: there are no more, or the next is too large to go with others. So only the first pieces of
// a job ever have large buffers.
bool SavePipeline::AddNextPieces(Job* job, ParentLists* lists) {
  while (next_tensor_ < tensors_.size() &&
         next_chunk_ == tensors_[next_tensor_]->Geometry().NumChunks()) {
    if (next_chunk_ == 0)
      tensors_[next_tensor_]->content = ComputeDigest(store_->digest_seed(), {});
    ++next_tensor_;
    next_chunk_ = 0;
  }
  if (next_tensor_ == tensors_.size()) return false;
  SaveTensor* const tensor = tensors_[next_tensor_];
  ReplayedStep* const step = tensor->step();
  if (step != nullptr && tensor == step->tensors[0] && next_chunk_ == 0) {
    const auto is_unchanged = [this](const SaveTensor* each) { return IsUnchanged(*each); };
    step->is_together = std::ranges::none_of(step->tensors, is_unchanged);
  }
  const bool is_step = step != nullptr && step->is_together;
  const bool is_whole = !is_step && next_chunk_ == 0 && IsUnchanged(*tensor);
  uint64_t bytes = is_whole ? 0 : tensor->Geometry().ChunkBytes(next_chunk_);
  if (is_step) bytes *= ReplayedStep::kNumTensors;
  if (job->num_pieces > 0 && job->bytes + bytes > kJobBytes) return false;
  job->bytes += bytes;
  if (!is_step) {
    AddPiece(tensor, next_chunk_, job, is_whole ? nullptr : lists);
    next_chunk_ = is_whole ? tensor->Geometry().NumChunks() : next_chunk_ + 1;
    return true;
  }
  for (size_t i = 0; i < ReplayedStep::kNumTensors; ++i) {
    AddPiece(step->tensors[i], next_chunk_, job, lists);
    job->pieces[job->num_pieces - 1].in_step = i;
  }
  if (++next_chunk_ == tensor->Geometry().NumChunks()) {
    next_tensor_ += ReplayedStep::kNumTensors;
    next_chunk_ = 0;
  }
  return true;
}

// Without `lists` it stands for the whole tensor.
void SavePipeline::AddPiece(SaveTensor* tensor, uint64_t chunk, Job* job, ParentLists* lists) {
  if (chunk == 0 && lists != nullptr) LoadParent(tensor, lists);
  if (job->num_pieces == job->pieces.size()) job->pieces.emplace_back();
  Piece* const piece = &job->pieces[job->num_pieces++];
  piece->tensor = tensor;
  piece->is_whole = lists == nullptr;
  piece->chunk = chunk;
  piece->is_new = piece->is_rounded_copy = false;
  piece->source = nullptr;
  piece->repeated.reset();
  piece->in_step.reset();
  piece->bases.clear();
}

// A last step that cannot be read is no reason to lose this save: the tensor is stored as if it
// were new.
void SavePipeline::LoadParent(SaveTensor* tensor, ParentLists* lists) {
  tensor->flight = TakeFlight();
  tensor->flight->refs.resize(tensor->Geometry().NumChunks());
  std::vector<ChunkRef>* const parent_refs = &tensor->flight->parent_refs;
  for (size_t i = 0; i < tensor->parent_lists().size(); ++i) {
    const Status read = lists->Append(*tensor, i, parent_refs);
    if (read.ok()) continue;
    warnings_.push_back(ParentWarning(tensor->name, read));
    tensor->parent_chunks = 0;
    parent_refs->clear();
  }
}

std::unique_ptr<SaveTensor::Flight> SavePipeline::TakeFlight() {
  const std::lock_guard lock(mutex_);
  if (flights_.empty()) return std::make_unique<SaveTensor::Flight>();
  auto flight = std::move(flights_.back());
  flights_.pop_back();
  return flight;
}

void SavePipeline::Examine(Piece* piece, Worker* worker) {
  if (piece->is_whole) return;
  const SaveTensor& t = *piece->tensor;
  ChunkRef& ref = piece->ref();
  ref.raw_bytes = static_cast<uint32_t>(t.Geometry().ChunkBytes(piece->chunk));
  if (SharesKnown(piece, worker)) return;
  if (const Status fetched = FetchRaw(piece); !fetched.ok()) {
    return Fail(fetched.WithContext("tensor " + std::string(t.name)));
  }
  ref.digest = ComputeDigest(store_->digest_seed(), piece->raw);
  if (t.chunks != nullptr) {
    if (const Status learned = t.chunks->Learn(piece->chunk, ref.digest); !learned.ok()) {
      return Fail(learned.WithContext("tensor " + std::string(t.name)));
    }
  }
  if (SharesParent(piece, worker)) return;
  if (piece->raw.size() <= kMaxInlineBytes) {
    ref.kind = ChunkKind::kInline;
    ref.literal = AsString(piece->raw);
    return;
  }
  const auto element_bytes = std::clamp<size_t>(BytesOf(t.dtype, 1), 1, 8);
  if (IsConstant(piece->raw, element_bytes)) {
    ref.kind = ChunkKind::kConstant;
    ref.literal = AsString(piece->raw.first(element_bytes));
    return;
  }
  if (t.master() != nullptr) {
    const Result<bool> rounded = EqualsRoundedSource(*piece, worker);
    if (!rounded.ok())
      return Fail(rounded.status().WithContext("tensor " + std::string(t.derived_from())));
    piece->is_rounded_copy = *rounded;
    if (piece->is_rounded_copy) return;
  }
  piece->is_new = !SharesIndexed(piece, worker);
}

// A chunk whose digest its source knows need not be read when the store has it.
bool SavePipeline::SharesKnown(Piece* piece, Worker* worker) {
  const SaveTensor& t = *piece->tensor;
  if (t.chunks == nullptr || verify_sharing_) return false;
  const std::optional<Digest> digest = t.chunks->KnownDigest(piece->chunk);
  if (!digest.has_value()) return false;
  piece->ref().digest = *digest;
  piece->raw = {};
  return SharesParent(piece, worker) || SharesIndexed(piece, worker);
}

Status SavePipeline::FetchRaw(Piece* piece) const {
  const SaveTensor& t = *piece->tensor;
  const ChunkGeometry geometry = t.Geometry();
  const uint64_t bytes = geometry.ChunkBytes(piece->chunk);
  if (t.chunks != nullptr) {
    VARVE_ASSIGN_OR_RETURN(piece->raw, t.chunks->Read(piece->chunk, &piece->gathered));
    if (piece->raw.size() == bytes) return Status::Ok();
    return Status::Corruption("chunk " + std::to_string(piece->chunk) + " has " +
                              std::to_string(piece->raw.size()) + " bytes, expected " +
                              std::to_string(bytes));
  }
  piece->raw =
      DenseBytes({.dtype = t.dtype, .shape = t.shape, .data = t.data, .strides = t.strides()},
                 geometry.ChunkOffset(piece->chunk), bytes, &piece->gathered);
  return Status::Ok();
}

// Both tensors are dense and cut at the same elements. Only the last chunk of the master may have
// more elements.
Result<bool> SavePipeline::EqualsRoundedSource(const Piece& piece, Worker* worker) const {
  const SaveTensor& t = *piece.tensor;
  const SaveTensor& from = *t.master();
  if (from.Geometry().ChunkBytes(piece.chunk) != 2 * piece.raw.size()) return false;
  std::span<const std::byte> source;
  if (from.chunks != nullptr) {
    const auto read = from.chunks->Read(piece.chunk, &worker->compared);
    // Without its bytes, or with damaged ones, the piece is stored by itself.
    const StatusCode code = read.status().code();
    if (code == StatusCode::kNotFound || code == StatusCode::kCorruption) return false;
    if (!read.ok()) return read.status();
    source = *read;
  } else {
    source = {from.bytes() + 2 * t.Geometry().ChunkOffset(piece.chunk), 2 * piece.raw.size()};
  }
  return source.size() == 2 * piece.raw.size() && IsRoundedCopy(t.dtype, source, piece.raw);
}

bool SavePipeline::SharesParent(Piece* piece, Worker* worker) {
  const ChunkRef* parent = piece->parent();
  if (parent == nullptr || parent->digest != piece->ref().digest ||
      parent->raw_bytes != piece->ref().raw_bytes ||
      (verify_sharing_ && !SameBytes(*parent, piece->tensor->dtype, piece->raw, worker))) {
    return false;
  }
  piece->ref() = *parent;
  return true;
}

// Looks the digest up in the index, which is only a hint: the frame it points to must be there and
// must name the same digest. The commit checks once more that it is alive.
bool SavePipeline::SharesIndexed(Piece* piece, Worker* worker) {
  ChunkRef& ref = piece->ref();
  const auto value = store_->database()->Get(Family::kIndex, keys::Index(ref.digest));
  if (!value.ok() || !value->has_value()) return false;
  const std::optional<ChunkAddress> address = DecodeAddress(**value);
  if (!address.has_value()) return false;
  rocksdb::PinnableSlice frame;
  const Result<FrameInfo> info = PinFrame(*address, &frame);
  if (!info.ok() || info->digest != ref.digest || info->raw_bytes != ref.raw_bytes) return false;
  if (!HasReadableCount(*store_->database(), *address)) return false;
  if (!PinSources(*info)) return false;
  ChunkRef known = ref;
  known.kind = ChunkKind::kStored;
  known.address = *address;
  known.predictor = info->predictor;
  known.stored_bytes = static_cast<uint32_t>(frame.size());
  if (verify_sharing_ && !SameBytes(known, piece->tensor->dtype, piece->raw, worker)) return false;
  ref = known;
  return true;
}

// The sources of a frame that is shared must stay as well: a drop may take the last reference of
// all of them meanwhile.
bool SavePipeline::PinSources(const FrameInfo& info) {
  std::set<ChunkAddress> left;
  const auto add = [&left](const FrameInfo& of) {
    for (const FrameSource& source : of.sources()) left.insert(source.address);
  };
  add(info);
  for (size_t n = 1; !left.empty(); ++n) {
    const ChunkAddress address = *left.rbegin();  // all that need it have been looked at
    left.erase(address);
    rocksdb::PinnableSlice ignored;
    const Result<FrameInfo> source = PinFrame(address, &ignored);
    if (!source.ok() || n == kMaxSources * size_t{kMaxChain}) return false;
    add(*source);
  }
  return true;
}

Result<FrameInfo> SavePipeline::PinFrame(ChunkAddress address, rocksdb::PinnableSlice* frame) {
  if (!PinForSave(address.save_id)) return Status::Aborted("being reclaimed");
  VARVE_RETURN_IF_ERROR(store_->database()->GetFrame(address, frame));
  return ParseFrame(AsBytes({frame->data(), frame->size()}));
}

bool SavePipeline::SameBytes(const ChunkRef& ref, DType dtype, std::span<const std::byte> raw,
                             Worker* worker) {
  worker->compared.resize(raw.size());
  return store_->chunk_reader().Read(ref, dtype, worker->compared, &worker->scratch).ok() &&
         std::memcmp(worker->compared.data(), raw.data(), raw.size()) == 0;
}

bool SavePipeline::PinForSave(uint64_t save_id) {
  const std::lock_guard lock(mutex_);
  if (pinned_saves_.contains(save_id)) return true;
  std::set<uint64_t> pinned{save_id};  // before it is pinned, as there may be no memory
  if (!store_->pins()->PinSave(save_id)) return false;
  pinned_saves_.merge(pinned);
  return true;
}

void SavePipeline::Place(Piece* piece) {
  if (piece->is_whole) return;
  ChunkRef& ref = piece->ref();
  if (piece->is_rounded_copy) {
    // The source chunk was placed before. Write fills in where. A source that went through as a
    // whole has no references.
    const SaveTensor::Flight* const source = piece->tensor->master()->flight.get();
    if (source != nullptr && source->refs[piece->chunk].kind == ChunkKind::kStored) {
      ref.kind = ChunkKind::kDerived;
      piece->source = &source->refs[piece->chunk];
      return;
    }
    piece->is_rounded_copy = false;
    piece->is_new = true;
  }
  if (!piece->is_new) return;
  const Placed placed{.ordinal = next_ordinal_,
                      .raw_bytes = ref.raw_bytes,
                      .tensor = piece->tensor,
                      .chunk = piece->chunk};
  const auto [it, is_first] = placed_.try_emplace(ref.digest, placed);
  if (!is_first) {
    const Placed& earlier = it->second;
    if (earlier.raw_bytes == ref.raw_bytes &&
        (!verify_sharing_ || EqualsPlaced(*earlier.tensor, earlier.chunk, piece->raw))) {
      piece->is_new = false;
      piece->repeated = earlier.ordinal;
      return;
    }
  }
  ref.kind = ChunkKind::kStored;
  ref.address = {save_id_, next_ordinal_++};
}

// Compares with a chunk of this save that was placed before, in the caller's memory or read again.
// A strided one is not gathered again for that: it simply is not shared.
bool SavePipeline::EqualsPlaced(const SaveTensor& tensor, uint64_t chunk,
                                std::span<const std::byte> raw) {
  if (tensor.chunks != nullptr) {
    std::vector<std::byte> buffer;
    const auto again = tensor.chunks->Read(chunk, &buffer);
    return again.ok() && again->size() == raw.size() &&
           std::memcmp(again->data(), raw.data(), raw.size()) == 0;
  }
  return tensor.strides().empty() && tensor.Geometry().ChunkBytes(chunk) == raw.size() &&
         std::memcmp(tensor.bytes() + tensor.Geometry().ChunkOffset(chunk), raw.data(),
                     raw.size()) == 0;
}

SavePipeline::Job* SavePipeline::Encode(Job* job, Worker* worker) {
  for (size_t i = 0; i < job->num_pieces && !failed_; ++i) {
    Piece* const piece = &job->pieces[i];
    if (piece->in_step == ReplayedChunk::kMoment) {
      ReadReplayed(std::span(job->pieces).subspan(i, ReplayedStep::kNumTensors), worker);
    }
    if (piece->is_new) EncodePiece(piece, worker);
    if (piece->in_step == ReplayedChunk::kWeight) worker->replayed.Clear();
  }
  return job;
}

bool SavePipeline::MayUseParent(const Piece& piece) const {
  const ChunkRef* const parent = piece.parent();
  return wants_bases() && parent != nullptr && parent->kind == ChunkKind::kStored &&
         parent->raw_bytes == piece.ref().raw_bytes && parent->address.save_id < save_id_;
}

// What cannot be read is no reason to lose this save: then there is no replay.
void SavePipeline::ReadReplayed(std::span<Piece> pieces, Worker* worker) {
  worker->replayed.Clear();
  ReplayedChunk::Parents parents;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool is_here = pieces[i].raw.size() == pieces[i].ref().raw_bytes;
    if (!is_here || !MayUseParent(pieces[i])) return;
    parents[i] = pieces[i].parent();
    worker->replayed.SetAfter(i, pieces[i].raw);
  }
  if (std::ranges::none_of(pieces, &Piece::is_new)) return;
  worker->replayed
      .ReadBefore(store_->chunk_reader(), pieces[0].tensor->step()->step, parents,
                  store_->options(), &worker->scratch)
      .IgnoreError();
}

void SavePipeline::EncodePiece(Piece* piece, Worker* worker) {
  const StoreOptions& options = store_->options();
  const EncodeInput input{.raw = piece->raw,
                          .dtype = piece->tensor->dtype,
                          .digest = piece->ref().digest,
                          .compression = compression_,
                          .entropy = options.entropy,
                          .max_depth = options.max_delta_depth,
                          .max_path_ratio = options.max_path_ratio};
  const bool may_replay = piece->in_step.has_value() && worker->replayed.has_before();
  Result<bool> is_done = may_replay ? EncodeInStep(input, piece, worker) : Result<bool>(false);
  Status status = is_done.status();
  if (is_done.ok() && !*is_done) status = EncodeAlone(input, piece, worker);
  if (status.ok() && may_replay) {
    status = worker->replayed.SetFrame(*piece->in_step, piece->ref().address, piece->frame);
  }
  if (!status.ok()) Fail(status.WithContext("tensor " + std::string(piece->tensor->name)));
}

// False: neither the step nor the chunk before it predicts the chunk well, and another base may.
Result<bool> SavePipeline::EncodeInStep(EncodeInput input, Piece* piece, Worker* worker) {
  const std::optional<ReplayInput> replay = worker->replayed.Replay(*piece->in_step);
  if (replay.has_value()) input.replay = &*replay;
  input.base = &worker->replayed.before(*piece->in_step);
  input.max_depth = store_->options().max_replay_depth;
  const float beta1 = worker->replayed.recipe().beta1;
  if (*piece->in_step == ReplayedChunk::kMoment && std::isfinite(beta1) && beta1 > 0) {
    // Without its gradient, what is left of the moment before is the best prediction. All replays
    // that come need the moment, however long its chain is beside one keyframe.
    input.scale = beta1;
    input.max_path_ratio = std::numeric_limits<double>::infinity();
  }
  VARVE_RETURN_IF_ERROR(worker->encoder.Encode(input, &piece->frame));
  VARVE_ASSIGN_OR_RETURN(const FrameInfo info, ParseFrame(piece->frame));
  if (info.num_sources == 0) {
    return !input.scale.has_value() && !worker->replayed.is_long(*piece->in_step);
  }
  for (const StoredChunk& chunk : worker->replayed.stored()) {
    piece->bases.push_back(EdgeTo(chunk, piece->ref().address.ordinal));
  }
  return true;
}

// A base that cannot be read is no reason to lose this save: the chunk becomes a keyframe.
Status SavePipeline::EncodeAlone(EncodeInput input, Piece* piece, Worker* worker) {
  std::optional<StoredChunk> read;
  FrameBase base;
  if (MayUseParent(*piece)) {
    const bool begins_chain =
        from_keyframes_ || (piece->in_step.has_value() && worker->replayed.is_too_deep());
    Result<StoredChunk> found = ReadBase(store_->chunk_reader(), store_->options(),
                                         *piece->parent(), begins_chain, &worker->scratch);
    if (found.ok()) read = *std::move(found);
  }
  if (read.has_value()) {
    base = BaseOf(*read);
    input.base = &base;
    piece->bases.push_back(EdgeTo(*read, piece->ref().address.ordinal));
  }
  return worker->encoder.Encode(input, &piece->frame);
}

// Sources within this save were written before: chunks come in order.
BaseEdge SavePipeline::EdgeOf(const Piece& piece, ChunkAddress source) const {
  if (source.save_id == save_id_) {
    const NewChunk& chunk = new_chunks_.at(source.ordinal);
    return {.ordinal = piece.ref().address.ordinal,
            .base = source,
            .base_digest = chunk.digest,
            .base_raw_bytes = chunk.raw_bytes,
            .base_stored_bytes = chunk.stored_bytes,
            .base_predictor = chunk.predictor};
  }
  return *std::ranges::find(piece.bases, source, &BaseEdge::base);
}

void SavePipeline::Write(Piece* piece) {
  if (piece->is_whole) return;
  ChunkRef& ref = piece->ref();
  // What these name was written before: chunks come in order.
  if (piece->source != nullptr) {
    ref.address = piece->source->address;
    ref.stored_bytes = piece->source->stored_bytes;
    ref.predictor = piece->source->predictor;
    return;
  }
  if (piece->repeated.has_value()) {
    const NewChunk& other = new_chunks_[*piece->repeated];
    ref.kind = ChunkKind::kStored;
    ref.address = {save_id_, *piece->repeated};
    ref.stored_bytes = other.stored_bytes;
    ref.predictor = other.predictor;
    return;
  }
  if (!piece->is_new) return;
  const Result<FrameInfo> info = ParseFrame(piece->frame);
  const Result<PlaneUses> planes = ParsePlanes(piece->frame);
  Status status = info.ok() ? planes.status() : info.status();
  if (status.ok()) status = files_.Add(ref.address, piece->frame);
  if (!status.ok()) return Fail(status.WithContext("tensor " + std::string(piece->tensor->name)));
  ref.predictor = info->predictor;
  ref.stored_bytes = static_cast<uint32_t>(piece->frame.size());
  for (const FrameSource& source : info->sources()) {
    frames_.edges.push_back(EdgeOf(*piece, source.address));
  }
  new_chunks_.push_back({.digest = ref.digest,
                         .raw_bytes = ref.raw_bytes,
                         .stored_bytes = ref.stored_bytes,
                         .predictor = ref.predictor});
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

// The save needs the chunk no more, nor the tensor if it was its last.
void SavePipeline::Finish(Piece* piece) {
  SaveTensor* const tensor = piece->tensor;
  const uint64_t end = piece->is_whole ? tensor->Geometry().NumChunks() : piece->chunk + 1;
  for (uint64_t i = piece->chunk; tensor->chunks != nullptr && i < end; ++i)
    tensor->chunks->Done(i);
  Report(*piece);
  if (failed_ || end < tensor->Geometry().NumChunks()) return;
  digests_.clear();
  if (piece->is_whole) {
    for (uint64_t i = 0; i < end; ++i) {
      keys::AppendIndex(tensor->chunks->KnownDigest(i).value_or(Digest{}), &digests_);
    }
    tensor->first_list = tensor->first_parent_list;
  } else {
    for (const ChunkRef& ref : tensor->flight->refs) keys::AppendIndex(ref.digest, &digests_);
    MakeLists(tensor);
  }
  tensor->content = ComputeDigest(store_->digest_seed(), AsBytes(digests_));
  LetGo(tensor);
  if (tensor->master() != nullptr) LetGo(tensor->master());
}

void SavePipeline::LetGo(SaveTensor* tensor) {
  if (--tensor->num_users > 0 || tensor->flight == nullptr) return;
  std::unique_ptr<SaveTensor::Flight> flight = std::move(tensor->flight);
  if (flight->refs.capacity() + flight->parent_refs.capacity() > kKeptRefs) return;
  flight->refs.clear();
  flight->parent_refs.clear();
  const std::lock_guard lock(mutex_);
  if (flights_.size() < kKeptFlights) flights_.push_back(std::move(flight));
}

// Cuts a tensor's references into lists. If a list equals the parent's in every entry, the
// parent's list is named. Other lists are written under this save.
void SavePipeline::MakeLists(SaveTensor* tensor) {
  const auto& refs = tensor->flight->refs;
  const auto& old = tensor->flight->parent_refs;
  const auto part = [](const std::vector<ChunkRef>& all, size_t first) {
    const std::span<const ChunkRef> rest = std::span(all).subspan(std::min(first, all.size()));
    return rest.first(std::min<size_t>(kChunksPerList, rest.size()));
  };
  lists_.clear();
  for (size_t first = 0; first < refs.size(); first += kChunksPerList) {
    const bool is_shared = std::ranges::equal(part(refs, first), part(old, first));
    lists_.push_back(is_shared ? tensor->parent_lists()[first / kChunksPerList]
                               : AddList(part(refs, first)));
  }
  const bool are_parents = std::ranges::equal(lists_, tensor->parent_lists());
  tensor->first_list = are_parents ? tensor->first_parent_list : keep_->Keep(lists_).data();
}

ListAddress SavePipeline::AddList(std::span<const ChunkRef> refs) {
  const ListAddress list{save_id_, static_cast<uint32_t>(new_lists_.size())};
  new_lists_.Add(EncodeChunkList({refs.begin(), refs.end()}));
  for (const ChunkRef& ref : refs) {
    if (!ref.NamesFrame()) continue;
    if (ref.address.save_id == save_id_) {
      ++new_chunks_[ref.address.ordinal].num_refs;
    } else {
      old_refs_.push_back(ref);
    }
  }
  return list;
}

void SavePipeline::Report(const Piece& piece) {
  if (progress_ == nullptr) return;
  const ChunkGeometry geometry = piece.tensor->Geometry();
  done_bytes_ += piece.is_whole ? geometry.LogicalBytes() : geometry.ChunkBytes(piece.chunk);
  const auto now = std::chrono::steady_clock::now();
  if (now - reported_ < std::chrono::milliseconds(100)) return;
  reported_ = now;
  progress_(done_bytes_, total_bytes_);
}

}  // namespace varve::internal
