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

// What has become of a rank that failed, and what becomes of the others.
void Report(int rank, int status) {
  const std::string end = WIFEXITED(status)
                              ? "ended with exit code " + std::to_string(WEXITSTATUS(status))
                              : "was killed by signal " + std::to_string(WTERMSIG(status));
  std::fprintf(stderr, "gpt_train: rank %d %s; killing those that are left in %u s\n", rank,
               end.c_str(), kGraceSeconds);
}

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
    if (first_failure != 0) continue;
    first_failure = ExitCode(status);
    if (first_failure == 0) continue;
    alarm(kGraceSeconds);
    const bool is_preempted = first_failure == EX_TEMPFAIL;  // as all of them are
    if (is_preempted || num_ended == spawned.size()) continue;
    Report(static_cast<int>(it - spawned.begin()), status);
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
