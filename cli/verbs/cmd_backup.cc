// SPDX-License-Identifier: Apache-2.0
//
// varve backup: makes or updates a consistent copy of the store, also while a writer has it open.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "varve/backup.h"

namespace varve::internal::cli {
namespace {

struct BackupVerbOptions {
  std::string destination;
  bool read_data = false;
};

nlohmann::ordered_json ToObject(const std::string& destination, const BackupReport& report) {
  return {{"destination", destination},          {"steps", report.num_steps},
          {"copied_files", report.copied_files}, {"copied_bytes", report.copied_bytes},
          {"total_bytes", report.total_bytes},   {"seconds", report.elapsed.count()}};
}

std::string ToText(const std::string& destination, const BackupReport& report) {
  return Printable(destination) + " holds " + Count(report.num_steps, "step") + " in " +
         HumanBytes(report.total_bytes) + "; copied " + Count(report.copied_files, "file") + ", " +
         HumanBytes(report.copied_bytes) + " (" + HumanDuration(report.elapsed) + ")\n";
}

Result<BackupReport> BackUpWithProgress(const Context& context, const std::string& path,
                                        const BackupVerbOptions& options) {
  ProgressBar progress("backup", context.quiet());
  BackupOptions backup;
  backup.read_data = options.read_data;
  backup.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  return BackUp(path, options.destination, backup);
}

Outcome RunBackup(const Context& context, const BackupVerbOptions& options) {
  std::string path;
  if (Outcome outcome = context.StorePath(&path); !outcome.ok()) return outcome;
  const auto report = BackUpWithProgress(context, path, options);
  if (!report.ok()) return OpenOutcome(report.status());
  for (const std::string& file : report->mended_files) {
    context.Note(file + " was damaged in the copy, and was copied again: it is sound in the store");
  }
  if (context.json()) {
    context.PrintJson(ToObject(options.destination, *report));
  } else if (!context.quiet()) {
    context.PrintText(ToText(options.destination, *report));
  }
  return {};
}

constexpr char kBackupNotes[] =
    R"(The store may be in use, also for writing: the copy is a state that it had at
some moment during the call, and it is checked before it replaces an earlier
copy: its records, and the checksums of all files that are new in it. With
--read-data every chunk is decoded, too. A file that is damaged in the store is
never copied. The copy is a store like any other. Once it has been written to,
it is not brought up to date any more: its own steps would be lost. The root of
a group is not backed up; copy takes steps out of it.

JSON: destination steps copied_files copied_bytes total_bytes seconds)";

}  // namespace

void AddBackup(CLI::App& app, Context& context) {
  auto options = std::make_shared<BackupVerbOptions>();
  CLI::App* verb = app.add_subcommand(
      "backup", "Make a verified copy of the store, or bring an earlier one up to date");
  verb->add_option("DEST", options->destination,
                   "Folder of the copy: new, empty, or an earlier copy")
      ->required();
  verb->add_flag("--read-data", options->read_data, "Also read every chunk of the copy");
  verb->footer(kBackupNotes);
  context.OnAnything(verb, [&context, options] { return RunBackup(context, *options); });
}

}  // namespace varve::internal::cli
