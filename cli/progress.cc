// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "cli/print.h"

namespace varve::internal::cli {
namespace {

constexpr auto kRedrawEvery = std::chrono::milliseconds(100);
constexpr size_t kBarWidth = 24;
constexpr char kWipeLine[] = "\r\x1b[K";

// A terminal that understands kWipeLine.
bool CanDraw() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && *term != '\0' &&
         std::strcmp(term, "dumb") != 0;
}

// The last column stays empty, because some terminals go to the next line there.
size_t Columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 79;
  return size.ws_col - 1u;
}

}  // namespace

ProgressBar::ProgressBar(std::string what, bool quiet)
    : what_(std::move(what)),
      shown_(!quiet && CanDraw()),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_) {}

ProgressBar::~ProgressBar() {
  if (shown_ && drawn_ != start_) std::fputs(kWipeLine, stderr);
}

void ProgressBar::Update(uint64_t done_bytes, uint64_t total_bytes) {
  if (!shown_) return;
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (now - drawn_ < kRedrawEvery) return;
  drawn_ = now;
  const std::string line = ProgressLine(what_, done_bytes, total_bytes, now - start_, Columns());
  std::fprintf(stderr, "%s%s", kWipeLine, line.c_str());
}

std::string ProgressLine(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                         std::chrono::duration<double> elapsed, size_t columns) {
  const uint64_t done = total_bytes == 0 ? done_bytes : std::min(done_bytes, total_bytes);
  const std::string rate = "  " + HumanRate(done, elapsed);
  std::vector<std::string> lines;  // from long to short
  if (total_bytes > 0) {
    const double share = static_cast<double>(done) / static_cast<double>(total_bytes);
    const auto filled = static_cast<size_t>(share * kBarWidth);
    char percent[16];
    std::snprintf(percent, sizeof(percent), "%3d %%", static_cast<int>(share * 100));
    const std::string bar = what + " [" + std::string(filled, '#') +
                            std::string(kBarWidth - filled, ' ') + "] " + percent;
    const std::string sizes = "  " + HumanBytes(done) + " of " + HumanBytes(total_bytes);
    lines = {bar + sizes + rate, bar + sizes, bar, what + " " + percent, percent};
  } else {
    lines = {what + " " + HumanBytes(done) + rate, what + " " + HumanBytes(done), HumanBytes(done)};
  }
  for (const std::string& line : lines) {
    if (line.size() <= columns) return line;
  }
  return {};
}

}  // namespace varve::internal::cli
