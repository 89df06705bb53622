// SPDX-License-Identifier: Apache-2.0
#include "varve/load.h"

namespace varve {
namespace {

constexpr Strictness kAll[] = {Strictness::kRaiseAll, Strictness::kLogUnexpected,
                               Strictness::kAssumeOkUnexpected, Strictness::kIgnoreAll};

}  // namespace

std::string_view StrictnessName(Strictness strictness) {
  switch (strictness) {
    case Strictness::kRaiseAll:
      return "raise_all";
    case Strictness::kLogUnexpected:
      return "log_unexpected";
    case Strictness::kAssumeOkUnexpected:
      return "assume_ok_unexpected";
    case Strictness::kIgnoreAll:
      return "ignore_all";
  }
  return "?";
}

Result<Strictness> ParseStrictness(std::string_view name) {
  for (const Strictness strictness : kAll) {
    if (StrictnessName(strictness) == name) return strictness;
  }
  return Status::InvalidArgument("strictness \"" + std::string(name) +
                                 "\", expected raise_all, log_unexpected, assume_ok_unexpected or "
                                 "ignore_all");
}

}  // namespace varve
