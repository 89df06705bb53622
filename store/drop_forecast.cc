// SPDX-License-Identifier: Apache-2.0
#include "store/drop_forecast.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "store/reclaim_plan.h"
#include "store/reference_counts.h"
#include "store/rocksdb_options.h"
#include "store/store_impl.h"

namespace varve {
namespace {

std::string Describe(Counted kind, const Release& release) {
  return (kind == Counted::kChunk ? "chunk " : "list ") + std::to_string(release.birth) + "/" +
         std::to_string(release.number);
}

// The counts and the record of one birth after the other: of each the last block is kept, which
// does for addresses that fall.
class BirthCursor {
 public:
  BirthCursor(const Database* database, Counted kind) : database_(database), kind_(kind) {}

  // Whether so many releases are all references of a list or a chunk.
  Result<bool> Dies(const ReleaseQueue::Released& released) {
    const Release& what = released.what;
    VARVE_RETURN_IF_ERROR(MoveTo(what.birth));
    VARVE_ASSIGN_OR_RETURN(const uint32_t count, Count(what));
    if (count < released.times || (kind_ == Counted::kChunk && (count & kDeadBit) != 0)) {
      return Status::Corruption(Describe(kind_, what) + " is released more often than it is named");
    }
    if (count > released.times) return false;
    VARVE_RETURN_IF_ERROR(TakeFromTotals(what));
    return true;
  }

  // The edge of a chunk of the birth that Dies was asked of last; null: it has no base.
  Result<const BaseEdge*> FindEdge(const Release& chunk) {
    const uint32_t number = chunk.number / kCountsPerBlock;
    if (frames_block_ != number) {
      frames_ = {};
      VARVE_ASSIGN_OR_RETURN(const auto value,
                             database_->Get(Family::kBirths, keys::BirthBlock(birth_, number)));
      if (value.has_value()) {
        VARVE_ASSIGN_OR_RETURN(frames_, DecodeBirthBlock(*value));
      }
      frames_block_ = number;
    }
    const auto edge = std::ranges::lower_bound(frames_.edges, chunk.number, {}, &BaseEdge::ordinal);
    if (edge == frames_.edges.end() || edge->ordinal != chunk.number) return nullptr;
    if (edge->base >= ChunkAddress{chunk.birth, chunk.number}) {
      return Status::Corruption(Describe(kind_, chunk) + ": its base has no smaller address");
    }
    return &*edge;
  }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  Status MoveTo(uint64_t birth) {
    if (birth == birth_ && has_birth_) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kBirths, keys::Birth(birth)));
    if (!value.has_value()) {
      return Status::NotFound("birth " + std::to_string(birth) + " has no record");
    }
    VARVE_ASSIGN_OR_RETURN(record_, DecodeBirthRecord(*value));
    left_ = record_.Live();
    lists_left_ = record_.live_lists;
    birth_ = birth;
    has_birth_ = true;
    counts_block_ = frames_block_ = kNone;
    return Status::Ok();
  }

  Result<uint32_t> Count(const Release& what) {
    const uint32_t stored = kind_ == Counted::kChunk ? record_.chunks : record_.lists;
    if (what.number >= stored) {
      return Status::Corruption(Describe(kind_, what) + ": its birth stored only " +
                                std::to_string(stored));
    }
    const uint32_t block = what.number / kCountsPerBlock;
    if (counts_block_ != block) {
      counts_.clear();
      VARVE_ASSIGN_OR_RETURN(const auto value,
                             database_->Get(Family::kCounts, keys::Counts(birth_, kind_, block)));
      if (value.has_value()) {
        VARVE_ASSIGN_OR_RETURN(counts_, DecodeCounts(*value));
      }
      counts_block_ = block;
    }
    const uint32_t i = what.number % kCountsPerBlock;
    return i < counts_.size() ? counts_[i] : 1;  // docs/format.md, "counts"
  }

  Status TakeFromTotals(const Release& what) {
    if (kind_ == Counted::kList) {
      if (lists_left_-- > 0) return Status::Ok();
      return Status::Corruption("birth " + std::to_string(birth_) + " has no live list left");
    }
    if (left_.Take({1, 0, what.bytes})) return Status::Ok();
    return Status::Corruption("birth " + std::to_string(birth_) + " has fewer live bytes than " +
                              Describe(kind_, what));
  }

