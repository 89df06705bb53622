// SPDX-License-Identifier: Apache-2.0
//
// Texts that a user types: step expressions, slices, and the parts of retention policies.
#include <cstdlib>

#include "cli/parse.h"
#include "cli/slice.h"
#include "tests/fuzz/targets.h"
#include "varve/retention.h"
#include "varve/step.h"

namespace varve::internal::fuzz {
namespace {

void ReadStepExpression(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const auto expression = ParseStep(exact.text());
  const auto of_run = ParseStepOfRun("main", exact.text());
  if (of_run.ok() && !expression.ok()) std::abort();  // it takes fewer texts
}

void ReadSlice(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const std::vector<int64_t> shape = {4, 1, 300, 7};
  const auto slice = cli::ParseSlice(exact.text(), shape);
  if (!slice.ok()) return;
  if (slice->ranges.size() != shape.size()) std::abort();
  for (size_t i = 0; i < shape.size(); ++i) {
    const Range& range = slice->ranges[i];
    if (range.begin < 0 || range.begin > range.end || range.end > shape[i]) std::abort();
  }
  int64_t elements = 0;
  for (const auto& piece : cli::SplitIntoPieces(DType::kF32, slice->ranges, 64)) {
    elements += cli::NumElementsOf(piece);
  }
  if (elements != cli::NumElementsOf(slice->ranges)) std::abort();
}

// The parts of a policy, one a line. What parses decides about some steps.
void ReadPolicy(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  RetentionPolicy policy;
  std::string_view rest = exact.text();
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (const auto best = cli::ParseKeepBest(line); best.ok()) policy.keep_best.push_back(*best);
    if (const auto within = cli::ParseDuration(line); within.ok()) policy.keep_within = *within;
    if (const auto number = cli::ParseNumber("--keep-last", line); number.ok()) {
      (policy.keep_last == 0 ? policy.keep_last : policy.keep_every) = *number;
    }
    if (line.starts_with("tag ")) policy.keep_tags.emplace_back(line.substr(4));
    cli::ParseByteSize(line).status().IgnoreError();
    cli::ParsePercent(line).status().IgnoreError();
    cli::ParseMetric(line).status().IgnoreError();
    cli::ParseOnExisting(line).status().IgnoreError();
  }
  std::vector<CheckpointInfo> steps(6);
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i].id = {"main", 10 * i};
    steps[i].metrics["loss"] = 1.0 / static_cast<double>(i + 1);
    steps[i].tags = i == 2 ? std::vector<std::string>{"good"} : std::vector<std::string>{};
  }
  const auto decisions = DecideRetention(policy, steps);
  if (!decisions.ok()) return;
  if (decisions->size() != steps.size()) std::abort();
  if (DroppedBy(*decisions).size() >= steps.size()) std::abort();  // one is kept
}

}  // namespace

std::vector<FuzzTarget> CommandTargets() {
  return {{"step_expression",
           ReadStepExpression,
           {"1000", "main@1000", "run/x@latest", "best:loss:max", "tag:good", "side@best:loss"}},
          {"slice", ReadSlice, {"0:10,:,-3:", "1,0,:,2:5", "", "-1,:,1:,:-1"}},
          {"retention_policy",
           ReadPolicy,
           {"3\n1000\nloss:3\n7d\ntag good\n", "accuracy:max:1\n1d12h\n12.5%\n5GiB\n"}}};
}

}  // namespace varve::internal::fuzz
