// SPDX-License-Identifier: Apache-2.0
//
// varve reclaim: gives back the space of what no step uses, or in an object store no snapshot.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "objects/url.h"
#include "varve/remote.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct ReclaimVerbOptions {
  ReclaimOptions store;
  std::optional<uint64_t> keep;
  uint64_t wait_seconds = 0;
  bool dry_run = false;
};

Result<ReclaimReport> ReclaimWithProgress(const Context& context, Store* store,
                                          ReclaimOptions options) {
  ProgressBar progress("reclaim", context.quiet());
  options.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  return store->Reclaim(options);
}

Outcome RunOnStore(const Context& context, const std::string& path,
                   const ReclaimVerbOptions& options) {
  if (options.keep.has_value() || options.dry_run || options.wait_seconds > 0) {
    return Outcome::Usage("--keep, --wait and --dry-run are for URLs of object stores, " + path +
                          " is none");
  }
  const Result<std::unique_ptr<Store>> store = context.OpenForWriting(path);
  if (!store.ok()) return OpenOutcome(store.status());
  const auto report = ReclaimWithProgress(context, store->get(), options.store);
  if (!report.ok()) return report.status();
  context.Warn(report->warnings);
  if (context.json()) {
    nlohmann::ordered_json object = ToJson({}, *report);
    if (!report->warnings.empty()) object["warnings"] = report->warnings;
    context.PrintJson(object);
  } else if (!context.quiet()) {
    context.PrintText(ReclaimText(*report) + "\n");
  }
  return {};
}

nlohmann::ordered_json ToObject(const RemoteReclaimReport& report) {
  return {{"dropped_snapshots", report.dropped},
          {"kept_snapshots", report.kept},
          {"removed_blobs", report.removed_blobs},
          {"removed_bytes", report.removed_bytes},
          {"pending_blobs", report.pending_blobs}};
}

std::string ToText(const RemoteReclaimReport& report, bool dry_run) {
  std::string text = std::string(dry_run ? "would remove " : "removed ") +
                     Count(report.dropped.size(), "snapshot") + " and " +
                     Count(report.removed_blobs, "blob") + ", " + HumanBytes(report.removed_bytes) +
                     "; " + Count(report.kept, "snapshot") + " left";
  if (report.pending_blobs > 0) {
    text += "; " + Count(report.pending_blobs, "blob") + " may be of pushes under way (see --wait)";
  }
  return text + "\n";
}

Outcome RunOnUrl(const Context& context, const std::string& url,
                 const ReclaimVerbOptions& options) {
  if (options.store.all) return Outcome::Usage("--all is for stores, " + url + " is a URL");
  RemoteReclaimOptions reclaim;
  reclaim.keep_last = options.keep;
  reclaim.dry_run = options.dry_run;
  reclaim.wait_for_pushes = std::chrono::seconds(options.wait_seconds);
  const auto report = ReclaimRemote(url, reclaim);
  if (!report.ok()) return OpenOutcome(report.status());
  if (context.json()) {
    context.PrintJson(ToObject(*report));
  } else if (!context.quiet()) {
    context.PrintText(ToText(*report, options.dry_run));
  }
  return {};
}

Outcome RunReclaim(const Context& context, const ReclaimVerbOptions& options) {
  std::string path;
  if (Outcome outcome = context.StoreOrUrl(&path); !outcome.ok()) return outcome;
  return LooksLikeUrl(path) ? RunOnUrl(context, path, options) : RunOnStore(context, path, options);
}

constexpr char kReclaimNotes[] =
    R"(With -s URL it removes what no snapshot of the object store needs: what drops
and merges in the store have left behind, and what interrupted pushes have sent.
Pushes may go on meanwhile, and keep what they have sent. A push that was
interrupted on another host cannot be told from one that is slow. With --wait
it is watched for so long, at least 30 seconds. A live push gives a sign of life
each 5 seconds. One that gives none counts as dead. If it only slept, it starts
again.

JSON: dropped (always empty) freed_bytes rewritten_bytes pending_bytes
disk_bytes_before disk_bytes_after; of a group with damaged records also
warnings. With a URL: dropped_snapshots[] kept_snapshots removed_blobs
removed_bytes pending_blobs)";

}  // namespace

void AddReclaim(CLI::App& app, Context& context) {
  auto options = std::make_shared<ReclaimVerbOptions>();
  CLI::App* verb = app.add_subcommand("reclaim", "Give back the space of dropped checkpoints");
  verb->add_flag("--all", options->store.all, "Rewrite also files that are mostly alive");
  verb->add_option("--keep", options->keep, "Of a URL: remove all but the newest N snapshots")
      ->type_name("N");
  verb->add_option("--wait", options->wait_seconds,
                   "Of a URL: wait so long for a sign of life of pushes, at least 30")
      ->type_name("SECONDS");
  verb->add_flag("--dry-run", options->dry_run, "Of a URL: only say what would be removed");
  verb->footer(kReclaimNotes);
  context.OnAnything(verb, [&context, options] { return RunReclaim(context, *options); });
}

}  // namespace varve::internal::cli
