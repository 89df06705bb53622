// SPDX-License-Identifier: Apache-2.0
//
// varve untag: removes a tag. The checkpoint stays.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "cli/request.h"
#include "varve/step.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct UntagOptions {
  std::string tag;
  std::string run;  // empty = as the tag says
  bool no_wait = false;
};

Result<RemoveTagRequest> ToRequest(const UntagOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const StepExpr expr, options.run.empty()
                                                  ? ParseStep(options.tag)
                                                  : ParseStepOfRun(options.run, options.tag));
  const auto* tagged = std::get_if<TaggedStep>(&expr.step);
  if (tagged == nullptr) return Status::InvalidArgument("\"" + options.tag + "\" is no tag");
  return RemoveTagRequest{expr.run, tagged->tag};
}

Outcome RunUntag(const Context& context, const UntagOptions& options) {
  const auto request = ToRequest(options);
  if (!request.ok()) return request.status();
  Outcome found = context.Read([&request](const Store& store) -> Outcome {
    return store.FindTag(request->run, request->tag).status();
  });
  if (!found.ok()) return found;
  SubmitReport report;
  Outcome outcome = SubmitRequest(context, *request, options.no_wait, &report);
  if (!outcome.ok()) return outcome;
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"run", request->run},
                                             {"tag", request->tag},
                                             {"applied_by", AppliedByName(report.applied_by)}});
  } else if (!context.quiet()) {
    context.PrintText("tag " + Printable(request->tag) + " of run " + Printable(request->run) +
                      " removed" + AppliedByText(report.applied_by) + "\n");
  }
  return {};
}

constexpr char kUntagNotes[] = "JSON: run tag applied_by";

}  // namespace

void AddUntag(CLI::App& app, Context& context) {
  auto options = std::make_shared<UntagOptions>();
  CLI::App* verb = app.add_subcommand("untag", "Remove a tag; the checkpoint stays");
  verb->add_option("TAG", options->tag, "The tag; as RUN@TAG for another run than main")
      ->required();
  verb->add_option("--run", options->run, "The run whose tag it is")->type_name("RUN");
  AddNoWait(verb, &options->no_wait);
  verb->footer(kUntagNotes);
  context.OnAnything(verb, [&context, options] { return RunUntag(context, *options); });
}

}  // namespace varve::internal::cli
