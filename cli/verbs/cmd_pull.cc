// SPDX-License-Identifier: Apache-2.0
//
// varve pull: makes the store from a snapshot in an object store, or brings it up to date.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "varve/remote.h"
#include "varve/step.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct PullVerbOptions {
  std::string url;
  std::vector<std::string> steps;
  std::optional<uint64_t> snapshot;
  bool dry_run = false;
  bool read_data = false;
};

nlohmann::ordered_json ToObject(const std::string& url, const PullReport& report) {
  return {{"url", url},
          {"snapshot", report.snapshot},
          {"steps", report.num_steps},
          {"total_files", report.total_files},
          {"total_bytes", report.total_bytes},
          {"fetched_files", report.fetched_files},
          {"fetched_bytes", report.fetched_bytes},
          {"seconds", report.elapsed.count()}};
}

std::string ToText(const std::string& path, const PullVerbOptions& options,
                   const PullReport& report) {
  const std::string files =
      Count(report.fetched_files, "file") + ", " + HumanBytes(report.fetched_bytes) + " of " +
      Count(report.total_files, "file") + ", " + HumanBytes(report.total_bytes);
  const std::string snapshot = "snapshot " + std::to_string(report.snapshot);
  if (options.dry_run) return "would fetch " + files + " of " + snapshot + "\n";
  return Printable(path) + " holds " + Count(report.num_steps, "step") + " of " + snapshot +
         "; fetched " + files + " (" + HumanDuration(report.elapsed) + ")\n";
}

Result<PullReport> PullWithProgress(const Context& context, const std::string& path,
                                    const PullVerbOptions& options) {
  ProgressBar progress("pull", context.quiet());
  PullOptions pull;
  VARVE_ASSIGN_OR_RETURN(pull.key, context.ReadKey());
  pull.dry_run = options.dry_run;
  pull.read_data = options.read_data;
  pull.snapshot = options.snapshot;
  pull.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  return Pull(options.url, path, pull);
}

// Copies steps into a store of its own, which may hold others already.
Result<std::vector<SaveReport>> PullSteps(const Context& context, const std::string& path,
                                          const PullVerbOptions& options, const Store& remote) {
  VARVE_ASSIGN_OR_RETURN(const auto ids, ResolveSteps(remote, options.steps));
  VARVE_ASSIGN_OR_RETURN(const auto store, context.OpenForWriting(path, Context::Absent::kMake));
  ProgressBar progress("pull", context.quiet());
  CopyOptions copy;
  copy.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  return remote.CopyTo(store.get(), ids, copy);
}

Outcome RunPullOfSteps(const Context& context, const std::string& path,
                       const PullVerbOptions& options) {
  if (options.dry_run || options.read_data) {
    return Outcome::Usage("--dry-run and --read-data are for pulls without STEP");
  }
  const auto remote = OpenRemote(options.url, {.snapshot = options.snapshot});
  if (!remote.ok()) return OpenOutcome(remote.status());
  const auto reports = PullSteps(context, path, options, **remote);
  if (!reports.ok()) return reports.status();
  for (const SaveReport& report : *reports) context.Warn(report.warnings);
  if (context.json()) {
    nlohmann::ordered_json copied = nlohmann::ordered_json::array();
    for (const SaveReport& report : *reports) copied.push_back(ToJson(report));
    context.PrintJson({{"url", options.url}, {"copied", std::move(copied)}});
  } else if (!context.quiet()) {
    for (const SaveReport& report : *reports) context.PrintText(SaveText(report) + "\n");
  }
  return {};
}

Outcome RunPull(const Context& context, const PullVerbOptions& options) {
  std::string path;
  if (Outcome outcome = context.StorePath(&path); !outcome.ok()) return outcome;
  if (!options.steps.empty()) return RunPullOfSteps(context, path, options);
  const auto report = PullWithProgress(context, path, options);
  if (!report.ok()) return OpenOutcome(report.status());
  if (context.json()) {
    context.PrintJson(ToObject(options.url, *report));
  } else if (!context.quiet()) {
    context.PrintText(ToText(path, options, *report));
  }
  return {};
}

constexpr char kPullNotes[] =
    R"(The folder of -s is new or empty, or an earlier pull or backup of the same
store made it and nobody has written to it since. Every file is verified, and so
is the structure of the store, before the new state replaces the earlier one.
What an interrupted pull has fetched is used by the next one.

With STEPs only these steps are fetched, and saved in the store of -s, which is
made if it is missing and may hold other steps. Every chunk is verified.

JSON: url snapshot steps total_files total_bytes fetched_files fetched_bytes
seconds. With STEPs: url copied[as import])";

}  // namespace

void AddPull(CLI::App& app, Context& context) {
  auto options = std::make_shared<PullVerbOptions>();
  CLI::App* verb = app.add_subcommand("pull", "Bring a snapshot from an object store");
  verb->add_option("URL", options->url, "Where it was pushed to")->required();
  verb->add_option("STEP", options->steps, kStepHelp);
  verb->add_option("--snapshot", options->snapshot, "Number of the snapshot, by default the newest")
      ->type_name("N");
  verb->add_flag("--dry-run", options->dry_run, "Only say what would be fetched");
  verb->add_flag("--read-data", options->read_data, "Also read every chunk");
  verb->footer(kPullNotes);
  context.OnAnything(verb, [&context, options] { return RunPull(context, *options); });
}

}  // namespace varve::internal::cli
