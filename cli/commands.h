// SPDX-License-Identifier: Apache-2.0
//
// The verbs. Each is one function in cmd_<verb>.cc that adds its options to the parser and its
// action to the context. Parser and context must outlive the run.
#pragma once

#include <string>

#include "cli/outcome.h"

namespace CLI {
class App;
}

namespace varve::internal::cli {

class Context;

void AddInit(CLI::App& app, Context& context);
void AddImport(CLI::App& app, Context& context);
void AddExport(CLI::App& app, Context& context);
void AddRuns(CLI::App& app, Context& context);
void AddSteps(CLI::App& app, Context& context);
void AddLs(CLI::App& app, Context& context);
void AddShow(CLI::App& app, Context& context);
void AddGet(CLI::App& app, Context& context);
void AddDiff(CLI::App& app, Context& context);
void AddLog(CLI::App& app, Context& context);
void AddTag(CLI::App& app, Context& context);
void AddUntag(CLI::App& app, Context& context);
void AddMetric(CLI::App& app, Context& context);
void AddFork(CLI::App& app, Context& context);
void AddRewind(CLI::App& app, Context& context);
void AddDrop(CLI::App& app, Context& context);
void AddForget(CLI::App& app, Context& context);
void AddReclaim(CLI::App& app, Context& context);
void AddCopy(CLI::App& app, Context& context);
void AddBackup(CLI::App& app, Context& context);
void AddPush(CLI::App& app, Context& context);
void AddPull(CLI::App& app, Context& context);
void AddCheck(CLI::App& app, Context& context);
void AddRepair(CLI::App& app, Context& context);
void AddSeal(CLI::App& app, Context& context);
void AddStats(CLI::App& app, Context& context);
void AddView(CLI::App& app, Context& context);
void AddVersion(CLI::App& app, Context& context);
void AddCompletion(CLI::App& app, Context& context);
void AddHelp(CLI::App& app, Context& context);

// What the verbs version and help print, as JSON with --json. Without `about`, it is the help of
// the whole command `app`.
void PrintVersion(const Context& context);
Outcome PrintHelp(const Context& context, const CLI::App& app, const std::string& about);

}  // namespace varve::internal::cli
