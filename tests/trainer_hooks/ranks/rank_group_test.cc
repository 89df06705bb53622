// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite (rank_scripts.h) over threads and processes. mpi_ranks_test.py runs it over
// MPI.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/trainer_hooks/ranks/rank_launcher.h"

namespace varve::internal::testing {
namespace {

class RankGroupTest : public ::testing::TestWithParam<std::tuple<RankKind, int, std::string>> {};

TEST_P(RankGroupTest, Conforms) {
  const auto& [kind, size, script] = GetParam();
  RunScript(kind, size, script);
}

// Returns only cases that make sense. A script that needs more ranks, or ranks that can be killed,
// is left out.
std::vector<std::tuple<RankKind, int, std::string>> Cases() {
  std::vector<std::tuple<RankKind, int, std::string>> cases;
  for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
    for (const auto& [name, script] : RankScripts()) {
      if (kind == RankKind::kThreads && script.last_is_killed) continue;
      for (int size = script.min_size; size <= 5; ++size) cases.emplace_back(kind, size, name);
    }
  }
  return cases;
}

std::string NameOf(const ::testing::TestParamInfo<RankGroupTest::ParamType>& test) {
  const auto& [kind, size, script] = test.param;
  return script + (kind == RankKind::kThreads ? "OfThreads" : "OfProcesses") + std::to_string(size);
}

INSTANTIATE_TEST_SUITE_P(Scripts, RankGroupTest, ::testing::ValuesIn(Cases()), NameOf);

}  // namespace
}  // namespace varve::internal::testing
