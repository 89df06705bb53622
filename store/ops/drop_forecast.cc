// SPDX-License-Identifier: Apache-2.0
#include "store/ops/drop_forecast.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "store/db/rocksdb_options.h"
#include "store/db/store_impl.h"
#include "store/ops/reclaim_plan.h"

namespace varve::internal {

namespace {

// The counts and the record of one save after the other. It keeps the last block of each, which is
// enough for falling addresses. Damage is noted and counts as in a drop.
class SaveCursor {
 public:
  SaveCursor(const Database* database, Counted kind, DamageNotes* damage)
      : database_(database), kind_(kind), damage_(damage) {}

  // True when so many releases are all references to a list or a chunk.
  Result<bool> Dies(const ReleaseQueue::Released& released) {
    const Release& what = released.what;
    VARVE_RETURN_IF_ERROR(MoveTo(what.save_id));
    VARVE_ASSIGN_OR_RETURN(const std::optional<uint32_t> known, Count(what));
    if (!known.has_value()) return false;
    const bool is_dead = *known == 0 || (kind_ == Counted::kChunk && (*known & kDeadBit) != 0);
    if (is_dead || *known < released.times) {
      damage_->Add(Name(what) + " is released more often than it is named");
    }
    if (is_dead || *known > released.times) return false;
    TakeFromTotals(what);
    return true;
  }

  // Returns the edges of a chunk of the last save that Dies was asked about.
  Result<std::span<const BaseEdge>> FindEdges(const Release& chunk) {
    const uint32_t number = chunk.number / kCountsPerBlock;
    if (frames_block_ != number) {
      VARVE_ASSIGN_OR_RETURN(const auto value,
                             database_->Get(Family::kBirths, keys::SaveBlock(save_id_, number)));
      frames_ = value.has_value() ? DecodeSaveBlock(*value) : SaveBlock{};
      frames_block_ = number;
    }
    if (!frames_.ok()) {  // its sources stay
      damage_->AddUncounted(frames_.status().WithContext("save " + std::to_string(save_id_)));
      return std::span<const BaseEdge>();
    }
    const std::span<const BaseEdge> edges = frames_->EdgesOf(chunk.number);
    for (const BaseEdge& edge : edges) {
      if (edge.base < ChunkAddress{chunk.save_id, chunk.number}) continue;
      damage_->AddUncounted(
          Status::Corruption(Name(chunk) + ": its source has no smaller address"));
      return std::span<const BaseEdge>();
    }
    return edges;
  }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  std::string Name(const Release& what) const { return Describe(what.save_id, kind_, what.number); }

  Status MoveTo(uint64_t save_id) {
    if (save_id == save_id_ && has_save_id_) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kBirths, keys::Save(save_id)));
    record_ = DecodeSave(*database_, save_id, value);
    if (record_.ok()) {
      left_ = record_->Live();
      lists_left_ = record_->live_lists;
    } else {
      damage_->AddUncounted(record_.status());
    }
    save_id_ = save_id;
    has_save_id_ = true;
    counts_block_ = frames_block_ = kNone;
    return Status::Ok();
  }

  // Returns nullopt when the count is unknown. That has then been noted.
  Result<std::optional<uint32_t>> Count(const Release& what) {
    if (!record_.ok()) return std::optional<uint32_t>();
    const uint32_t stored = kind_ == Counted::kChunk ? record_->chunks : record_->lists;
    if (what.number >= stored) {
      damage_->AddUncounted(
          Status::Corruption(Name(what) + ": its save stored only " + std::to_string(stored)));
      return std::optional<uint32_t>();
    }
    const uint32_t block = what.number / kCountsPerBlock;
    if (counts_block_ != block) {
      VARVE_ASSIGN_OR_RETURN(const auto value,
                             database_->Get(Family::kCounts, keys::Counts(save_id_, kind_, block)));
      counts_ = value.has_value() ? DecodeCounts(*value) : std::vector<uint32_t>();
      counts_block_ = block;
    }
    if (!counts_.ok()) {
      damage_->AddUncounted(counts_.status().WithContext("save " + std::to_string(save_id_)));
      return std::optional<uint32_t>();
    }
    const uint32_t i = what.number % kCountsPerBlock;
    return std::optional(i < counts_->size() ? (*counts_)[i] : 1);  // docs/format.md, "counts"
  }

