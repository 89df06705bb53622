// SPDX-License-Identifier: Apache-2.0
//
// varve repair: makes a damaged store usable again, and says what is lost.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "varve/repair.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

struct RepairVerbOptions {
  bool dry_run = false;
  bool yes = false;
  std::string from;
};

ordered_json ToObject(const RepairReport& report) {
  ordered_json kept = ordered_json::array(), lost = ordered_json::array();
  for (const RepairReport::KeptStep& step : report.kept) {
    kept.push_back({{"run", step.id.run},
                    {"step", step.id.step},
                    {"from_backup", step.is_from_backup},
                    {"doubts", step.doubts}});
  }
  for (const RepairReport::LostStep& step : report.lost) {
    lost.push_back({{"run", step.id.run},
                    {"step", step.id.step},
                    {"reason", step.reason},
                    {"tensors", step.tensors}});
  }
  return {{"repaired", !report.damaged_store.empty()},
          {"damage", report.damage},
          {"kept", std::move(kept)},
          {"lost", std::move(lost)},
          {"warnings", report.warnings},
          {"damaged_store", report.damaged_store.string()},
          {"seconds", report.elapsed.count()}};
}

std::string LostText(const RepairReport::LostStep& step) {
  constexpr size_t kMaxNamed = 5;
  std::string text = "lost: " + HumanId(step.id) + ": " + step.reason;
  if (!step.tensors.empty()) {
    text += "; cannot be read: ";
    for (size_t i = 0; i < std::min(step.tensors.size(), kMaxNamed); ++i) {
      text += (i > 0 ? ", " : "") + step.tensors[i];
    }
    if (step.tensors.size() > kMaxNamed) {
      text += " and " + Count(step.tensors.size() - kMaxNamed, "other tensor");
    }
  }
  return Printable(text) + "\n";
}

std::string KeptText(const RepairReport::KeptStep& step) {
  std::string text;
  if (step.is_from_backup) text += "from the backup: " + HumanId(step.id) + "\n";
  for (const std::string& doubt : step.doubts) {
    text += "in doubt: " + HumanId(step.id) + ": " + doubt + "\n";
  }
  std::string printable;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    printable += Printable(text.substr(at, end - at)) + "\n";
    at = end + 1;
  }
  return printable;
}

std::string ToText(const std::string& path, const RepairReport& report) {
  if (report.damage.empty()) return Printable(path) + " has no damage; nothing was changed\n";
  std::string text;
  for (const std::string& damage : report.damage) text += "damage: " + Printable(damage) + "\n";
  for (const auto& step : report.lost) text += LostText(step);
  for (const auto& step : report.kept) text += KeptText(step);
  for (const std::string& warning : report.warnings) {
    text += "warning: " + Printable(warning) + "\n";
  }
  const uint64_t all = report.kept.size() + report.lost.size();
  if (report.damaged_store.empty()) {
    return text + "a repair would keep " + CountOf(report.kept.size(), all) + " steps\n";
  }
  return text + "repaired " + Printable(path) + ": kept " + CountOf(report.kept.size(), all) +
         " steps (" + HumanDuration(report.elapsed) + ")\nthe damaged store lies in " +
         Printable(report.damaged_store.string()) + "; remove it when you need it no more\n";
}

// True when something is lost, or may be. Then also --quiet prints the report.
bool HasLoss(const RepairReport& report) {
  const auto is_doubtful = [](const RepairReport::KeptStep& step) { return !step.doubts.empty(); };
  return !report.lost.empty() || !report.warnings.empty() ||
         std::ranges::any_of(report.kept, is_doubtful);
}

// The bar is gone when this returns, so that the report starts on a clean line.
Result<RepairReport> RepairWithProgress(const Context& context, const std::string& path,
                                        const RepairVerbOptions& options) {
  ProgressBar progress("repair", context.quiet());
  RepairOptions repair;
  VARVE_ASSIGN_OR_RETURN(repair.key, context.ReadKey());
  repair.dry_run = !options.yes || options.dry_run;
  repair.from = options.from;
  repair.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  return RepairStore(path, repair);
}

Outcome RunRepair(const Context& context, const RepairVerbOptions& options) {
  std::string path;
  if (Outcome outcome = context.StorePath(&path); !outcome.ok()) return outcome;
  const Result<RepairReport> report = RepairWithProgress(context, path, options);
  if (!report.ok()) return OpenOutcome(report.status());
  const bool is_damaged = !report->damage.empty() && report->damaged_store.empty();
  if (context.json()) {
    context.PrintJson(ToObject(*report));
  } else if (!context.quiet() || HasLoss(*report)) {
    context.PrintText(ToText(path, *report));
  }
  if (!is_damaged) return {};
  if (options.dry_run) {
    return {ExitCode::kDamaged, "the store is damaged, and nothing was changed"};
  }
  return Outcome::Usage("nothing was changed: add --yes to repair the store");
}

constexpr char kRepairNotes[] =
    R"(Every step that can be read whole is saved in a new store, and verified. Then
the new store takes the place of the damaged one, which stays as PATH~damaged.
So the disk needs room for both. Without --yes it only says what would be lost.
A step of which a tensor or an item cannot be read is lost, unless --from has
it. If FORMAT, CURRENT or the manifest of db/ is lost or damaged, it goes by the
copy in spare/. If SYNCED is lost, too, the newest steps may be missing: it
says so, and takes newer steps of --from. No writer may have the store open.

Exit code 3: the store is damaged (--dry-run), or cannot be repaired. A store
without damage stays as it is, exit code 0.

JSON: repaired damage[] kept[run step from_backup doubts[]]
lost[run step reason tensors[]] warnings[] damaged_store seconds)";

}  // namespace

void AddRepair(CLI::App& app, Context& context) {
  auto options = std::make_shared<RepairVerbOptions>();
  CLI::App* verb =
      app.add_subcommand("repair", "Make a damaged store usable again, and say what is lost");
  verb->add_flag("--dry-run", options->dry_run, "Only say what would be kept and lost");
  verb->add_flag("--yes", options->yes, "Do it");
  verb->add_option("--from", options->from, "A backup of the store, for what cannot be read here")
      ->type_name("BACKUP");
  verb->footer(kRepairNotes);
  context.OnAnything(verb, [&context, options] { return RunRepair(context, *options); });
}

}  // namespace varve::internal::cli
