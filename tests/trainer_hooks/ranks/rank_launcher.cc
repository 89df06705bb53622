// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer_hooks/ranks/rank_launcher.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "tests/support/temp_folder.h"
#include "trainer_hooks/ranks/socket.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

void RunThreads(int size, const RankScript& script) {
  const TempFolder folder;
  std::vector<std::thread> threads;
  for (auto& group : ThreadRanks(size, kPatience)) {
    threads.emplace_back([&, group = std::move(group)] { script.run(group.get(), folder.path()); });
  }
  for (std::thread& thread : threads) thread.join();
}

pid_t StartRank(int rank, int size, uint16_t port, const std::string& name,
                const fs::path& folder) {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "rank_process";
  std::vector<std::string> args{program, "--gtest_filter=*/" + name, "--gtest_brief=1"};
  std::vector<std::string> environment{
      "RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(size),
      "MASTER_ADDR=127.0.0.1",        "MASTER_PORT=" + std::to_string(port),
      "TORCHELASTIC_RUN_ID=" + name,  "VARVE_TEST_FOLDER=" + folder.string()};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> all;
    for (std::string& string : strings) all.push_back(string.data());
    all.push_back(nullptr);
    return all;
  };
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), nullptr, nullptr, pointers(args).data(),
                                pointers(environment).data());
  EXPECT_EQ(error, 0) << "cannot start " << program;
  return pid;
}

void RunProcesses(int size, const std::string& name, const RankScript& script) {
  const TempFolder folder;
  const uint16_t port = FreePort();
  std::vector<pid_t> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(StartRank(r, size, port, name, folder.path()));
  for (int r = 0; r < size; ++r) {
    int status = 0;
    ASSERT_EQ(waitpid(ranks[r], &status, 0), ranks[r]);
    if (script.last_is_killed && r == size - 1) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "rank " << r;
    } else {
      EXPECT_EQ(status, 0) << "rank " << r << " says above what is wrong";
    }
  }
}

}  // namespace

void RunScript(RankKind kind, int size, const std::string& name) {
  const RankScript& script = RankScripts().at(name);
  kind == RankKind::kThreads ? RunThreads(size, script) : RunProcesses(size, name, script);
}

uint16_t FreePort() {
  static std::atomic<uint32_t> next = static_cast<uint32_t>(::getpid()) * 37;
  while (true) {
    const auto port = static_cast<uint16_t>(20000 + next++ % 12000);
    if (Listen({"127.0.0.1", port}).ok()) return port;
  }
}

}  // namespace varve::internal::testing
