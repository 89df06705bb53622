// SPDX-License-Identifier: Apache-2.0
//
// NameMap renames tensors: those of a checkpoint that is loaded (LoadOptions::rename), or those
// that an export writes (varve export --map).
//
//   varve::NameMap names;
//   VARVE_RETURN_IF_ERROR(names.AddPair("exp_avg.wte", "state.0.exp_avg"));
//   VARVE_RETURN_IF_ERROR(names.AddRegex(R"(model\.(.*))", "$1"));
//   names.Apply("model.ln_f");  // "ln_f"
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "varve/status.h"

namespace varve {

// Turns the names of a checkpoint into those of the target. Rules are tried in the order in which
// they were added, and the first that matches decides. A name that no rule matches stays as it is.
// Thread rule: one thread at a time while rules are added. Then any thread may call Apply.
class NameMap {
 public:
  // Renames the name `from`, and names that start with `from` and a dot: "x_1" renames x_1 and
  // x_1.weight, never x_10. kInvalidArgument: `from` or `to` is empty, or `from` has another `to`
  // already.
  Status AddPair(std::string_view from, std::string_view to);
  // Renames names that an ECMAScript regular expression matches as a whole. $1, $2 ... in `to`
  // stand for its groups. kInvalidArgument says why the expression is wrong, or which group in `to`
  // the expression does not have.
  Status AddRegex(std::string_view pattern, std::string_view to);
  // Adds the pairs of a text file: "from to" on a line, separated by white space. Empty lines and
  // lines that start with '#' are skipped. Errors name file and line, and nothing is added then.
  Status AddFile(const std::filesystem::path& path);

  // Takes a name of the checkpoint, and returns the name that the target has for it.
  std::string Apply(std::string_view name) const;
  // Returns the `from` of each pair that is used for none of `names`, in the order of the pairs. A
  // pair is used for a name if it is the first pair that matches the name. A pair without use may
  // be misspelt, or an earlier pair may hide it.
  std::vector<std::string> PairsWithoutUse(std::span<const std::string> names) const;
  bool empty() const { return pairs_.empty() && regexes_.empty(); }

 private:
  struct Pair {
    std::string to;
    size_t order;  // among all rules
  };
  struct Regex;
  using Rule = std::pair<const std::string, Pair>;    // a pair with its `from`
  const Rule* FindPair(std::string_view name) const;  // null: none matches

  std::map<std::string, Pair, std::less<>> pairs_;     // by `from`
  std::vector<std::shared_ptr<const Regex>> regexes_;  // in their order
};

}  // namespace varve
