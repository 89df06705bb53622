// SPDX-License-Identifier: Apache-2.0
#include "tests/store/faults/sweep.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <utility>

namespace varve::internal::testing {
namespace {

constexpr uint64_t kForGood = 1000000;

// Every kind of fault of calls on files whose path holds `path`.
std::vector<FailingIo::Plan> KindsOfFaults(const std::string& path) {
  std::vector<FailingIo::Plan> plans;
  for (const int error : {ENOSPC, EDQUOT, EIO}) {
    plans.push_back({.path = path, .error = error});
    plans.push_back({.path = path, .count = kForGood, .error = error});
    plans.push_back({.path = path, .count = kForGood, .every = 3, .error = error});
  }
  // The call is carried out, and the error comes late.
  plans.push_back({.path = path, .error = EIO, .after = true});
  for (const uint64_t count : {uint64_t{1}, kForGood}) {
    plans.push_back({.path = path, .call = "syncs", .count = count, .error = EIO, .lose = true});
  }
  for (const uint64_t count : {uint64_t{1}, kForGood}) {
    plans.push_back({.path = path, .call = "writes", .count = count, .short_write = true});
  }
  for (const uint64_t count : {uint64_t{2}, kForGood}) {
    plans.push_back(
        {.path = path, .call = "writes", .count = count, .error = ENOSPC, .short_write = true});
  }
  plans.push_back({.path = path, .call = "reads", .error = EIO});
  plans.push_back({.path = path, .call = "reads", .count = kForGood, .error = EIO});
  plans.push_back({.path = path, .call = "reads", .count = kForGood, .every = 3, .error = EIO});
  return plans;
}

std::string ToString(const FailingIo::Plan& plan) {
  std::string text = "call " + std::to_string(plan.first);
  if (!plan.call.empty()) text += " of the " + plan.call;
  if (plan.error != 0) text += ", errno " + std::to_string(plan.error);
  if (plan.count > 1) text += plan.count == kForGood ? ", for good" : ", twice";
  if (plan.every > 1) text += ", every " + std::to_string(plan.every) + "rd";
  if (plan.after) text += ", after it";
  if (plan.short_write) text += ", short";
  if (plan.lose) text += ", what was not synced is lost";
  if (plan.swallow) text += ", taken for done";
  return text;
}

struct Part {
  uint64_t number = 0;
  uint64_t of = 1;
};

Part PartOfSweep() {
  const char* const text = std::getenv("VARVE_SWEEP_PART");
  if (text == nullptr || !IsFullSize()) return {};
  Part part;
  char slash = 0;
  std::istringstream words(text);
  words >> part.number >> slash >> part.of;
  if (words && slash == '/' && part.number < part.of) return part;
  ADD_FAILURE() << "VARVE_SWEEP_PART is " << text << ", expected a part such as 2/8";
  return {};
}

}  // namespace

bool IsFullSize() { return std::getenv("VARVE_FULL_SIZE") != nullptr; }

uint64_t FaultSweepTest::CountCalls(const Scenario& scenario, const std::string& path,
                                    const std::string& call) {
  scenario.start();
  if (HasFatalFailure()) return 0;
  uint64_t calls = 0;
  Status status;
  {
    const FailingIo count({.path = path, .call = call});
    status = scenario.run();
    calls = count.num_calls();
  }
  EXPECT_TRUE(status.ok()) << "without a fault: " << status.ToString();
  EXPECT_EQ(scenario.judge(status), "") << "without a fault";
  return calls;
}

FaultSweepTest::Verdict FaultSweepTest::Sweep(const Scenario& scenario, FailingIo::Plan plan,
                                              uint64_t stride) {
  Verdict verdict;
  for (;; plan.first += stride) {
    scenario.start();
    if (HasFatalFailure()) return verdict;
    std::string failed;
    Status status;
    {
      const FailingIo io(plan);
      status = scenario.run();
      failed = io.failed();
    }
    if (failed.empty()) return verdict;  // there are no more
    ++verdict.faults;
    const std::string fault = scenario.judge(status);
    if (fault.empty()) continue;
    verdict.violation = failed + " (" + ToString(plan) + "): " + status.ToString() + ": " + fault;
    return verdict;
  }
}

void FaultSweepTest::SweepAll(const Scenario& scenario, uint64_t per_kind) {
  const std::string all = folder_.path().string();
  std::vector<FailingIo::Plan> plans = KindsOfFaults(all);
  // The commit itself, and what names it.
  plans.push_back({.path = "MANIFEST", .error = ENOSPC});
  plans.push_back({.path = "MANIFEST", .count = kForGood, .error = EIO});
  plans.push_back({.path = "MANIFEST", .error = EIO, .after = true});
  plans.push_back({.path = "CURRENT", .error = EIO, .after = true});
  const Part part = PartOfSweep();
  uint64_t faults = 0, violations = 0;
  std::map<std::pair<std::string, std::string>, uint64_t> calls_of;
  for (FailingIo::Plan& plan : plans) {
    const auto [it, is_new] = calls_of.try_emplace({plan.path, plan.call});
    if (is_new) it->second = CountCalls(scenario, plan.path, plan.call);
    const uint64_t calls = it->second;
    if (HasFatalFailure() || (is_new && HasNonfatalFailure() && violations == 0)) return;
    const uint64_t stride = IsFullSize() ? part.of : std::max<uint64_t>(1, calls / per_kind);
    plan.first = part.number;
    // Each kind begins elsewhere, so that together they strike many calls.
    if (!IsFullSize()) plan.first = static_cast<uint64_t>(&plan - plans.data()) * 7 % stride;
    const Verdict verdict = Sweep(scenario, plan, stride);
    faults += verdict.faults;
    if (verdict.violation.empty()) {
      // Threads in the background make more calls one time than another.
      const uint64_t sure = calls / 2;
      const uint64_t expected = sure > plan.first ? (sure - plan.first - 1) / stride + 1 : 0;
      EXPECT_GE(verdict.faults, expected) << ToString(plan) << ": of " << calls << " calls";
      continue;
    }
    ++violations;
    ADD_FAILURE() << verdict.violation;
  }
  std::cout << faults << " faults, " << violations << " violations\n";
  EXPECT_GE(faults, 10u);
}

void FaultSweepTest::SweepEach(const Scenario& scenario, FailingIo::Plan plan, uint64_t stride) {
  const Verdict verdict = Sweep(scenario, std::move(plan), IsFullSize() ? 1 : stride);
  EXPECT_EQ(verdict.violation, "");
  std::cout << verdict.faults << " faults, " << (verdict.violation.empty() ? 0 : 1)
            << " violations\n";
  EXPECT_GE(verdict.faults, 10u);
}

void FaultSweepTest::ExpectFound(const Scenario& scenario, const std::string& mistake,
                                 FailingIo::Plan plan) {
  plan.swallow = true;
  const Verdict verdict = Sweep(scenario, plan, 1);
  EXPECT_FALSE(verdict.violation.empty()) << mistake << " is not found in " << verdict.faults;
  if (verdict.violation.empty()) return;
  std::cout << "planted: " << mistake << ": found by fault " << verdict.faults << ": "
            << verdict.violation.substr(0, 400) << "\n";
}

void FaultSweepTest::ExpectHarmless(const Scenario& scenario, const std::string& mistake,
                                    FailingIo::Plan plan) {
  plan.swallow = true;
  const Verdict verdict = Sweep(scenario, plan, 1);
  EXPECT_EQ(verdict.violation, "") << mistake;
  EXPECT_GE(verdict.faults, 1u) << mistake << " is never made";
  std::cout << "planted: " << mistake << ": harmless in " << verdict.faults << "\n";
}

}  // namespace varve::internal::testing
