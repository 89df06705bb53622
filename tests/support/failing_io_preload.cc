// SPDX-License-Identifier: Apache-2.0
//
// Brings FailingIo into any program by LD_PRELOAD. The plan is in the environment: VARVE_FAIL_PATH,
// VARVE_FAIL_CALL, VARVE_FAIL_FIRST, VARVE_FAIL_COUNT, VARVE_FAIL_EVERY, VARVE_FAIL_ERRNO,
// VARVE_FAIL_SHORT. What failed last is written to the file VARVE_FAIL_REPORT when the program
// ends. An empty file means that nothing failed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "tests/support/failing_io.h"

namespace {

std::string Text(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

uint64_t Number(const char* name) { return std::strtoull(Text(name).c_str(), nullptr, 10); }

class Preloaded {
 public:
  Preloaded()
      : io_({.path = Text("VARVE_FAIL_PATH"),
             .call = Text("VARVE_FAIL_CALL"),
             .first = Number("VARVE_FAIL_FIRST"),
             .count = Number("VARVE_FAIL_COUNT"),
             .every = std::max<uint64_t>(1, Number("VARVE_FAIL_EVERY")),
             .error = static_cast<int>(Number("VARVE_FAIL_ERRNO")),
             .short_write = Number("VARVE_FAIL_SHORT") != 0}) {}

  ~Preloaded() {
    const std::string failed = io_.failed();
    const int fd =
        ::open(Text("VARVE_FAIL_REPORT").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return;
    // The report lies outside of the plan's path. A report that is missing fails the test.
    if (::write(fd, failed.data(), failed.size()) < 0) ::unlink(Text("VARVE_FAIL_REPORT").c_str());
    ::close(fd);
  }

 private:
  varve::internal::testing::FailingIo io_;
} preloaded;

}  // namespace
