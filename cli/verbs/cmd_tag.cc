// SPDX-License-Identifier: Apache-2.0
//
// varve tag: gives a checkpoint a name.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "cli/request.h"

namespace varve::internal::cli {
namespace {

struct TagOptions {
  std::string step;
  std::string tag;
  bool no_wait = false;
};

Outcome RunTag(const Context& context, const TagOptions& options) {
  if (Status status = ValidateTag(options.tag); !status.ok()) return status;
  std::vector<CheckpointId> ids;
  if (Outcome outcome = FindSteps(context, {&options.step, 1}, &ids); !outcome.ok()) return outcome;
  const SetTagRequest request{ids.front(), options.tag};
  SubmitReport report;
  Outcome outcome = SubmitRequest(context, request, options.no_wait, &report);
  if (!outcome.ok()) return outcome;
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"run", request.id.run},
                                             {"step", request.id.step},
                                             {"tag", request.tag},
                                             {"applied_by", AppliedByName(report.applied_by)}});
  } else if (!context.quiet()) {
    context.PrintText("step " + Printable(HumanId(request.id)) + " tagged " +
                      Printable(request.tag) + AppliedByText(report.applied_by) + "\n");
  }
  return {};
}

constexpr char kTagNotes[] = "JSON: run step tag applied_by";

}  // namespace

void AddTag(CLI::App& app, Context& context) {
  auto options = std::make_shared<TagOptions>();
  CLI::App* verb = app.add_subcommand(
      "tag", "Tag a checkpoint; moves the tag if another step of the run has it");
  verb->add_option("STEP", options->step, kStepHelp)->required();
  verb->add_option("TAG", options->tag,
                   "The name: no number, not latest or best, without @ : * and white space")
      ->required();
  AddNoWait(verb, &options->no_wait);
  verb->footer(kTagNotes);
  context.OnAnything(verb, [&context, options] { return RunTag(context, *options); });
}

}  // namespace varve::internal::cli
