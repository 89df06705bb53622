// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of RankGroup over NCCL. It runs on as many ranks as there are GPUs, up to
// four, and on the NCCL of tests/cuda/host_runtime.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/cuda/nccl_launcher.h"
#include "tests/support/temp_folder.h"
#include "tests/trainer_hooks/ranks/rank_scripts.h"

namespace varve::internal::testing {
namespace {

class NcclRanksTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(NcclRanksTest, Conforms) {
  const auto& [name, size] = GetParam();
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus == 0) {
    GTEST_SKIP() << "not run: no GPU here";
  }
  if (size > num_gpus) GTEST_SKIP() << "not run for n > " << num_gpus << ": each rank needs a GPU";
  const RankScript& script = RankScripts().at(name);
  const TempFolder folder;
  // Between the sizes of the suite's messages.
  const NcclOptions options{.piece_bytes = 262144, .timeout = kPatience};
  RunNcclRanks(size, options, [&](int, Result<std::unique_ptr<RankGroup>> group) {
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    script.run(group->get(), folder.path());
  });
}

std::vector<std::tuple<std::string, int>> Cases() {
  std::vector<std::tuple<std::string, int>> cases;
  for (const auto& [name, script] : RankScripts()) {
    if (script.last_is_killed) continue;  // no thread can be
    for (int size = script.min_size; size <= 4; ++size) cases.emplace_back(name, size);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Scripts, NcclRanksTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           return std::get<0>(test.param) + std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace varve::internal::testing
