// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads, each with a checkpointer over one root. Teardown runs a full check of the root.
#pragma once

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/trainer_hooks/state_fixture.h"
#include "varve/group_checkpointer.h"

namespace varve::internal::testing {

// GCC 12 takes the strings of a designated initialiser with a list for uninitialised (its bug
// 105562).
inline CheckpointerOptions WithReplicas(std::vector<ReplicaRule> replicas) {
  CheckpointerOptions options;
  options.replicas = std::move(replicas);
  return options;
}

class RanksTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (expect_damage_) return;
    const auto check = Store::OpenForReading(root()).value()->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
  }
  bool expect_damage_ = false;
  std::filesystem::path root() const { return folder_.path() / "root"; }

  // Runs a job of this many ranks: `work(rank, checkpointer)` on each.
  void Run(int size, const std::function<void(int, AsyncCheckpointer*)>& work,
           const CheckpointerOptions& options = {}) {
    auto groups = ThreadRanks(size, std::chrono::seconds(60));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        auto checkpointer =
            OpenGroupCheckpointer(root(), groups[static_cast<size_t>(rank)].get(), options);
        ASSERT_TRUE(checkpointer.ok()) << checkpointer.status().ToString();
        work(rank, checkpointer->get());
        (*checkpointer)->Close().IgnoreError();  // tests that expect one say so
      });
    }
  }

 private:
  TempFolder folder_;
};

}  // namespace varve::internal::testing
