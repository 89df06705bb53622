// SPDX-License-Identifier: Apache-2.0
//
// Name patterns. `*` stands for any run of characters: it may be empty, and may have slashes and
// dots. Every other character stands for itself. Functions are stateless.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"

namespace varve::internal {

// True when `text` may stand for several names. A plain name should exist, but a pattern may match
// nothing.
bool IsGlob(std::string_view text);

bool MatchesGlob(std::string_view glob, std::string_view text);

// Returns what each `*` stands for, or nullopt when the text does not match. Where there is a
// choice, an earlier star takes as little as it can.
std::optional<std::vector<std::string_view>> CaptureGlob(std::string_view glob,
                                                         std::string_view text);

// A rule that turns names into others, such as "model.*=master.*". The stars on the right take what
// those on the left stood for, in order.
class RenameRule {
 public:
  // kInvalidArgument unless `rule` is LEFT=RIGHT with the same number of stars on both sides.
  static Result<RenameRule> Parse(std::string_view rule);
  // Returns the new name, or nullopt when the left side does not match.
  std::optional<std::string> Apply(std::string_view name) const;

 private:
  RenameRule(std::string_view left, std::string_view right) : left_(left), right_(right) {}

  std::string left_;
  std::string right_;
};

}  // namespace varve::internal
