// SPDX-License-Identifier: Apache-2.0
//
// A disk that is full or fails at each call of an operation in turn. failing_io.h says which calls.
// A scenario starts an operation, runs it while calls fail, and judges what it has left. The faults
// come once, stay for good, or come and go. Writes are short. Syncs lose what they should have
// kept.
//
// With VARVE_FULL_SIZE=1 every call fails in every way. With VARVE_SWEEP_PART=2/8 as well, SweepAll
// lets only the calls fail whose number leaves 2 when divided by 8. Then eight processes make one
// sweep. Otherwise only some calls fail. One thread at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/store/store_state.h"
#include "tests/support/failing_io.h"

namespace varve::internal::testing {

struct Scenario {
  std::function<void()> start;  // makes what the operation starts from. No call fails meanwhile
  std::function<Status()> run;  // the operation. The judge may call it again
  // Returns what is wrong after the operation has said `status`. Empty = nothing. No call fails any
  // more.
  std::function<std::string(const Status& status)> judge;
};

bool IsFullSize();

class FaultSweepTest : public InternalsTest {
 protected:
  void SetUp() override { expect_damage_ = true; }  // each round judges what it leaves

  // Lets every kind of fault strike the operation, below `folder_`. It must be clean without any.
  // At the small size each kind strikes `per_kind` calls.
  void SweepAll(const Scenario& scenario, uint64_t per_kind = 1);
  // The same for one kind. It strikes every call, but at the small size each `stride`th.
  void SweepEach(const Scenario& scenario, FailingIo::Plan plan, uint64_t stride = 1);
  // The program takes calls that fail for done. The judge must reject what one of them leaves.
  void ExpectFound(const Scenario& scenario, const std::string& mistake, FailingIo::Plan plan);
  // The mistake does no harm, because varve itself finds it before it says ok.
  void ExpectHarmless(const Scenario& scenario, const std::string& mistake, FailingIo::Plan plan);

 private:
  struct Verdict {
    uint64_t faults = 0;
    std::string violation;
  };
  Verdict Sweep(const Scenario& scenario, FailingIo::Plan plan, uint64_t stride);
  // Runs the scenario once without a fault.
  uint64_t CountCalls(const Scenario& scenario, const std::string& path, const std::string& call);
};

}  // namespace varve::internal::testing
