// SPDX-License-Identifier: Apache-2.0
//
// varve push: sends the store to an object store, also while a writer has it open.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "varve/remote.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct PushVerbOptions {
  std::string url;
  std::vector<std::string> steps;
  bool dry_run = false;
};

nlohmann::ordered_json ToObject(const std::string& url, const PushReport& report) {
  return {{"url", url},
          {"snapshot", report.snapshot},
          {"new", report.is_new},
          {"total_files", report.total_files},
          {"total_bytes", report.total_bytes},
          {"sent_files", report.sent_files},
          {"sent_bytes", report.sent_bytes},
          {"resumed_files", report.resumed_files},
          {"seconds", report.elapsed.count()}};
}

std::string ToText(const PushVerbOptions& options, const PushReport& report) {
  const std::string files = Count(report.sent_files, "file") + ", " + HumanBytes(report.sent_bytes);
  const std::string of =
      " of " + Count(report.total_files, "file") + ", " + HumanBytes(report.total_bytes);
  const std::string resumed = report.resumed_files == 0 ? ""
                                                        : "; an interrupted push had sent " +
                                                              Count(report.resumed_files, "file");
  const std::string url = Printable(options.url);
  if (options.dry_run) return "would send " + files + of + " to " + url + resumed + "\n";
  if (!report.is_new) {
    return url + " has it all already: snapshot " + std::to_string(report.snapshot) + "\n";
  }
  return url + " has snapshot " + std::to_string(report.snapshot) + "; sent " + files + of +
         resumed + " (" + HumanDuration(report.elapsed) + ")\n";
}

Result<PushReport> PushWithProgress(const Context& context, const std::string& path,
                                    const PushVerbOptions& options) {
  ProgressBar progress("push", context.quiet());
  PushOptions push;
  push.dry_run = options.dry_run;
  push.steps = options.steps;
  push.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  return Push(path, options.url, push);
}

Outcome RunPush(const Context& context, const PushVerbOptions& options) {
  std::string path;
  if (Outcome outcome = context.StorePath(&path); !outcome.ok()) return outcome;
  const auto report = PushWithProgress(context, path, options);
  // What is not found is a step, if there is a store.
  const bool is_step = !report.ok() && !options.steps.empty() && Store::OpenForReading(path).ok();
  if (!report.ok()) return is_step ? Outcome(report.status()) : OpenOutcome(report.status());
  if (context.json()) {
    context.PrintJson(ToObject(options.url, *report));
  } else if (!context.quiet()) {
    context.PrintText(ToText(options, *report));
  }
  return {};
}

constexpr char kPushNotes[] =
    R"(The store may be in use, also for writing: what is sent is a state that it had
at some moment during the call. It becomes a snapshot of the URL when all of it
is there. Files that an earlier snapshot has are not sent again. What an
interrupted push has sent is used by the next one. Several may push at once.

With STEPs the snapshot holds only these steps. Later pushes share what the
newest snapshot has, so give pushes of some steps another URL than those of all.

URL is file:///FOLDER, s3://BUCKET/PREFIX?endpoint=URL&region=REGION or
rados://POOL/NAMESPACE. docs/remote.md says where credentials come from.

JSON: url snapshot new total_files total_bytes sent_files sent_bytes
resumed_files seconds)";

}  // namespace

void AddPush(CLI::App& app, Context& context) {
  auto options = std::make_shared<PushVerbOptions>();
  CLI::App* verb = app.add_subcommand("push", "Send the store to an object store, as a snapshot");
  verb->add_option("URL", options->url, "Where to send it")->required();
  verb->add_option("STEP", options->steps, kStepHelp);
  verb->add_flag("--dry-run", options->dry_run, "Only say what would be sent");
  verb->footer(kPushNotes);
  context.OnAnything(verb, [&context, options] { return RunPush(context, *options); });
}

}  // namespace varve::internal::cli