  const Database* const database_;
  const Counted kind_;
  bool has_birth_ = false;
  uint64_t birth_ = 0;
  BirthRecord record_;
  CodecTotals left_;  // live chunks that have not died yet
  uint64_t lists_left_ = 0;
  uint64_t counts_block_ = kNone;
  std::vector<uint32_t> counts_;
  uint64_t frames_block_ = kNone;
  BirthBlock frames_;
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
                         [&](std::string_view, std::string_view value) -> Status {
                           const Result<TensorRecord> record = DecodeTensorRecord(value);
                           if (!record.ok()) return Status::Ok();
                           for (const ListAddress& list : record->lists) {
                             VARVE_RETURN_IF_ERROR(lists_.Push({list.birth, list.number, 0}));
                           }
                           return Status::Ok();
                         });
}

Status DropForecaster::Follow() {
  VARVE_RETURN_IF_ERROR(FollowLists());
  return FollowChunks();
}

Status DropForecaster::FollowLists() {
  BirthCursor cursor(database_, Counted::kList);
  while (true) {
    VARVE_ASSIGN_OR_RETURN(const auto released, lists_.Pop());
    if (!released.has_value()) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(const bool dies, cursor.Dies(*released));
    if (!dies) continue;
    VARVE_RETURN_IF_ERROR(ReleaseChunksOf({released->what.birth, released->what.number}));
  }
}

Status DropForecaster::ReleaseChunksOf(ListAddress list) {
  VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kLists, keys::List(list)));
  if (!value.has_value()) return Status::Ok();  // damage: what it named stays
  const Result<std::vector<ChunkRef>> refs = DecodeChunkList(*value);
  if (!refs.ok()) return Status::Ok();
  for (const ChunkRef& ref : *refs) {
    if (!ref.NamesFrame()) continue;
    VARVE_RETURN_IF_ERROR(chunks_.Push({ref.address.birth, ref.address.ordinal, ref.stored_bytes}));
  }
  return Status::Ok();
}

Status DropForecaster::FollowChunks() {
  BirthCursor cursor(database_, Counted::kChunk);
  while (true) {
    VARVE_ASSIGN_OR_RETURN(const auto released, chunks_.Pop());
    if (!released.has_value()) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(const bool dies, cursor.Dies(*released));
    if (!dies) continue;
    NoteDeath(released->what);
    VARVE_ASSIGN_OR_RETURN(const BaseEdge* const edge, cursor.FindEdge(released->what));
    if (edge == nullptr) continue;
    VARVE_RETURN_IF_ERROR(
        chunks_.Push({edge->base.birth, edge->base.ordinal, edge->base_stored_bytes}));
  }
}

void DropForecaster::NoteDeath(const Release& chunk) {
  dead_bytes_ += chunk.bytes;
  const ChunkAddress address{chunk.birth, chunk.number};
  while (file_ > 0 && address < files_[file_ - 1].first) --file_;
  if (file_ == 0 || files_[file_ - 1].last < address) return;  // in no file that is there
  ++deaths_[file_ - 1].dead_chunks;
  deaths_[file_ - 1].dead_bytes += chunk.bytes;
}

Result<DropForecast> DropForecaster::Forecast() {
  VARVE_ASSIGN_OR_RETURN(const Database::Use held, database_->BeginRead());
  const std::unique_ptr<rocksdb::Iterator> births(database_->rocksdb()->NewIterator(
      rocksdb::ReadOptions(), database_->handle(Family::kBirths)));
  std::vector<ChunkFile> files = files_;
  for (size_t i = 0; i < files.size(); ++i) {
    ChunkFileUse use;
    VARVE_RETURN_IF_ERROR(MeasureFile(files[i], births.get(), &use));
    use.live_chunks -= std::min(use.live_chunks, deaths_[i].dead_chunks);
    use.dead_chunks += deaths_[i].dead_chunks;
    use.dead_bytes += deaths_[i].dead_bytes;
    files[i].frames = use.live_chunks + use.dead_chunks;
    files[i].live_frames = use.live_chunks;
    files[i].live_bytes = files[i].bytes - std::min(files[i].bytes, use.dead_bytes);
    files[i].frame_bytes = files[i].live_bytes + use.dead_bytes;
  }
  return ForecastReclaim(std::move(files));
}

