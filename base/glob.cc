// SPDX-License-Identifier: Apache-2.0
#include "base/glob.h"

#include <algorithm>
#include <cstddef>

namespace varve::internal {

namespace {

// Returns the pieces between the stars. There is one piece more than there are stars.
std::vector<std::string_view> SplitAtStars(std::string_view glob) {
  std::vector<std::string_view> pieces;
  for (size_t star = glob.find('*'); star != std::string_view::npos; star = glob.find('*')) {
    pieces.push_back(glob.substr(0, star));
    glob.remove_prefix(star + 1);
  }
  pieces.push_back(glob);
  return pieces;
}

}  // namespace

bool IsGlob(std::string_view text) { return text.find('*') != std::string_view::npos; }

bool MatchesGlob(std::string_view glob, std::string_view text) {
  return CaptureGlob(glob, text).has_value();
}

// The first piece must start the text and the last must end it. Each piece between may take the
// first place where it occurs, because if any choice of places matches, the leftmost does.
std::optional<std::vector<std::string_view>> CaptureGlob(std::string_view glob,
                                                         std::string_view text) {
  std::vector<std::string_view> captures;
  const std::vector<std::string_view> pieces = SplitAtStars(glob);
  if (pieces.size() == 1) return glob == text ? std::optional(captures) : std::nullopt;
  const std::string_view first = pieces.front();
  const std::string_view last = pieces.back();
  if (text.size() < first.size() + last.size() || !text.starts_with(first) ||
      !text.ends_with(last)) {
    return std::nullopt;
  }
  std::string_view rest = text.substr(first.size(), text.size() - first.size() - last.size());
  for (size_t i = 1; i + 1 < pieces.size(); ++i) {
    const size_t found = rest.find(pieces[i]);
    if (found == std::string_view::npos) return std::nullopt;
    captures.push_back(rest.substr(0, found));
    rest.remove_prefix(found + pieces[i].size());
  }
  captures.push_back(rest);
  return captures;
}

Result<RenameRule> RenameRule::Parse(std::string_view rule) {
  const size_t equals = rule.find('=');
  if (equals == std::string_view::npos) {
    return Status::InvalidArgument("\"" + std::string(rule) + "\" is not of the form LEFT=RIGHT");
  }
  const std::string_view left = rule.substr(0, equals);
  const std::string_view right = rule.substr(equals + 1);
  if (std::count(left.begin(), left.end(), '*') != std::count(right.begin(), right.end(), '*')) {
    return Status::InvalidArgument("\"" + std::string(rule) +
                                   "\" does not have as many * on the left as on the right");
  }
  return RenameRule(left, right);
}

std::optional<std::string> RenameRule::Apply(std::string_view name) const {
  const auto captures = CaptureGlob(left_, name);
  if (!captures) return std::nullopt;
  const std::vector<std::string_view> pieces = SplitAtStars(right_);
  std::string renamed(pieces[0]);
  for (size_t i = 1; i < pieces.size(); ++i) {
    renamed += (*captures)[i - 1];
    renamed += pieces[i];
  }
  return renamed;
}

}  // namespace varve::internal
