// SPDX-License-Identifier: Apache-2.0
#include "store/frame_totals.h"
#include "store/store_impl.h"
#include "store/util.h"

namespace varve {

Result<StoreStats> StoreImpl::Stats() const {
  VARVE_RETURN_IF_ERROR(Refresh());
  StoreStats stats;
  FrameTotals totals;
  VARVE_RETURN_IF_ERROR(WithCatchUp([&]() -> Status {
    stats = StoreStats{};
    totals = FrameTotals{};
    VARVE_RETURN_IF_ERROR(database_->Scan(Family::kMeta, keys::kRunPrefix,
                                          [&](std::string_view, std::string_view) {
                                            ++stats.num_runs;
                                            return Status::Ok();
                                          }));
    VARVE_RETURN_IF_ERROR(database_->Scan(
        Family::kSteps, "", [&](std::string_view, std::string_view value) -> Status {
          VARVE_ASSIGN_OR_RETURN(const StepRecord record, DecodeStepRecord(value));
          ++stats.num_steps;
          stats.logical_bytes += record.logical_bytes;
          return Status::Ok();
        }));
    VARVE_RETURN_IF_ERROR(database_->Scan(
        Family::kBirths, "", [&](std::string_view key, std::string_view value) -> Status {
          const auto parsed = keys::ParseBirth(key);
          if (!parsed.has_value()) return Status::Corruption("a malformed key in family births");
          if (parsed->block.has_value()) return Status::Ok();
          VARVE_ASSIGN_OR_RETURN(const BirthRecord record, DecodeBirthRecord(value));
          totals.Add(record);
          return Status::Ok();
        }));
    VARVE_ASSIGN_OR_RETURN(stats.pending_bytes, PendingBytes());
    return Status::Ok();
  }));
  stats.format_version = format_.version;
  stats.by_codec = totals.CodecRows();
  stats.by_coder = totals.CoderRows();
  for (const CodecUse& use : stats.by_codec) {
    stats.num_chunks += use.num_chunks;
    stats.unique_bytes += use.raw_bytes;
    stats.stored_bytes += use.stored_bytes;
  }
  const FolderUse use = MeasureFolder(path_);
  stats.disk_bytes = use.allocated_bytes;
  stats.num_files = use.num_files;
  return stats;
}

}  // namespace varve
