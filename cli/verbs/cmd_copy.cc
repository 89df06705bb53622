// SPDX-License-Identifier: Apache-2.0
//
// varve copy: saves checkpoints in another store, which shares what it holds already.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "cli/step_range.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

struct CopyVerbOptions {
  std::vector<std::string> words;  // steps, and last the other store
  std::string run;
  std::string on_existing = "error";
  bool init = false;
};

// The values of the text options, after they have been checked.
struct CopyPlan {
  std::vector<CheckpointId> ids;
  std::string destination;
  CopyOptions options;
};

Result<CopyPlan> Plan(const Store& store, const CopyVerbOptions& options) {
  if (options.words.size() < 2) {
    return Status::InvalidArgument("copy needs at least one STEP and then DEST");
  }
  CopyPlan plan;
  plan.destination = options.words.back();
  if (!options.run.empty()) VARVE_RETURN_IF_ERROR(ValidateRun(options.run));
  plan.options.run = options.run;
  VARVE_ASSIGN_OR_RETURN(plan.options.on_existing, ParseOnExisting(options.on_existing));
  const std::span<const std::string> steps(options.words.begin(), options.words.end() - 1);
  VARVE_ASSIGN_OR_RETURN(plan.ids, ResolveStepsAndRanges(store, /*run=*/"", steps));
  return plan;
}

Result<std::vector<SaveReport>> Copy(const Context& context, const Store& store, CopyPlan plan,
                                     Store* destination) {
  ProgressBar progress("copy", context.quiet());
  plan.options.progress = [&progress](uint64_t done, uint64_t total) {
    progress.Update(done, total);
  };
  return store.CopyTo(destination, plan.ids, plan.options);
}

ordered_json ToObject(const std::string& destination, const std::vector<SaveReport>& reports) {
  ordered_json copied = ordered_json::array();
  for (const SaveReport& report : reports) copied.push_back(ToJson(report));
  return {{"destination", destination}, {"copied", std::move(copied)}};
}

Outcome RunCopy(const Context& context, const Store& store, const CopyVerbOptions& options) {
  const Result<CopyPlan> plan = Plan(store, options);
  if (!plan.ok()) return plan.status();
  const auto destination = context.OpenForWriting(
      plan->destination, options.init ? Context::Absent::kMake : Context::Absent::kError);
  if (!destination.ok()) return OpenOutcome(destination.status());
  const auto reports = Copy(context, store, *plan, destination->get());
  if (!reports.ok()) return reports.status();
  for (const SaveReport& report : *reports) context.Warn(report.warnings);
  if (context.json()) {
    context.PrintJson(ToObject(plan->destination, *reports));
  } else if (!context.quiet()) {
    for (const SaveReport& report : *reports) context.PrintText(SaveText(report) + "\n");
  }
  return {};
}

constexpr char kCopyNotes[] =
    R"(10..90 is every step from 10 to 90, these two included (see drop).

What the other store has already is shared there. The other store is opened for
writing, this one only read. The first error ends it; what was copied before
stays.

JSON: destination copied[as import])";

}  // namespace

void AddCopy(CLI::App& app, Context& context) {
  auto options = std::make_shared<CopyVerbOptions>();
  CLI::App* verb = app.add_subcommand("copy", "Save checkpoints of this store in another one");
  // CLI11 gives a repeated argument all words, so DEST is here only for the help.
  verb->add_option("STEP", options->words, kStepOrRangeHelp)->required();
  verb->add_option("DEST", "Folder of the other store; the last word");
  verb->add_option("--run", options->run, "The run to save in; without it that of the same name")
      ->type_name("RUN");
  verb->add_option("--on-existing", options->on_existing, kOnExistingHelp)
      ->check(CLI::IsMember({"error", "replace", "fork"}))
      ->capture_default_str();
  verb->add_flag("--init", options->init, "Make the other store if there is none");
  verb->footer(kCopyNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunCopy(context, store, *options); });
}

}  // namespace varve::internal::cli
