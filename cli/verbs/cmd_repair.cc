// SPDX-License-Identifier: Apache-2.0
//
// varve repair: makes a damaged store usable again, and says what is lost.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
  bool keep_partial = false;
  std::string from;
};

ordered_json ToObject(const RepairReport& report) {
  ordered_json kept = ordered_json::array(), lost = ordered_json::array();
  ordered_json partial = ordered_json::array();
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
                    {"tensors", step.tensors},
                    {"has_readable_tensors", step.has_readable_tensors}});
  }
  for (const RepairReport::PartialStep& step : report.partial) {
    partial.push_back({{"run", step.id.run},
                       {"step", step.id.step},
                       {"kept_in", step.run},
                       {"kept_tensors", step.kept_tensors},
                       {"lost_tensors", step.lost_tensors},
                       {"other_losses", step.other_losses},
                       {"from_backup", step.is_from_backup},
                       {"doubts", step.doubts}});
  }
  return {{"repaired", !report.damaged_store.empty()},
          {"damage", report.damage},
          {"kept", std::move(kept)},
          {"lost", std::move(lost)},
          {"partial", std::move(partial)},
          {"warnings", report.warnings},
          {"damaged_store", report.damaged_store.string()},
          {"seconds", report.elapsed.count()}};
}

// The first names of a list, and how many there are besides.
std::string Names(const std::vector<std::string>& tensors) {
  constexpr size_t kMaxNamed = 5;
  std::string text;
  for (size_t i = 0; i < std::min(tensors.size(), kMaxNamed); ++i) {
    text += (i > 0 ? ", " : "") + tensors[i];
  }
  if (tensors.size() > kMaxNamed) {
    text += " and " + Count(tensors.size() - kMaxNamed, "other tensor");
  }
  return text;
}

std::string LostText(const RepairReport::LostStep& step) {
  std::string text = "lost: " + HumanId(step.id) + ": " + step.reason;
  if (!step.tensors.empty()) text += "; cannot be read: " + Names(step.tensors);
  return Printable(text) + "\n";
}

std::string PartialText(const RepairReport::PartialStep& step) {
  const std::string id = HumanId({step.run, step.id.step});
  std::string text =
      Printable("kept in part: " + HumanId(step.id) + " as " + id + ": " +
                Count(step.kept_tensors.size(), "tensor") + ": " + Names(step.kept_tensors)) +
      "\n";
  if (!step.lost_tensors.empty()) {
    text += Printable("lost in part: " + id + ": " + Count(step.lost_tensors.size(), "tensor") +
                      ": " + Names(step.lost_tensors)) +
            "\n";
  }
  for (const std::string& loss : step.other_losses) {
    text += Printable("lost in part: " + id + ": " + loss) + "\n";
  }
  if (step.is_from_backup) text += Printable("from the backup: " + id) + "\n";
  for (const std::string& doubt : step.doubts) {
    text += Printable("in doubt: " + id + ": " + doubt) + "\n";
  }
  return text;
}

// What to do about lost steps that can be kept in part. Empty: there is nothing to do.
std::string Hint(const Context& context, const RepairReport& report) {
  const auto count = static_cast<uint64_t>(
      std::ranges::count_if(report.lost, &RepairReport::LostStep::has_readable_tensors));
  if (count == 0 || !report.partial.empty()) return "";
  const std::string key =
      context.key_file().empty() ? "" : " --key-file " + Printable(context.key_file());
  const std::string who = report.damaged_store.empty()
                              ? "--keep-partial"
                              : "varve -s " + Printable(report.damaged_store.string()) + key +
                                    " repair --keep-partial --yes";
  return "hint: some tensors of " + Count(count, "lost step") + " can be read. " + who +
         " keeps them in another run\n";
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

std::string ToText(const Context& context, const std::string& path, const RepairReport& report) {
  if (report.damage.empty()) return Printable(path) + " has no damage; nothing was changed\n";
  std::string text;
  for (const std::string& damage : report.damage) text += "damage: " + Printable(damage) + "\n";
  for (const auto& step : report.lost) text += LostText(step);
  for (const auto& step : report.partial) text += PartialText(step);
  for (const auto& step : report.kept) text += KeptText(step);
  for (const std::string& warning : report.warnings) {
    text += "warning: " + Printable(warning) + "\n";
  }
  text += Hint(context, report);
  std::string kept =
      CountOf(report.kept.size(), report.kept.size() + report.lost.size()) + " steps";
  if (!report.partial.empty())
    kept += ", and " + std::to_string(report.partial.size()) + " in part";
  if (report.damaged_store.empty()) return text + "a repair would keep " + kept + "\n";
  return text + "repaired " + Printable(path) + ": kept " + kept + " (" +
         HumanDuration(report.elapsed) + ")\nthe damaged store lies in " +
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
  repair.keep_partial = options.keep_partial;
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
    context.PrintText(ToText(context, path, *report));
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
it. With --keep-partial, what can be read of a lost step RUN@STEP is kept as
RUN~damaged@STEP (RUN~damaged2 if there is such a run). --from is the folder of
a backup, or the URL of the store in an object store, of which it takes the
newest snapshot. If FORMAT, CURRENT or the manifest of db/ is lost or damaged,
it goes by the copy in spare/. If SYNCED is lost, too, the newest steps may be
missing: it says so, and takes newer steps of --from. No writer may have the
store open.

Exit code 3: the store is damaged (--dry-run), or cannot be repaired. A store
without damage stays as it is, exit code 0.

JSON: repaired damage[] kept[run step from_backup doubts[]]
lost[run step reason tensors[] has_readable_tensors]
partial[run step kept_in kept_tensors[] lost_tensors[] other_losses[]
from_backup doubts[]] warnings[] damaged_store seconds)";

}  // namespace

void AddRepair(CLI::App& app, Context& context) {
  auto options = std::make_shared<RepairVerbOptions>();
  CLI::App* verb =
      app.add_subcommand("repair", "Make a damaged store usable again, and say what is lost");
  verb->add_flag("--dry-run", options->dry_run, "Only say what would be kept and lost");
  verb->add_flag("--yes", options->yes, "Do it");
  verb->add_flag("--keep-partial", options->keep_partial,
                 "Keep the readable tensors of lost steps in a run RUN~damaged");
  verb->add_option("--from", options->from,
                   "A backup or a snapshot of the store, for what cannot be read here")
      ->type_name("PATH|URL");
  verb->footer(kRepairNotes);
  context.OnAnything(verb, [&context, options] { return RunRepair(context, *options); });
}

}  // namespace varve::internal::cli