// Counts the frames of `file` as they are before the drop, by the records of its births.
Status DropForecaster::MeasureFile(const ChunkFile& file, rocksdb::Iterator* births,
                                   ChunkFileUse* use) const {
  for (births->Seek(keys::Birth(file.first.birth)); births->Valid();) {
    const auto parsed = keys::ParseBirth({births->key().data(), births->key().size()});
    if (!parsed.has_value()) return Status::Corruption("a malformed key in family births");
    const uint64_t birth = parsed->birth;
    if (birth > file.last.birth) break;
    if (!parsed->block.has_value()) {
      VARVE_ASSIGN_OR_RETURN(const BirthRecord record,
                             DecodeBirthRecord({births->value().data(), births->value().size()}));
      const uint32_t begin = birth == file.first.birth ? file.first.ordinal : 0;
      const uint32_t end = birth == file.last.birth
                               ? std::min<uint32_t>(record.chunks, file.last.ordinal + 1)
                               : record.chunks;
      if (begin < end) VARVE_RETURN_IF_ERROR(MeasureBirth(birth, record, begin, end, use));
    }
    if (birth == UINT64_MAX) break;
    births->Seek(keys::Birth(birth + 1));  // past its blocks, which are long
  }
  return FromRocksDb(births->status(), "reading births");
}

Status DropForecaster::MeasureBirth(uint64_t birth, const BirthRecord& record, uint32_t begin,
                                    uint32_t end, ChunkFileUse* use) const {
  use->live_chunks += end - begin;
  if (record.live_chunks == record.chunks) return Status::Ok();
  const std::string first = keys::Counts(birth, Counted::kChunk, begin / kCountsPerBlock);
  const std::string_view prefix = std::string_view(first).substr(0, first.size() - 4);
  return database_->ScanFrom(
      Family::kCounts, prefix, first, [&](std::string_view key, std::string_view value) -> Status {
        const auto parsed = keys::ParseCounts(key);
        if (!parsed.has_value()) return Status::Corruption("a malformed key in family counts");
        VARVE_ASSIGN_OR_RETURN(const std::vector<uint32_t> counts, DecodeCounts(value));
        for (size_t i = 0; i < counts.size(); ++i) {
          const uint64_t ordinal = uint64_t{parsed->block} * kCountsPerBlock + i;
          const bool is_live = counts[i] != 0 && (counts[i] & kDeadBit) == 0;
          if (ordinal < begin || ordinal >= end || is_live) continue;
          --use->live_chunks;
          if (counts[i] == 0) continue;  // gone
          ++use->dead_chunks;
          use->dead_bytes += counts[i] & kMaxCount;
        }
        return Status::Ok();
      });
}

Result<uint64_t> StoreImpl::BytesFreedByDrop(std::span<const CheckpointId> ids) const {
  if (database_->for_writing()) {
    VARVE_ASSIGN_OR_RETURN(const auto reader, OpenBeside());
    return reader->BytesFreedByDrop(ids);
  }
  uint64_t freed = 0;
  VARVE_RETURN_IF_ERROR(WithFrozenView([&]() -> Status {
    DropForecaster forecaster(database_.get());
    VARVE_RETURN_IF_ERROR(FollowDrop(ids, &forecaster));
    freed = forecaster.dead_bytes();
    return Status::Ok();
  }));
  return freed;
}

Result<DropForecast> StoreImpl::ForecastDrop(std::span<const CheckpointId> ids) const {
  if (database_->for_writing()) {
    VARVE_ASSIGN_OR_RETURN(const auto reader, OpenBeside());
    return reader->ForecastDrop(ids);
  }
  DropForecast forecast;
  VARVE_RETURN_IF_ERROR(WithFrozenView([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(std::vector<ChunkFile> files, ListChunkFiles(*database_));
    DropForecaster forecaster(database_.get(), std::move(files));
    VARVE_RETURN_IF_ERROR(FollowDrop(ids, &forecaster));
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

}  // namespace varve
