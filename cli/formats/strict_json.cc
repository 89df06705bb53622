// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/strict_json.h"

#include <array>
#include <set>
#include <string>

namespace varve::formats {
namespace {

constexpr size_t kMaxDepth = 16;

// Follows the parser's events and remembers the keys of every object that is open. `depth` is the
// number of values that are open; a value that is too deep is dropped as it is parsed, so that a
// file of brackets costs no memory.
class StructureGuard {
 public:
  using Event = nlohmann::json::parse_event_t;

  bool OnEvent(int depth, Event event, const nlohmann::json& parsed) {
    if (depth > static_cast<int>(kMaxDepth)) problem_ = "it is nested too deeply";
    if (!problem_.empty()) return false;
    if (event == Event::object_start) keys_[static_cast<size_t>(depth) + 1].clear();
    if (event != Event::key) return true;
    const std::string& key = parsed.get_ref<const std::string&>();
    if (!keys_[static_cast<size_t>(depth)].insert(key).second) {
      problem_ = "the key \"" + key + "\" comes twice";
    }
    return true;
  }

  const std::string& problem() const { return problem_; }

 private:
  std::array<std::set<std::string>, kMaxDepth + 2> keys_;
  std::string problem_;
};

// nlohmann's messages open with a code in brackets, which tells a user nothing.
std::string WithoutCode(const std::string& what) {
  const size_t end = what.find("] ");
  return end == std::string::npos ? what : what.substr(end + 2);
}

}  // namespace

Result<nlohmann::json> ParseStrictJson(std::string_view text) {
  // nlohmann's parser takes a NUL for the end of the text and would not look at what follows.
  if (text.find('\0') != std::string_view::npos) {
    return Status::InvalidArgument("not JSON: it holds a NUL byte");
  }
  StructureGuard guard;
  auto on_event = [&guard](int depth, StructureGuard::Event event, nlohmann::json& parsed) {
    return guard.OnEvent(depth, event, parsed);
  };
  try {
    nlohmann::json parsed = nlohmann::json::parse(text.begin(), text.end(), on_event);
    if (!guard.problem().empty()) return Status::InvalidArgument(guard.problem());
    return parsed;
  } catch (const nlohmann::json::exception& error) {
    return Status::InvalidArgument("not JSON: " + WithoutCode(error.what()));
  }
}

}  // namespace varve::formats