  void TakeFromTotals(const Release& what) {
    const std::string save_id = "save " + std::to_string(save_id_);
    if (kind_ == Counted::kChunk) {
      if (left_.Take({1, 0, what.bytes})) return;
      damage_->AddUncounted(
          Status::Corruption(save_id + " has fewer live bytes than " + Name(what)));
    } else if (lists_left_ > 0) {
      --lists_left_;
    } else {
      damage_->Add(save_id + " has no live list left");
    }
  }

  const Database* const database_;
  const Counted kind_;
  DamageNotes* const damage_;
  bool has_save_id_ = false;
  uint64_t save_id_ = 0;
  Result<SaveRecord> record_ = SaveRecord{};
  CodecTotals left_;  // live chunks that have not died yet
  uint64_t lists_left_ = 0;
  uint64_t counts_block_ = kNone;
  Result<std::vector<uint32_t>> counts_ = std::vector<uint32_t>();
  uint64_t frames_block_ = kNone;
  Result<SaveBlock> frames_ = SaveBlock{};
};

}  // namespace

DropForecaster::DropForecaster(const Database* database, std::vector<ChunkFile> files,
                               size_t max_in_memory)
    : database_(database),
      files_(std::move(files)),
      deaths_(files_.size()),
      file_(files_.size()),
      lists_(max_in_memory),
      chunks_(max_in_memory) {}

Status DropForecaster::DropStep(StepKey step) {
  return database_->Scan(Family::kTensors, keys::Step(step),
                         [&](std::string_view key, std::string_view value) -> Status {
                           const Result<TensorRecord> record = DecodeTensorRecord(value);
                           if (!record.ok()) {
                             damage_.Add(DescribeDamagedTensor(key, record.status()));
                             return Status::Ok();
                           }
                           for (const ListAddress& list : record->lists) {
                             VARVE_RETURN_IF_ERROR(lists_.Push({list.save_id, list.number, 0}));
                           }
                           return Status::Ok();
                         });
}

Status DropForecaster::Follow() {
  VARVE_RETURN_IF_ERROR(FollowLists());
  return FollowChunks();
}

Status DropForecaster::FollowLists() {
  SaveCursor cursor(database_, Counted::kList, &damage_);
  while (true) {
    VARVE_ASSIGN_OR_RETURN(const auto released, lists_.Pop());
    if (!released.has_value()) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(const bool dies, cursor.Dies(*released));
    if (!dies) continue;
    VARVE_RETURN_IF_ERROR(ReleaseChunksOf({released->what.save_id, released->what.number}));
  }
}

Status DropForecaster::ReleaseChunksOf(ListAddress list) {
  VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kLists, keys::List(list)));
  const Result<std::vector<ChunkRef>> refs =
      value.has_value() ? DecodeChunkList(*value) : Status::Corruption("is missing");
  if (!refs.ok()) {  // what it named stays
    damage_.Add(Describe(list.save_id, Counted::kList, list.number) + ": " +
                std::string(refs.status().message()));
    return Status::Ok();
  }
  for (const ChunkRef& ref : *refs) {
    if (!ref.NamesFrame()) continue;
    VARVE_RETURN_IF_ERROR(
        chunks_.Push({ref.address.save_id, ref.address.ordinal, ref.stored_bytes}));
  }
  return Status::Ok();
}

