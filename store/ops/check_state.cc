// SPDX-License-Identifier: Apache-2.0
#include "store/ops/check_state.h"

#include "base/util.h"
#include "store/format/trainer_progress.h"

namespace varve::internal {

namespace {

Status CheckItem(std::string_view value, uint64_t digest_seed) {
  VARVE_ASSIGN_OR_RETURN(const ItemRecord item, DecodeItemRecord(value));
  if (ComputeDigest(digest_seed, AsBytes(item.value)) == item.digest) return Status::Ok();
  return Status::Corruption("does not have its digest " + ToHex(item.digest));
}

// How messages name an entry of a step, and whether it is sound. An empty name means a malformed
// key.
struct Entry {
  std::string name;
  bool is_item = false;
  Status status;
};

Entry CheckEntry(StepKey step, std::string_view key, std::string_view value, uint64_t digest_seed) {
  if (const auto item = keys::ParseItem(key)) {
    return {"item " + std::string(*item), true, CheckItem(value, digest_seed)};
  }
  if (key == keys::TrainerProgress(step)) {
    return {"trainer state", false, DecodeTrainerProgress(value).status()};
  }
  if (key == keys::Topology(step)) return {"topology", false, DecodeTopology(value).status()};
  return {};
}

// A counter of family meta must be above the highest number in use. A missing or malformed counter
// is 0.
Status CheckCounter(const Database& database, std::string_view key, uint64_t highest,
                    const CheckedSteps& checked) {
  VARVE_ASSIGN_OR_RETURN(const auto value, database.Get(Family::kMeta, key));
  const uint64_t next = DecodeNumber(value.value_or("")).value_or(0);
  if (highest > 0 && next <= highest) {
    checked.error("meta key " + std::string(key) + ": " + std::to_string(next) +
                  ", expected more than " + std::to_string(highest) + ", which is in use");
  }
  return Status::Ok();
}

}  // namespace

Status CheckState(const Database& database, uint64_t digest_seed, const CheckedSteps& checked) {
  std::map<StepKey, uint64_t> items;
  VARVE_RETURN_IF_ERROR(
      database.Scan(Family::kState, "", [&](std::string_view key, std::string_view value) {
        constexpr size_t kStepKeyBytes = 12;
        const auto step = keys::ParseStep(key.substr(0, kStepKeyBytes));
        const Entry entry = step.has_value() ? CheckEntry(*step, key, value, digest_seed) : Entry{};
        if (entry.name.empty()) {
          checked.error("family state has a malformed key");
        } else if (!checked.steps.contains(*step)) {
          checked.error(entry.name + " at " + checked.name(*step) + ": has no step record");
        } else if (!entry.status.ok()) {
          checked.error(entry.name + " at " + checked.name(*step) + ": " + entry.status.message());
        }
        if (entry.is_item) ++items[*step];
        return Status::Ok();
      }));
  for (const auto& [step, record] : checked.steps) {
    if (items[step] == record.num_items) continue;
    checked.error(checked.name(step) + ": has " + std::to_string(items[step]) +
                  " items, expected " + std::to_string(record.num_items));
  }
  return Status::Ok();
}

Status CheckMeta(const Database& database, uint64_t highest_save_id, const CheckedSteps& checked) {
  for (const auto& entry : checked.runs) {
    const RunId run = entry.first;
    const std::string& name = entry.second;
    VARVE_RETURN_IF_ERROR(database.Scan(
        Family::kMeta, keys::TagPrefix(run), [&](std::string_view key, std::string_view value) {
          const std::string where =
              "tag " + std::string(keys::ParseTag(key).value_or("?")) + " of run " + name + ": ";
          const auto step = DecodeNumber(value);
          if (!step.has_value()) {
            checked.error(where + "not a number");
          } else if (!checked.steps.contains({run, *step})) {
            checked.error(where + "names step " + std::to_string(*step) + ", which does not exist");
          }
          return Status::Ok();
        }));
  }
  const uint64_t highest_run = checked.runs.empty() ? 0 : checked.runs.rbegin()->first;
  VARVE_RETURN_IF_ERROR(CheckCounter(database, keys::kNextRun, highest_run, checked));
  return CheckCounter(database, keys::kNextBirth, highest_save_id, checked);
}

}  // namespace varve::internal
