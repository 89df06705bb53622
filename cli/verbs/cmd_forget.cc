// SPDX-License-Identifier: Apache-2.0
//
// varve forget: drops the checkpoints of a run that no rule of a policy keeps.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/request.h"
#include "cli/verbs/reports.h"
#include "varve/retention.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

// The policy's decision about each checkpoint, and the state of the store before the drop.
struct Forgetting {
  std::vector<CheckpointInfo> checkpoints;
  std::vector<RetentionDecision> decisions;  // one for each of them
  std::vector<CheckpointId> drop;
  DropReport preview;  // of a dry run, or when nothing is dropped
};

Result<uint64_t> ParseCount(const std::string& option, const std::string& text) {
  if (text.empty()) return uint64_t{0};
  VARVE_ASSIGN_OR_RETURN(const uint64_t count, ParseNumber(option, text));
  if (count == 0) return Status::InvalidArgument(option + ": 0 keeps nothing");
  return count;
}

Result<RetentionPolicy> ToPolicy(const ForgetOptions& options) {
  RetentionPolicy policy;
  VARVE_ASSIGN_OR_RETURN(policy.keep_last, ParseCount("--keep-last", options.keep_last));
  VARVE_ASSIGN_OR_RETURN(policy.keep_every, ParseCount("--keep-every", options.keep_every));
  for (const std::string& text : options.keep_best) {
    VARVE_ASSIGN_OR_RETURN(KeepBest best, ParseKeepBest(text));
    policy.keep_best.push_back(std::move(best));
  }
  if (!options.keep_within.empty()) {
    VARVE_ASSIGN_OR_RETURN(policy.keep_within, ParseDuration(options.keep_within));
  }
  policy.keep_tags = options.keep_tags;
  if (policy.empty()) {
    return Status::InvalidArgument("no policy: say what to keep, such as --keep-last 3");
  }
  return policy;
}

Result<Forgetting> Decide(const Store& store, const RetentionPolicy& policy,
                          const ForgetOptions& options) {
  Forgetting forgetting;
  VARVE_ASSIGN_OR_RETURN(forgetting.checkpoints, store.ListCheckpoints(options.run));
  VARVE_ASSIGN_OR_RETURN(forgetting.decisions, DecideRetention(policy, forgetting.checkpoints));
  forgetting.drop = DroppedBy(forgetting.decisions);
  if (options.dry_run || forgetting.drop.empty()) {
    VARVE_ASSIGN_OR_RETURN(forgetting.preview,
                           PreviewDrop(store, forgetting.drop, options.no_reclaim));
  }
  return forgetting;
}

ordered_json DecisionsJson(const Forgetting& forgetting) {
  ordered_json decisions = ordered_json::array();
  for (size_t i = 0; i < forgetting.decisions.size(); ++i) {
    const RetentionDecision& decision = forgetting.decisions[i];
    decisions.push_back({{"run", decision.id.run},
                         {"step", decision.id.step},
                         {"created", IsoTime(forgetting.checkpoints[i].created)},
                         {"keep", decision.keep},
                         {"reasons", decision.reasons}});
  }
  return decisions;
}

std::string DecisionsText(const Forgetting& forgetting) {
  Table table({{"step", Table::Align::kRight}, {"saved"}, {""}, {"reasons"}});
  for (size_t i = 0; i < forgetting.decisions.size(); ++i) {
    const RetentionDecision& decision = forgetting.decisions[i];
    table.AddRow({HumanId(decision.id), HumanTime(forgetting.checkpoints[i].created),
                  decision.keep ? "keep" : "drop", Join(decision.reasons, ", ")});
  }
  return table.ToString();
}

ordered_json ToObject(const Forgetting& forgetting, const SubmitReport& report, bool dry_run) {
  ordered_json object = ToJson(report);
  object["dry_run"] = dry_run;
  object["decisions"] = DecisionsJson(forgetting);
  return object;
}

ordered_json DryRunJson(const Forgetting& forgetting) {
  SubmitReport would_be;
  would_be.drop = forgetting.preview;
  return ToObject(forgetting, would_be, /*dry_run=*/true);
}

std::string WouldBeText(const Forgetting& forgetting, bool no_reclaim) {
  std::string text =
      "would drop " + CountOf(forgetting.drop.size(), forgetting.decisions.size()) + " steps\n";
  return forgetting.drop.empty() ? text : text + PreviewText(forgetting.preview, no_reclaim);
}

Outcome PrintDryRun(const Context& context, const Forgetting& forgetting, bool no_reclaim) {
  if (context.json()) {
    context.PrintJson(DryRunJson(forgetting));
  } else {
    context.PrintText(DecisionsText(forgetting) + WouldBeText(forgetting, no_reclaim));
  }
  return PreviewOutcome(forgetting.preview);
}