Status DropForecaster::FollowChunks() {
  SaveCursor cursor(database_, Counted::kChunk, &damage_);
  while (true) {
    VARVE_ASSIGN_OR_RETURN(const auto released, chunks_.Pop());
    if (!released.has_value()) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(const bool dies, cursor.Dies(*released));
    if (!dies) continue;
    NoteDeath(released->what);
    VARVE_ASSIGN_OR_RETURN(const std::span<const BaseEdge> edges, cursor.FindEdges(released->what));
    for (const BaseEdge& edge : edges) {
      VARVE_RETURN_IF_ERROR(
          chunks_.Push({edge.base.save_id, edge.base.ordinal, edge.base_stored_bytes}));
    }
  }
}

void DropForecaster::NoteDeath(const Release& chunk) {
  dead_bytes_ += chunk.bytes;
  const ChunkAddress address{chunk.save_id, chunk.number};
  while (file_ > 0 && address < files_[file_ - 1].first) --file_;
  if (file_ == 0 || files_[file_ - 1].last < address) return;  // no existing file holds it
  ++deaths_[file_ - 1].dead_chunks;
  deaths_[file_ - 1].dead_bytes += chunk.bytes;
}

Result<DropForecast> DropForecaster::Forecast() {
  VARVE_ASSIGN_OR_RETURN(const Database::Use held, database_->BeginRead());
  const std::unique_ptr<rocksdb::Iterator> saves(
      held.rocksdb()->NewIterator(rocksdb::ReadOptions(), held.handle(Family::kBirths)));
  std::vector<ChunkFile> files;
  for (size_t i = 0; i < files_.size(); ++i) {
    ChunkFileUse use;
    VARVE_RETURN_IF_ERROR(MeasureFile(files_[i], saves.get(), &use));
    if (use.is_unknown) continue;
    use.live_chunks -= std::min(use.live_chunks, deaths_[i].dead_chunks);
    use.dead_chunks += deaths_[i].dead_chunks;
    use.dead_bytes += deaths_[i].dead_bytes;
    ChunkFile& file = files.emplace_back(files_[i]);
    file.frames = use.live_chunks + use.dead_chunks;
    file.live_frames = use.live_chunks;
    file.live_bytes = file.bytes - std::min(file.bytes, use.dead_bytes);
    file.frame_bytes = file.live_bytes + use.dead_bytes;
  }
  DropForecast forecast = ForecastReclaim(std::move(files));
  forecast.warnings = damage_.all();
  return forecast;
}

// Counts the frames of `file` as they are before the drop, by the records of its saves.
Status DropForecaster::MeasureFile(const ChunkFile& file, rocksdb::Iterator* saves,
                                   ChunkFileUse* use) {
  for (const uint64_t save_id : {file.first.save_id, file.last.save_id}) {
    VARVE_ASSIGN_OR_RETURN(const auto record, database_->Get(Family::kBirths, keys::Save(save_id)));
    use->is_unknown |= !record.has_value();
  }
  for (saves->Seek(keys::Save(file.first.save_id)); saves->Valid();) {
    const auto parsed = keys::ParseSave({saves->key().data(), saves->key().size()});
    if (!parsed.has_value()) return Status::Corruption("a malformed key in family births");
    const uint64_t save_id = parsed->save_id;
    if (save_id > file.last.save_id) break;
    const Result<SaveRecord> record =
        parsed->block.has_value()
            ? Status::Corruption("is missing")
            : DecodeSaveRecord({saves->value().data(), saves->value().size()});
    if (!record.ok()) {
      use->is_unknown = true;
      return Status::Ok();
    }
    const uint32_t begin = save_id == file.first.save_id ? file.first.ordinal : 0;
    const uint32_t end = save_id == file.last.save_id
                             ? std::min<uint32_t>(record->chunks, file.last.ordinal + 1)
                             : record->chunks;
    if (begin < end) VARVE_RETURN_IF_ERROR(MeasureSave(save_id, *record, begin, end, use));
    if (save_id == UINT64_MAX) break;
    saves->Seek(keys::Save(save_id + 1));  // past its blocks, which are long
  }
  return FromRocksDb(saves->status(), "reading saves");
}

