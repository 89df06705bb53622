// SPDX-License-Identifier: Apache-2.0
#include "varve/name_map.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "base/util.h"

namespace varve {
using namespace internal;

namespace {

// Returns the largest group that a replacement names by $n or $nn. $$ is a dollar.
size_t LargestGroup(std::string_view to) {
  static const std::regex group(R"(\$(\$|\d{1,2}))");
  size_t largest = 0;
  for (std::cregex_iterator it(to.data(), to.data() + to.size(), group), end; it != end; ++it) {
    const std::string number = it->str(1);
    if (number != "$") largest = std::max(largest, static_cast<size_t>(std::stoul(number)));
  }
  return largest;
}

Status WrongPattern(std::string_view pattern, std::string_view why) {
  return Status::InvalidArgument("the expression \"" + std::string(pattern) + "\" " +
                                 std::string(why));
}

}  // namespace

struct NameMap::Regex {
  std::regex pattern;
  std::string to;
  size_t order;
};

Status NameMap::AddPair(std::string_view from, std::string_view to) {
  if (from.empty() || to.empty()) {
    return Status::InvalidArgument("the pair \"" + std::string(from) + "\", \"" + std::string(to) +
                                   "\" has an empty name");
  }
  const auto [it, is_new] =
      pairs_.try_emplace(std::string(from), Pair{std::string(to), pairs_.size() + regexes_.size()});
  if (!is_new && it->second.to != to) {
    return Status::InvalidArgument("\"" + std::string(from) + "\" becomes \"" + it->second.to +
                                   "\" already, and now \"" + std::string(to) + "\"");
  }
  return Status::Ok();
}

Status NameMap::AddRegex(std::string_view pattern, std::string_view to) {
  auto regex = std::make_shared<Regex>();
  try {
    regex->pattern.assign(std::string(pattern), std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    return WrongPattern(pattern, std::string("is wrong: ") + error.what());
  }
  const size_t group = LargestGroup(to);
  if (group > regex->pattern.mark_count()) {
    return WrongPattern(pattern, "has " + std::to_string(regex->pattern.mark_count()) +
                                     " groups, \"" + std::string(to) + "\" names $" +
                                     std::to_string(group));
  }
  regex->to = to;
  regex->order = pairs_.size() + regexes_.size();
  regexes_.push_back(std::move(regex));
  return Status::Ok();
}

Status NameMap::AddFile(const std::filesystem::path& path) {
  std::ifstream lines(path);
  if (!lines) return ErrnoStatus("open", path, errno);
  NameMap with_file = *this;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string where = path.string() + ":" + std::to_string(number);
    std::istringstream words(line);
    std::string from, to, more;
    words >> from >> to >> more;
    if (from.empty() || from[0] == '#') continue;
    if (to.empty() || !more.empty()) {
      return Status::InvalidArgument(where + ": \"" + line + "\", expected two names");
    }
    VARVE_RETURN_IF_ERROR(with_file.AddPair(from, to).WithContext(where));
  }
  if (lines.bad()) return ErrnoStatus("read", path, errno);
  *this = std::move(with_file);
  return Status::Ok();
}

// In a pair, only the name and its dotted prefixes can be the `from`. So only a few are looked up,
// however many pairs there are.
const NameMap::Rule* NameMap::FindPair(std::string_view name) const {
  const Rule* found = nullptr;
  for (size_t end = name.find('.');; end = name.find('.', end + 1)) {
    const auto it = pairs_.find(name.substr(0, end));
    const bool is_first =
        it != pairs_.end() && (found == nullptr || it->second.order < found->second.order);
    if (is_first) found = &*it;
    if (end == std::string_view::npos) return found;
  }
}

std::string NameMap::Apply(std::string_view name) const {
  const Rule* pair = FindPair(name);
  std::match_results<std::string_view::const_iterator> groups;
  for (const auto& regex : regexes_) {
    if (pair != nullptr && pair->second.order < regex->order) break;
    if (std::regex_match(name.begin(), name.end(), groups, regex->pattern)) {
      return groups.format(regex->to);
    }
  }
  if (pair == nullptr) return std::string(name);
  return pair->second.to + std::string(name.substr(pair->first.size()));
}

std::vector<std::string> NameMap::PairsWithoutUse(std::span<const std::string> names) const {
  std::set<const Rule*> used;
  for (const std::string& name : names) used.insert(FindPair(name));
  std::map<size_t, std::string> without;  // by order
  for (const Rule& pair : pairs_) {
    if (!used.contains(&pair)) without.emplace(pair.second.order, pair.first);
  }
  std::vector<std::string> in_order;
  for (auto& [order, from] : without) in_order.push_back(std::move(from));
  return in_order;
}

}  // namespace varve
