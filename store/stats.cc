// SPDX-License-Identifier: Apache-2.0
#include "store/store_impl.h"
#include "store/util.h"

namespace varve {

Result<StoreStats> StoreImpl::Stats() const {
  VARVE_RETURN_IF_ERROR(Refresh());
  StoreStats stats;
  CodecTotals totals[kNumPredictors];
  VARVE_RETURN_IF_ERROR(WithCatchUp([&]() -> Status {
    stats = StoreStats{};
    std::fill(std::begin(totals), std::end(totals), CodecTotals{});
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
          if (parsed->edges_block.has_value()) return Status::Ok();
          VARVE_ASSIGN_OR_RETURN(const BirthRecord record, DecodeBirthRecord(value));
          for (int i = 0; i < kNumPredictors; ++i) {
            totals[i].chunks += record.live[i].chunks;
            totals[i].raw_bytes += record.live[i].raw_bytes;
            totals[i].stored_bytes += record.live[i].stored_bytes;
          }
          return Status::Ok();
        }));
    VARVE_ASSIGN_OR_RETURN(stats.pending_bytes, PendingBytes());
    return Status::Ok();
  }));
  stats.format_version = format_.version;
  for (int i = 0; i < kNumPredictors; ++i) {
    if (totals[i].chunks == 0) continue;
    stats.num_chunks += totals[i].chunks;
    stats.unique_bytes += totals[i].raw_bytes;
    stats.stored_bytes += totals[i].stored_bytes;
    stats.by_codec.push_back({std::string(PredictorName(static_cast<Predictor>(i))),
                              totals[i].chunks, totals[i].raw_bytes, totals[i].stored_bytes});
  }
  const FolderUse use = MeasureFolder(path_);
  stats.disk_bytes = use.allocated_bytes;
  stats.num_files = use.num_files;
  return stats;
}

}  // namespace varve
