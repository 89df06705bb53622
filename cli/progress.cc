// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/print.h"

namespace varve::cli {
namespace {

constexpr auto kRedrawEvery = std::chrono::milliseconds(100);
constexpr size_t kBarWidth = 24;
constexpr char kWipeLine[] = "\r\x1b[K";

}  // namespace

ProgressBar::ProgressBar(std::string what, bool quiet)
    : what_(std::move(what)),
      shown_(!quiet && ::isatty(STDERR_FILENO) == 1),
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
  const std::string line = ProgressLine(what_, done_bytes, total_bytes, now - start_);
  std::fprintf(stderr, "%s%s", kWipeLine, line.c_str());
}

std::string ProgressLine(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                         std::chrono::duration<double> elapsed) {
  std::string line = what + " ";
  const uint64_t done = total_bytes == 0 ? done_bytes : std::min(done_bytes, total_bytes);
  if (total_bytes > 0) {
    const double share = static_cast<double>(done) / static_cast<double>(total_bytes);
    const auto filled = static_cast<size_t>(share * kBarWidth);
    char percent[16];
    std::snprintf(percent, sizeof(percent), "%3d %%", static_cast<int>(share * 100));
    line += "[" + std::string(filled, '#') + std::string(kBarWidth - filled, ' ') + "] " + percent +
            "  " + HumanBytes(done) + " of " + HumanBytes(total_bytes);
  } else {
    line += HumanBytes(done);
  }
  return line + "  " + HumanRate(done, elapsed);
}

}  // namespace varve::cli
