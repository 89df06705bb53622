// SPDX-License-Identifier: Apache-2.0
#include "gpt/launch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "varve/mpi_ranks.h"

namespace gpt {
namespace {

// The others end by themselves when one has failed, unless they wait for it in a save.
constexpr unsigned kGraceSeconds = 10;

std::vector<pid_t> spawned;  // 0 for a rank that has ended: its number may be another's then

void PassOn(int signal) {
  for (const pid_t pid : spawned) {
    if (pid != 0) kill(pid, signal);
  }
}
void KillAll(int /*signal*/) { PassOn(SIGKILL); }

varve::Status ErrnoStatus(const std::string& what) {
  return varve::Status::IOError("cannot " + what + ": " + std::strerror(errno));
}

// A port of the loopback that nobody uses now.
varve::Result<uint16_t> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) return ErrnoStatus("make a socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool is_bound = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const auto status = is_bound ? varve::Status::Ok() : ErrnoStatus("find a free port");
  close(fd);
  if (!status.ok()) return status;
  return ntohs(address.sin_port);
}

void SetVariable(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

// 128 and the signal's number when one ended it, as shells have it.
int ExitCode(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void Report(int rank, int status, bool ends_others) {
  const std::string end = WIFEXITED(status)
                              ? "ended with exit code " + std::to_string(WEXITSTATUS(status))
                              : "was killed by signal " + std::to_string(WTERMSIG(status));
  const std::string others =
      ends_others ? "; killing those that are left in " + std::to_string(kGraceSeconds) + " s" : "";
  std::fprintf(stderr, "gpt_train: rank %d %s%s\n", rank, end.c_str(), others.c_str());
}

// Names the first rank that fails, and each that a signal has killed: it cannot say so itself, and
// need not be found first.
int AwaitRanks() {
  int first_failure = 0;
  for (size_t num_ended = 0; num_ended < spawned.size();) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    if (ended < 0) continue;  // a signal came
    const auto it = std::find(spawned.begin(), spawned.end(), ended);
    if (it == spawned.end()) continue;  // no rank
    *it = 0;
    ++num_ended;
    const int exit_code = ExitCode(status);
    const bool is_first = first_failure == 0 && exit_code != 0;
    if (is_first) {
      first_failure = exit_code;
      alarm(kGraceSeconds);
    }
    const bool is_error = is_first && exit_code != EX_TEMPFAIL;  // which is a preemption
    if (!is_error && !WIFSIGNALED(status)) continue;
    const bool ends_others = is_first && num_ended < spawned.size();
    Report(static_cast<int>(it - spawned.begin()), status, ends_others);
  }
  return first_failure;
}

}  // namespace

varve::Result<std::optional<int>> Spawn(int num_ranks) {
  VARVE_ASSIGN_OR_RETURN(const uint16_t port, FreePort());
  const pid_t parent = getpid();
  SetVariable("WORLD_SIZE", std::to_string(num_ranks));
  SetVariable("MASTER_ADDR", "127.0.0.1");
  SetVariable("MASTER_PORT", std::to_string(port));
  SetVariable("TORCHELASTIC_RUN_ID", "gpt_train " + std::to_string(parent));
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) {
      PassOn(SIGKILL);
      return ErrnoStatus("fork a rank");
    }
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives what started it
      if (getppid() != parent) std::raise(SIGKILL);
      SetVariable("RANK", std::to_string(rank));
      return std::optional<int>();
    }
    spawned.push_back(pid);
  }
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) std::signal(signal, PassOn);
  std::signal(SIGALRM, KillAll);
  return std::optional<int>(AwaitRanks());
}

varve::Result<std::unique_ptr<varve::RankGroup>> JoinRanks() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr) {
    return varve::MpiRanks();
  }
  if (std::getenv("WORLD_SIZE") == nullptr) return std::unique_ptr<varve::RankGroup>();
  VARVE_ASSIGN_OR_RETURN(const auto options, varve::SocketRanksFromEnv());
  return varve::SocketRanks(options);
}

}  // namespace gpt
