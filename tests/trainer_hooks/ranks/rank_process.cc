// SPDX-License-Identifier: Apache-2.0
//
// One rank that is a process. Each script of the conformance suite is a test. Its group is made
// from the environment: of sockets or, with VARVE_TEST_RANKS=mpi, of MPI. In $VARVE_TEST_FOLDER the
// ranks share a folder for each script.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#ifdef VARVE_TEST_WITH_MPI
#include <mpi.h>
#endif

#include <csignal>
#include <cstdlib>

#include "tests/trainer_hooks/ranks/rank_scripts.h"
#include "varve/mpi_ranks.h"

namespace varve::internal::testing {
namespace {

bool IsOverMpi() {
  const char* kind = std::getenv("VARVE_TEST_RANKS");
  return kind != nullptr && std::string(kind) == "mpi";
}

// While it lives MPI can be used, also by groups that come after a failed one.
class MpiSession {
 public:
  MpiSession() {
#ifdef VARVE_TEST_WITH_MPI
    if (IsOverMpi()) MPI_Init(nullptr, nullptr);
#endif
  }
  ~MpiSession() {
#ifdef VARVE_TEST_WITH_MPI
    if (IsOverMpi()) MPI_Finalize();
#endif
  }
};

Result<std::unique_ptr<RankGroup>> MakeGroup(std::chrono::milliseconds timeout) {
  if (IsOverMpi()) return MpiRanks({.communicator = {}, .timeout = timeout});
  VARVE_ASSIGN_OR_RETURN(SocketRanksOptions options, SocketRanksFromEnv());
  options.timeout = timeout;
  return SocketRanks(options);
}

class RankProcess : public ::testing::TestWithParam<std::string> {};

TEST_P(RankProcess, Runs) {
  const char* root = std::getenv("VARVE_TEST_FOLDER");
  ASSERT_NE(root, nullptr) << "VARVE_TEST_FOLDER is not set";
  const auto folder = std::filesystem::path(root) / GetParam();
  std::filesystem::create_directories(folder);

  const RankScript& script = RankScripts().at(GetParam());
  auto group = MakeGroup(kPatience);
  ASSERT_TRUE(group.ok()) << group.status().ToString();
  if ((*group)->size() < script.min_size) GTEST_SKIP() << "for more ranks";
  script.run(group->get(), folder);
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, script] : RankScripts()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Scripts, RankProcess, ::testing::ValuesIn(Names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves no ranks behind
  ::testing::InitGoogleTest(&argc, argv);
  const varve::internal::testing::MpiSession session;
  return RUN_ALL_TESTS();
}
