// SPDX-License-Identifier: Apache-2.0
#include "store/group/attempt_names.h"

#include <charconv>

#include "base/util.h"
#include "store/group/member.h"

namespace varve::internal {

namespace {

std::string NameOf(AttemptId number, const GroupState& state) {
  const std::string text = "attempt " + std::to_string(number);
  const GroupAttempt* const attempt = state.FindAttempt(number);
  if (attempt == nullptr) return text;
  const CheckpointId id = state.NameOf(number).value_or(attempt->id);
  return StepName(id.run, id.step) + " (" + text + ")";
}

}  // namespace

std::string NameAttempts(std::string_view message, const GroupState& state) {
  constexpr std::string_view kStep = "step ";
  std::string named;
  for (size_t at = message.find(kStep); at != message.npos; at = message.find(kStep)) {
    AttemptId number = 0;
    const char* const end = message.data() + message.size();
    const auto [stop, error] = std::from_chars(message.data() + at + kStep.size(), end, number);
    const std::string name = StepName(kMemberRun, number);  // if it is one
    const bool is_step = error == std::errc() && message.substr(at).starts_with(name);
    named += message.substr(0, at);
    named += is_step ? NameOf(number, state) : std::string(kStep);
    message.remove_prefix(at + (is_step ? name.size() : kStep.size()));
  }
  return named += message;
}

Status NameAttempts(const Status& status, const GroupState& state) {
  return status.ok() ? status : Status(status.code(), NameAttempts(status.message(), state));
}

}  // namespace varve::internal