Status DropForecaster::MeasureSave(uint64_t save_id, const SaveRecord& record, uint32_t begin,
                                   uint32_t end, ChunkFileUse* use) {
  use->live_chunks += end - begin;
  if (record.live_chunks == record.chunks) return Status::Ok();
  const std::string first = keys::Counts(save_id, Counted::kChunk, begin / kCountsPerBlock);
  const std::string_view prefix = std::string_view(first).substr(0, first.size() - 4);
  return database_->ScanFrom(
      Family::kCounts, prefix, first, [&](std::string_view key, std::string_view value) -> Status {
        const auto parsed = keys::ParseCounts(key);
        if (!parsed.has_value()) return Status::Corruption("a malformed key in family counts");
        const Result<std::vector<uint32_t>> counts = DecodeCounts(value);
        if (!counts.ok()) {  // what it counts is kept
          damage_.AddUncounted(counts.status().WithContext("save " + std::to_string(save_id)));
          return Status::Ok();
        }
        for (size_t i = 0; i < counts->size(); ++i) {
          const uint32_t count = (*counts)[i];
          const uint64_t ordinal = uint64_t{parsed->block} * kCountsPerBlock + i;
          const bool is_live = count != 0 && (count & kDeadBit) == 0;
          if (ordinal < begin || ordinal >= end || is_live) continue;
          --use->live_chunks;
          if (count == 0) continue;  // gone
          ++use->dead_chunks;
          use->dead_bytes += count & kMaxCount;
        }
        return Status::Ok();
      });
}

// A writer looks through a reader of its own, as in Check.
Status StoreImpl::WithView(const std::function<Status(const StoreImpl& view)>& read) const {
  std::unique_ptr<StoreImpl> beside;
  if (database_->for_writing()) {
    VARVE_ASSIGN_OR_RETURN(beside, OpenBeside());
  } else {
    VARVE_RETURN_IF_ERROR(Refresh());
  }
  const StoreImpl& view = beside != nullptr ? *beside : *this;
  return view.WithFrozenView([&] { return read(view); });
}

Result<uint64_t> StoreImpl::BytesFreedByDrop(std::span<const CheckpointId> ids) const {
  uint64_t freed = 0;
  VARVE_RETURN_IF_ERROR(WithView([&](const StoreImpl& view) -> Status {
    DropForecaster forecaster(view.database());
    VARVE_RETURN_IF_ERROR(view.FollowDrop(ids, &forecaster));
    freed = forecaster.dead_bytes();
    return Status::Ok();
  }));
  return freed;
}

Result<DropForecast> StoreImpl::ForecastDrop(std::span<const CheckpointId> ids) const {
  DropForecast forecast;
  VARVE_RETURN_IF_ERROR(WithView([&](const StoreImpl& view) -> Status {
    VARVE_RETURN_IF_ERROR(view.database()->CheckFilesOf(Family::kChunks));
    VARVE_ASSIGN_OR_RETURN(std::vector<ChunkFile> files, ListChunkFiles(*view.database()));
    DropForecaster forecaster(view.database(), std::move(files));
    VARVE_RETURN_IF_ERROR(view.FollowDrop(ids, &forecaster));
    VARVE_ASSIGN_OR_RETURN(forecast, forecaster.Forecast());
    return Status::Ok();
  }));
  return forecast;
}

Status StoreImpl::FollowDrop(std::span<const CheckpointId> ids, DropForecaster* forecaster) const {
  VARVE_ASSIGN_OR_RETURN(const std::vector<StepKey> steps, FindSteps(ids));
  for (const StepKey& step : steps) VARVE_RETURN_IF_ERROR(forecaster->DropStep(step));
  return forecaster->Follow();
}

}  // namespace varve::internal
