// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "base/util.h"
#include "store/db/dead_space.h"
#include "store/db/reference_counts.h"
#include "store/db/store_impl.h"
#include "store/format/frame_totals.h"

namespace varve::internal {

namespace {

// One pass over a store. Saves that cannot be read are not counted, because their dead bytes cannot
// be freed.
class StatsPass {
 public:
  // With `is_last_try` a chunk file that cannot be read is damage. Without it a drop or a reclaim
  // may have removed the file while this pass ran, and the error asks for another pass.
  StatsPass(const Database& database, bool is_last_try)
      : database_(database), is_last_try_(is_last_try) {}

  Status Run() {
    VARVE_RETURN_IF_ERROR(CountSteps());
    VARVE_RETURN_IF_ERROR(CountSaves());
    VARVE_RETURN_IF_ERROR(FindDamagedCounts());
    return CountPending();
  }

  bool FoundDamage() const { return !damage_.all().empty(); }
  StoreStats Take() {
    stats_.by_codec = totals_.CodecRows();
    stats_.by_coder = totals_.CoderRows();
    for (const CodecUse& use : stats_.by_codec) {
      stats_.num_chunks += use.num_chunks;
      stats_.unique_bytes += use.raw_bytes;
      stats_.stored_bytes += use.stored_bytes;
    }
    stats_.warnings = damage_.all();
    return std::move(stats_);
  }

 private:
  Status CountSteps() {
    VARVE_RETURN_IF_ERROR(
        database_.Scan(Family::kMeta, keys::kRunPrefix, [&](std::string_view, std::string_view) {
          ++stats_.num_runs;
          return Status::Ok();
        }));
    return database_.Scan(
        Family::kSteps, "", [&](std::string_view, std::string_view value) -> Status {
          VARVE_ASSIGN_OR_RETURN(const StepRecord record, DecodeStepRecord(value));
          ++stats_.num_steps;
          stats_.logical_bytes += record.logical_bytes;
          return Status::Ok();
        });
  }

  Status CountSaves() {
    return database_.Scan(
        Family::kBirths, "", [&](std::string_view key, std::string_view value) -> Status {
          const auto parsed = keys::ParseSave(key);
          if (!parsed.has_value()) return Status::Corruption("a malformed key in family births");
          if (parsed->block.has_value()) {
            NeedsRecord(parsed->save_id);
            return Status::Ok();
          }
          const Result<SaveRecord> record =
              DecodeSave(database_, parsed->save_id, std::string(value));
          is_counted_[parsed->save_id] = record.ok();
          if (record.ok()) {
            totals_.Add(*record);
          } else {
            LeaveOut(parsed->save_id, ": " + std::string(record.status().message()));
          }
          return Status::Ok();
        });
  }

  // Counts the frames in the chunk files, minus the live ones. The counts may say more, because
  // after an interrupted reclaim they call frames dead that are gone already.
  Status CountPending() {
    DeadSpace space;
    ReferenceCounts counts(&database_);
    const Status refreshed = space.Refresh(database_, &counts);
    const bool is_lost =
        refreshed.code() == StatusCode::kIOError || refreshed.code() == StatusCode::kNotFound;
    if (refreshed.code() == StatusCode::kCorruption || (is_lost && is_last_try_)) {
      damage_.Add(std::string(refreshed.message()) + "; pending bytes are left out");
      return Status::Ok();
    }
    stats_.pending_bytes = space.DeadBytes();
    return refreshed;
  }

  Status FindDamagedCounts() {
    return database_.Scan(Family::kCounts, "",
                          [&](std::string_view key, std::string_view value) -> Status {
                            const auto parsed = keys::ParseCounts(key);
                            if (!parsed.has_value())
                              return Status::Corruption("a malformed key in family counts");
                            if (parsed->kind != Counted::kChunk || !NeedsRecord(parsed->save_id))
                              return Status::Ok();
                            const Result<std::vector<uint32_t>> counts = DecodeCounts(value);
                            if (!counts.ok()) {
                              damage_.Add("save " + std::to_string(parsed->save_id) + ": " +
                                          std::string(counts.status().message()) +
                                          "; no reclaim frees its dead bytes");
                            }
                            return Status::Ok();
                          });
  }

  // True when the record of the save must be counted. Another record of the save was found.
  bool NeedsRecord(uint64_t save_id) {
    const auto it = is_counted_.find(save_id);
    if (it != is_counted_.end()) return it->second;
    LeaveOut(save_id, " has no record");
    return false;
  }

  void LeaveOut(uint64_t save_id, const std::string& why) {
    damage_.Add("save " + std::to_string(save_id) + why + "; what it counts is left out");
  }

  const Database& database_;
  const bool is_last_try_;
  StoreStats stats_;
  FrameTotals totals_;
  DamageNotes damage_;
  std::map<uint64_t, bool> is_counted_;  // saves with a record
};

// WithCatchUp reads at most four times.
constexpr int kTriesOfView = 3;

}  // namespace

Result<StoreStats> StoreImpl::Stats() const {
  VARVE_RETURN_IF_ERROR(Refresh());
  std::optional<StatsPass> pass;
  bool saw_one_state = false;
  const auto run = [&] { return pass.emplace(*database_, /*is_last_try=*/false).Run(); };
  Status status = TryOneState(run, &saw_one_state);
  if (!saw_one_state && !database_->for_writing()) {
    status = WithoutCatchUps(run);
    saw_one_state = true;
  }
  const bool is_lost =
      status.code() == StatusCode::kIOError || status.code() == StatusCode::kNotFound;
  if (!status.ok() && !is_lost) return status;
  // A commit reaches the families one after the other. Damage is only what shows between two
  // commits, and so are numbers that belong together.
  if (is_lost || pass->FoundDamage() || !saw_one_state) {
    int tries = 0;
    VARVE_RETURN_IF_ERROR(WithView([&](const StoreImpl& view) {
      return pass.emplace(*view.database(), /*is_last_try=*/++tries >= kTriesOfView).Run();
    }));
  }
  StoreStats stats = pass->Take();
  stats.format_version = format_.version;
  const FolderUse use = MeasureFolder(path_);
  stats.disk_bytes = use.allocated_bytes;
  stats.num_files = use.num_files;
  for (const std::string& error : use.errors) stats.warnings.push_back(DiskBytesWarning(error));
  return stats;
}

}  // namespace varve::internal
