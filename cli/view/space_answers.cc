// SPDX-License-Identifier: Apache-2.0
//
// Answers about the space that a store takes, and about its health.
#include <algorithm>
#include <bit>
#include <filesystem>
#include <set>
#include <span>
#include <utility>

#include "base/folders.h"
#include "cli/json.h"
#include "cli/verbs/plot.h"
#include "cli/view/answers.h"
#include "objects/url.h"
#include "varve/digest.h"
#include "varve/group.h"
#include "varve/remote.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

ordered_json GroupOf(const GroupStatus& status) {
  auto saves = ordered_json::array();
  for (const OpenSave& save : status.open_saves) {
    saves.push_back(
        {{"run", save.id.run}, {"step", save.id.step}, {"missing_ranks", save.missing_ranks}});
  }
  return {{"epoch", status.epoch},
          {"ranks", status.num_ranks},
          {"members", status.num_members},
          {"log_files", status.num_log_files},
          {"open_saves", std::move(saves)}};
}

// What saves have written that have not committed. The id of a save is in the names of its files. A
// writer that died leaves such files, too, until the next one opens the store.
Answer UncommittedOf(const std::filesystem::path& store) {
  const std::filesystem::path incoming = store / "incoming";
  std::error_code error;
  std::set<std::string> saves;
  uint64_t files = 0, bytes = 0;
  for (const std::filesystem::directory_entry& entry : EntriesOf(incoming, &error)) {
    std::error_code vanished;  // a commit took it, or this is a folder
    const uint64_t size = entry.file_size(vanished);
    if (vanished) continue;
    const std::string name = entry.path().filename();
    if (name.starts_with("birth-")) saves.insert(name.substr(0, name.rfind('-')));
    ++files;
    bytes += size;
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return Status::IOError("cannot list " + incoming.string() + ": " + error.message());
  }
  return ordered_json{{"saves", saves.size()}, {"files", files}, {"bytes", bytes}};
}

// Besides steps, what a drop gives back depends on what is dead already.
Result<std::string> KeyOfForget(const Ask& ask, const ForgetOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const auto steps, ListBySaving(ask.store));
  VARVE_ASSIGN_OR_RETURN(const StoreStats stats, ask.store.Stats());
  const ordered_json asked = {options.keep_last,   options.keep_every, options.keep_best,
                              options.keep_within, options.keep_tags,  options.run,
                              options.no_reclaim};
  return KeyOf(steps) + ToJson(stats).dump() +
         asked.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

Answer SnapshotsOf(const std::string& url) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<SnapshotInfo> snapshots, ListSnapshots(url));
  auto array = ordered_json::array();
  for (const SnapshotInfo& snapshot : snapshots) {
    array.push_back({{"snapshot", snapshot.number},
                     {"created", IsoTime(snapshot.created)},
                     {"total_bytes", snapshot.total_bytes}});
  }
  return array;
}

}  // namespace

std::string KeyOf(const std::vector<CheckpointInfo>& steps) {
  std::string names;
  for (const CheckpointInfo& info : steps) {
    names += info.id.run + "@" + std::to_string(info.id.step) + " " +
             std::to_string(info.created.time_since_epoch().count());
    for (const auto& [metric, value] : info.metrics) {
      names += " " + std::to_string(metric.size()) + metric + "=" +
               std::to_string(std::bit_cast<uint64_t>(value));
    }
    for (const std::string& tag : info.tags) names += " " + tag;
    // Of a copy, which has the same time.
    names += " " + std::to_string(info.new_bytes) + " " + std::to_string(info.stored_bytes) + "\n";
  }
  return ToHex(ComputeDigest(/*seed=*/0, std::as_bytes(std::span(names))));
}

Answer AnswerStats(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const StoreStats stats, ask.store.Stats());
  ordered_json object = ToJson(stats);
  if (!stats.warnings.empty()) object["warnings"] = stats.warnings;
  return object;
}

// Bytes by step, in the order in which the steps were saved, as stats --plot draws them.
Answer AnswerSpace(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(KnownCheckpoints known, ListKnownSteps(ask.store, {}));
  std::vector<CheckpointInfo>& steps = known.checkpoints;
  std::ranges::stable_sort(steps, {}, &CheckpointInfo::created);
  size_t steps_a_bin = 0;
  auto bins = ordered_json::array();
  for (const PlotBin& bin : BinCheckpoints(steps, &steps_a_bin)) {
    bins.push_back({{"first", bin.first},
                    {"last", bin.last},
                    {"logical_bytes", bin.logical_bytes},
                    {"new_bytes", bin.new_bytes},
                    {"stored_bytes", bin.stored_bytes}});
  }
  ordered_json object = {
      {"steps", steps.size()}, {"steps_a_bin", steps_a_bin}, {"bins", std::move(bins)}};
  if (!known.errors.empty()) object["errors"] = known.errors;
  return object;
}

// Compares steps, which takes long where there are many tensors.
Answer AnswerSharing(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const auto steps, ListBySaving(ask.store));
  VARVE_ASSIGN_OR_RETURN(const auto sharing, ask.caches.sharing.Get(KeyOf(steps), [&ask] {
    return MeasureSharing(ask.store);
  }));
  auto groups = ordered_json::array();
  for (const GroupSharing& group : sharing->groups) {
    groups.push_back(
        {{"name", group.name}, {"bytes", group.bytes}, {"new_bytes", group.new_bytes}});
  }
  return ordered_json{{"checkpoints", sharing->num_checkpoints}, {"groups", std::move(groups)}};
}

// What forget --dry-run tells, but not all decisions at once.
Answer AnswerForget(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const PageOfRows page, ask.query.Page());
  ForgetOptions options{.keep_last = ask.query.Text("keep-last"),
                        .keep_every = ask.query.Text("keep-every"),
                        .keep_best = ask.query.Texts("keep-best"),
                        .keep_within = ask.query.Text("keep-within"),
                        .keep_tags = ask.query.Texts("keep-tag"),
                        .run = ask.query.Text("run", "main")};
  VARVE_ASSIGN_OR_RETURN(options.no_reclaim, ask.query.Flag("no-reclaim"));
  VARVE_ASSIGN_OR_RETURN(const std::string key, KeyOfForget(ask, options));
  VARVE_ASSIGN_OR_RETURN(const auto told, ask.caches.forgets.Get(key, [&] {
    return ForetellForget(ask.store, options);
  }));
  ordered_json object = *told;
  object["num_dropped"] = object["dropped"].size();
  object.erase("dropped");
  object["decisions"] = CutRows(page, std::move(object["decisions"]));
  return object;
}

Answer AnswerHealth(const Ask& ask) {
  ordered_json object = ordered_json::object();
  const Answer stats = AnswerStats(ask);
  if (stats.ok()) object["stats"] = *stats;
  if (!stats.ok()) object["error"] = stats.status().message();  // the rest can still be told
  if (LooksLikeUrl(ask.path)) {
    object["open_snapshot"] = ask.snapshot;
    const Answer snapshots = SnapshotsOf(ask.path);
    if (snapshots.ok()) object["snapshots"] = *snapshots;
    if (!snapshots.ok()) object["warning"] = snapshots.status().message();
  } else if (Group::IsRoot(ask.path)) {
    VARVE_ASSIGN_OR_RETURN(const GroupStatus status, Group::ReadStatus(ask.path));
    object["group"] = GroupOf(status);
  } else {
    const Answer uncommitted = UncommittedOf(ask.path);
    object["uncommitted"] =
        uncommitted.ok() ? *uncommitted : ordered_json{{"error", uncommitted.status().message()}};
  }
  return object;
}

}  // namespace varve::internal::cli
