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
constexpr auto kLineEvery = std::chrono::seconds(5);
constexpr size_t kMinBar = 8;
constexpr size_t kMaxBar = 24;
constexpr char kWipeLine[] = "\r\x1b[K";

// The last column stays empty, because some terminals go to the next line there.
size_t Columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 79;
  return size.ws_col - 1u;
}

// What a line says, with the spaces before each part. An empty part is unknown.
struct Parts {
  std::string percent;
  std::string sizes;
  std::string rate;
  std::string left;
  double share = 0;
};

// The time left, as if the rest went at the mean rate of what is done.
std::string TimeLeft(double share, std::chrono::duration<double> elapsed) {
  constexpr std::chrono::hours kTooLong(1000);
  if (share <= 0 || share >= 1 || elapsed < std::chrono::seconds(1)) return {};
  const std::chrono::duration<double> exact = elapsed * ((1 - share) / share);
  if (exact >= kTooLong) return {};
  const auto left = std::chrono::ceil<std::chrono::seconds>(exact);
  const bool is_short = left < std::chrono::minutes(1);
  return "  " + (is_short ? std::to_string(left.count()) + " s" : HumanDuration(left)) + " left";
}

Parts Describe(uint64_t done_bytes, uint64_t total_bytes, std::chrono::duration<double> elapsed) {
  Parts parts;
  if (total_bytes == 0) {
    parts.sizes = " " + HumanBytes(done_bytes);
    parts.rate = "  " + HumanRate(done_bytes, elapsed);
    return parts;
  }
  const uint64_t done = std::min(done_bytes, total_bytes);
  parts.share = static_cast<double>(done) / static_cast<double>(total_bytes);
  char percent[16];
  std::snprintf(percent, sizeof(percent), " %3d %%", static_cast<int>(parts.share * 100));
  parts.percent = percent;
  parts.sizes = "  " + HumanBytes(done) + " of " + HumanBytes(total_bytes);
  parts.rate = "  " + HumanRate(done, elapsed);
  parts.left = TimeLeft(parts.share, elapsed);
  return parts;
}

std::string DrawBar(double share, size_t width) {
  const auto filled = static_cast<size_t>(share * static_cast<double>(width));
  return " [" + std::string(filled, '#') + std::string(width - filled, ' ') + "]";
}

}  // namespace

ProgressBar::Style ProgressBar::StyleOfTerminal(bool quiet) {
  if (quiet || ::isatty(STDERR_FILENO) != 1) return Style::kSilent;
  const char* term = std::getenv("TERM");
  const bool is_dumb = term == nullptr || *term == '\0' || std::strcmp(term, "dumb") == 0;
  return is_dumb ? Style::kLines : Style::kBar;
}

ProgressBar::ProgressBar(std::string what, bool quiet)
    : what_(std::move(what)),
      style_(StyleOfTerminal(quiet)),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_) {}

ProgressBar::~ProgressBar() {
  if (style_ == Style::kBar && drawn_ != start_) std::fputs(kWipeLine, stderr);
}

void ProgressBar::Update(uint64_t done_bytes, uint64_t total_bytes) {
  if (style_ == Style::kSilent) return;
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (style_ == Style::kLines) {
    if (now - drawn_ < kLineEvery) return;
    drawn_ = now;
    const std::string text = ProgressText(what_, done_bytes, total_bytes, now - start_);
    std::fprintf(stderr, "%s\n", text.c_str());
    return;
  }
  if (now - drawn_ < kRedrawEvery) return;
  drawn_ = now;
  const std::string line = ProgressLine(what_, done_bytes, total_bytes, now - start_, Columns());
  std::fprintf(stderr, "%s%s", kWipeLine, line.c_str());
}

std::string ProgressLine(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                         std::chrono::duration<double> elapsed, size_t columns) {
  const Parts parts = Describe(done_bytes, total_bytes, elapsed);
  std::vector<std::string> lines;  // from long to short
  if (total_bytes == 0) {
    lines = {what + parts.sizes + parts.rate, what + parts.sizes, parts.sizes.substr(1)};
  } else {
    for (const std::string& tail : {parts.sizes + parts.rate + parts.left, parts.sizes + parts.left,
                                    parts.left, std::string()}) {
      const std::string rest = parts.percent + tail;
      const size_t used = what.size() + DrawBar(0, 0).size() + rest.size();
      if (used + kMinBar > columns) continue;
      return what + DrawBar(parts.share, std::min(columns - used, kMaxBar)) + rest;
    }
    lines = {what + parts.percent, parts.percent.substr(1)};
  }
  for (const std::string& line : lines) {
    if (line.size() <= columns) return line;
  }
  return {};
}

std::string ProgressText(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                         std::chrono::duration<double> elapsed) {
  const Parts parts = Describe(done_bytes, total_bytes, elapsed);
  return what + parts.percent + parts.sizes + parts.rate + parts.left;
}

}  // namespace varve::internal::cli
