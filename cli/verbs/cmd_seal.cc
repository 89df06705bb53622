// SPDX-License-Identifier: Apache-2.0
//
// varve seal: seals a copy of a sealed store.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "varve/seal.h"

namespace varve::internal::cli {
namespace {

Outcome RunSeal(const Context& context) {
  std::string path;
  if (Outcome outcome = context.StorePath(&path); !outcome.ok()) return outcome;
  const Result<std::string> key = context.ReadKey();
  if (!key.ok()) return key.status();
  if (key->empty()) return Outcome::Usage("no key given: use --key-file FILE");
  const Result<SealReport> report = SealStore(path, *key);
  if (!report.ok()) return OpenOutcome(report.status());
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"store", path}, {"sealed_files", report->num_files}});
  } else if (!context.quiet()) {
    context.PrintText("sealed " + Printable(path) + ": " + Count(report->num_files, "table file") +
                      "\n");
  }
  return {};
}

constexpr char kSealNotes[] =
    R"(A store is sealed if it was made with --key-file. A copy of it that was pulled
from an object store has no seal, and a seal can be lost. This compares every
table file with its tag, which takes the key, and then makes the seal. It
cannot tell whether the files belong together, so take a copy that nobody else
could write. No writer may have the store open.

JSON: store sealed_files)";

}  // namespace

void AddSeal(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("seal", "Seal a copy of a sealed store");
  verb->footer(kSealNotes);
  context.OnAnything(verb, [&context] { return RunSeal(context); });
}

}  // namespace varve::internal::cli
