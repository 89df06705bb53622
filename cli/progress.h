// SPDX-License-Identifier: Apache-2.0
//
// A progress bar on standard error. It is drawn on a terminal, and silent when piped or with
// --quiet. A terminal that knows no escapes (TERM=dumb) gets a line every five seconds instead.
// Thread rule: Update may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace varve::internal::cli {

class ProgressBar {
 public:
  ProgressBar(std::string what, bool quiet);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();  // wipes the bar away

  // `total_bytes` is 0 while unknown.
  void Update(uint64_t done_bytes, uint64_t total_bytes);

 private:
  enum class Style { kSilent, kLines, kBar };
  static Style StyleOfTerminal(bool quiet);

  const std::string what_;
  const Style style_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point drawn_;  // guarded by mutex_
};

// One line without its newline:
// "import [####    ]  50 %  1.0 GiB of 2.0 GiB  340 MiB/s  4 s left". The bar takes what the rest
// leaves of `columns`. If that is too little, the rate goes first, then the sizes, then the time
// left, then the bar. The time left is unknown in the first second.
std::string ProgressLine(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                         std::chrono::duration<double> elapsed, size_t columns = 80);
// The same without a bar, however long it is.
std::string ProgressText(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                         std::chrono::duration<double> elapsed);

}  // namespace varve::internal::cli
