// SPDX-License-Identifier: Apache-2.0
//
// varve check: verifies a store and changes nothing.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "cli/verbs/reports.h"
#include "varve/store.h"

namespace varve::internal::cli {

nlohmann::ordered_json ToJson(const CheckReport& report) {
  auto damaged = nlohmann::ordered_json::array();
  for (const CheckpointId& id : report.damaged_steps) {
    damaged.push_back({{"run", id.run}, {"step", id.step}});
  }
  return {{"ok", report.ok()},           {"errors", report.errors},
          {"warnings", report.warnings}, {"damaged_steps", std::move(damaged)},
          {"steps", report.num_steps},   {"tensors", report.num_tensors},
          {"chunks", report.num_chunks}, {"bytes_read", report.bytes_read},
          {"sealed", report.is_sealed},  {"sealed_files", report.num_sealed_files}};
}

namespace {

struct CheckVerbOptions {
  bool read_data = false;
  std::string subset;
};

Result<CheckOptions> ToCheckOptions(const CheckVerbOptions& options) {
  CheckOptions check;
  check.read_data = options.read_data || !options.subset.empty();
  if (!options.subset.empty()) {
    VARVE_ASSIGN_OR_RETURN(check.read_data_fraction, ParsePercent(options.subset));
  }
  return check;
}

std::string ToText(const CheckReport& report, bool read_data) {
  std::string text;
  for (const std::string& error : report.errors) text += Printable(error) + "\n";
  for (const std::string& each : report.warnings) text += "warning: " + Printable(each) + "\n";
  text += "checked " + Count(report.num_steps, "step") + ", " +
          Count(report.num_tensors, "tensor") + ", " + Count(report.num_chunks, "chunk");
  if (read_data) text += "; read and verified " + HumanBytes(report.bytes_read);
  text += report.ok() ? ": no errors\n" : "\n";
  if (report.num_sealed_files > 0) {
    text += "compared " + Count(report.num_sealed_files, "table file") + " with the seal\n";
  }
  return text;
}

// The bar is gone when this returns, so that the report starts on a clean line.
Result<CheckReport> CheckWithProgress(const Context& context, const Store& store,
                                      CheckOptions options) {
  ProgressBar progress("check", context.quiet());
  options.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  return store.Check(options);
}

Outcome RunCheck(const Context& context, const Store& store, const CheckVerbOptions& options) {
  const Result<CheckOptions> check = ToCheckOptions(options);
  if (!check.ok()) return check.status();
  const Result<CheckReport> report = CheckWithProgress(context, store, *check);
  if (!report.ok()) return report.status();
  if (context.json()) {
    context.PrintJson(ToJson(*report));
  } else if (!context.quiet() || !report->ok()) {
    context.PrintText(ToText(*report, check->read_data));
  } else {
    context.Warn(report->warnings);
  }
  if (report->is_sealed && report->num_sealed_files == 0 && report->ok()) {
    context.Note("the store is sealed, and no key was given: nobody knows whether it was changed");
  }
  if (report->ok()) return {};
  return {ExitCode::kDamaged, "the store is damaged: " + Count(report->errors.size(), "error")};
}

constexpr char kCheckNotes[] =
    R"(Without an option it verifies records, counts and that each chunk is there. It
changes nothing. Exit code 3 means that the store is damaged. Then it names each
step that cannot be read whole. A chunk that is there and damaged is only found
with --read-data. docs/operations.md says what to do.

With --key-file, it also compares the manifest and all table files of a sealed
store with their seal. So nobody without the key has changed them.

A warning does not change the exit code: nothing is lost, but a file is missing
or damaged that would show or mend a later damage (SYNCED, or a copy in spare/).

JSON: ok errors[] warnings[] damaged_steps[run step] steps tensors chunks
bytes_read sealed sealed_files)";

}  // namespace

void AddCheck(CLI::App& app, Context& context) {
  auto options = std::make_shared<CheckVerbOptions>();
  CLI::App* verb = app.add_subcommand("check", "Verify the store");
  verb->add_flag("--read-data", options->read_data, "Read every chunk and verify its digest");
  verb->add_option("--read-data-subset", options->subset,
                   "Read only this share of the chunks, chosen at random: 5%")
      ->type_name("PERCENT");
  verb->footer(kCheckNotes);
  context.OnReadingWithKey(
      verb, [&context, options](const Store& store) { return RunCheck(context, store, *options); });
}

}  // namespace varve::internal::cli
