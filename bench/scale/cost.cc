// SPDX-License-Identifier: Apache-2.0
#include "bench/scale/cost.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bench/measure.h"
#include "bench/peak_memory.h"
#include "bench/scale/file_calls.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

constexpr char kHelper[] = "--measure-program";

struct Io {
  double bytes_read = 0;
  double bytes_written = 0;
  double calls = 0;
};

// What the system has counted for a process: rchar, wchar, syscr and syscw come first.
Io ReadIo(const std::string& process) {
  std::ifstream file("/proc/" + process + "/io");
  std::array<double, 4> values{};
  std::string key;
  for (double& value : values) file >> key >> value;
  if (!file) Fail("cannot read /proc/" + process + "/io");
  return {values[0], values[1], values[2] + values[3]};
}

double CpuSeconds(const struct rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double CpuSecondsOfThis() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return CpuSeconds(usage);
}

// The kernel counts the memory of the parent as the child's, which is why this one must be small.
int RunAndReport(const char* report, bool is_quiet, char** command) {
  Cost cost;
  int status = 0;
  cost.seconds = Seconds([&] {
    const pid_t child = ::fork();
    if (child == 0) {
      const int null = ::open("/dev/null", O_WRONLY);
      ::dup2(null, STDOUT_FILENO);
      if (is_quiet) ::dup2(null, STDERR_FILENO);
      ::execv(command[0], command);
      ::_exit(127);
    }
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
    const Io io = ReadIo(std::to_string(child));
    struct rusage usage {};
    ::wait4(child, &status, 0, &usage);
    cost.bytes_read = io.bytes_read;
    cost.bytes_written = io.bytes_written;
    cost.calls = io.calls;
    cost.memory_bytes = static_cast<double>(usage.ru_maxrss) * 1024;
    cost.cpu_seconds = CpuSeconds(usage);
  });
  std::ofstream out(report);
  out.precision(17);
  out << cost.seconds << ' ' << cost.bytes_read << ' ' << cost.bytes_written << ' ' << cost.calls
      << ' ' << cost.memory_bytes << ' ' << cost.cpu_seconds << '\n';
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int Start(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  if (::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv.data(), environ) != 0) {
    Fail("cannot start this program again");
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

Cost Cost::Each(double n) const {
  return {seconds / n, cpu_seconds / n, bytes_read / n, bytes_written / n, calls / n, memory_bytes};
}

void Cost::TakeMost(const Cost& other) {
  seconds = std::max(seconds, other.seconds);
  cpu_seconds = std::max(cpu_seconds, other.cpu_seconds);
  bytes_read = std::max(bytes_read, other.bytes_read);
  bytes_written = std::max(bytes_written, other.bytes_written);
  calls = std::max(calls, other.calls);
  memory_bytes = std::max(memory_bytes, other.memory_bytes);
}

Cost MeasureCost(const std::function<void()>& call) {
  Cost cost;
  const auto used = ResetPeakMemory();
  const Io before = ReadIo("self");
  const uint64_t file_calls = NumFileCalls();
  const double cpu_seconds = CpuSecondsOfThis();
  cost.seconds = Seconds(call);
  cost.cpu_seconds = CpuSecondsOfThis() - cpu_seconds;
  cost.calls = static_cast<double>(NumFileCalls() - file_calls);
  const Io after = ReadIo("self");
  cost.bytes_read = after.bytes_read - before.bytes_read;
  cost.bytes_written = after.bytes_written - before.bytes_written;
  cost.calls += after.calls - before.calls;
  if (used.has_value()) {
    cost.memory_bytes = static_cast<double>(PeakMemoryBytes()) - static_cast<double>(*used);
  }
  return cost;
}

Cost RunProgram(const std::vector<std::string>& command, int allowed) {
  const std::string report =
      std::filesystem::temp_directory_path() / ("scale_bench-" + std::to_string(::getpid()));
  std::vector<std::string> arguments = {"scale_bench", kHelper, report,
                                        allowed == 0 ? "" : "quiet"};
  arguments.insert(arguments.end(), command.begin(), command.end());
  const int code = Start(arguments);
  if (code != 0 && code != allowed)
    Fail(command[0] + " " + command[1] + " ended with " + std::to_string(code));
  Cost cost;
  std::ifstream in(report);
  in >> cost.seconds >> cost.bytes_read >> cost.bytes_written >> cost.calls >> cost.memory_bytes >>
      cost.cpu_seconds;
  if (!in) Fail("cannot read " + report);
  std::filesystem::remove(report);
  return cost;
}

int MainOfHelper(int argc, char** argv) {
  if (argc < 5 || std::strcmp(argv[1], kHelper) != 0) return -1;
  return RunAndReport(argv[2], *argv[3] != '\0', argv + 4);
}

}  // namespace varve::internal::bench