void PrintReport(const Context& context, const Forgetting& forgetting, const SubmitReport& report) {
  context.Warn(report.drop.warnings);
  if (context.json()) {
    context.PrintJson(ToObject(forgetting, report, /*dry_run=*/false));
  } else if (!context.quiet()) {
    const size_t num_kept = forgetting.decisions.size() - forgetting.drop.size();
    context.PrintText("keeps " + CountOf(num_kept, forgetting.decisions.size()) + " steps; " +
                      (forgetting.drop.empty() ? "nothing to drop\n" : DropText(report)));
  }
}

Outcome RunForget(const Context& context, const ForgetOptions& options) {
  const Result<RetentionPolicy> policy = ToPolicy(options);
  if (!policy.ok()) return policy.status();
  Forgetting forgetting;
  Outcome decided = context.Read([&](const Store& store) -> Outcome {
    auto result = Decide(store, *policy, options);
    if (!result.ok()) return result.status();
    forgetting = *std::move(result);
    return {};
  });
  if (!decided.ok()) return decided;
  if (options.dry_run) return PrintDryRun(context, forgetting, options.no_reclaim);
  SubmitReport report;
  report.drop.reclaim = forgetting.preview.reclaim;
  if (!forgetting.drop.empty()) {
    const DropRequest request{.ids = forgetting.drop, .reclaim = !options.no_reclaim};
    Outcome outcome = SubmitRequest(context, request, options.no_wait, &report);
    if (!outcome.ok()) return outcome;
  }
  PrintReport(context, forgetting, report);
  return {};
}

void AddRules(CLI::App* verb, ForgetOptions* options) {
  verb->add_option("--keep-last", options->keep_last, "Keep the N newest steps")->type_name("N");
  verb->add_option("--keep-every", options->keep_every, "Keep the steps that are multiples of N")
      ->type_name("N");
  verb->add_option("--keep-best", options->keep_best,
                   "Keep the N steps with the lowest (:max: highest) value of a metric; may be "
                   "repeated")
      ->type_name("METRIC[:max|:min]:N")
      ->allow_extra_args(false);
  verb->add_option("--keep-within", options->keep_within,
                   "Keep what was saved at most this long before the newest step: 90s, 45m, 12h, "
                   "7d, 4w, 1y, 1d12h")
      ->type_name("TIME");
  verb->add_option("--keep-tag", options->keep_tags,
                   "Keep steps with this tag, or with * all that have one; may be repeated")
      ->type_name("TAG")
      ->allow_extra_args(false);
}

constexpr char kForgetNotes[] =
    R"(Keeps what at least one rule keeps, drops the rest, and gives the space back.
Without a rule, or with rules that keep nothing, it drops nothing and says so.
--dry-run counts exactly the bytes of chunks that no other step needs. What
steps that stay are predicted from is not among them. It tells what comes back
at once from what lies in files that are mostly alive: that comes back with
later drops, or by reclaim --all. NaN is never the best value, and of equal
values the newest wins.

JSON: dropped[run step] freed_bytes rewritten_bytes pending_bytes
disk_bytes_before disk_bytes_after applied_by dry_run
decisions[run step created keep reasons]. With --dry-run, dropped, freed_bytes
(at once) and pending_bytes (later) say what would be)";

}  // namespace

Result<ordered_json> ForetellForget(const Store& store, ForgetOptions options) {
  options.dry_run = true;
  VARVE_ASSIGN_OR_RETURN(const RetentionPolicy policy, ToPolicy(options));
  VARVE_ASSIGN_OR_RETURN(const Forgetting forgetting, Decide(store, policy, options));
  return DryRunJson(forgetting);
}

void AddForget(CLI::App& app, Context& context) {
  auto options = std::make_shared<ForgetOptions>();
  CLI::App* verb =
      app.add_subcommand("forget", "Drop the checkpoints of a run that no --keep rule keeps");
  AddRules(verb, options.get());
  verb->add_option("--run", options->run, "The run to look at")
      ->type_name("RUN")
      ->capture_default_str();
  verb->add_flag("--dry-run", options->dry_run,
                 "Only print each step with keep or drop and the reasons, and the bytes that "
                 "would come back");
  verb->add_flag("--no-reclaim", options->no_reclaim, "Leave the space to a later reclaim");
  AddNoWait(verb, &options->no_wait);
  verb->footer(kForgetNotes);
  context.OnAnything(verb, [&context, options] { return RunForget(context, *options); });
}

}  // namespace varve::internal::cli
