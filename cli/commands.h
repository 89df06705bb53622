// SPDX-License-Identifier: Apache-2.0
//
// The verbs: one function each, in cmd_<verb>.cc, that adds its options to the parser and its
// action to the context. Both must outlive the run.
#pragma once

namespace CLI {
class App;
}

namespace varve::cli {

class Context;

void AddInit(CLI::App& app, Context& context);
void AddImport(CLI::App& app, Context& context);
void AddExport(CLI::App& app, Context& context);
void AddRuns(CLI::App& app, Context& context);
void AddSteps(CLI::App& app, Context& context);
void AddLs(CLI::App& app, Context& context);
void AddShow(CLI::App& app, Context& context);
void AddGet(CLI::App& app, Context& context);
void AddDrop(CLI::App& app, Context& context);
void AddReclaim(CLI::App& app, Context& context);
void AddCheck(CLI::App& app, Context& context);
void AddStats(CLI::App& app, Context& context);
void AddVersion(CLI::App& app, Context& context);
void AddCompletion(CLI::App& app, Context& context);
void AddHelp(CLI::App& app, Context& context);

}  // namespace varve::cli
