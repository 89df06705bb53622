// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "varve/async_checkpointer.h"

namespace varve {
namespace {

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string Seconds(double seconds) { return Format("%.3f s", seconds); }

std::string Share(uint64_t part, uint64_t whole) {
  return Format("%.1f %%",
                whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

std::string ToString(const SaveStats& m) {
  const std::string step = "step " + std::to_string(m.step);
  if (m.skipped) return step + " was not saved: the save before it was still under way";
  if (m.durable_seconds == 0) return step + " was not saved: " + m.status.ToString();
  std::string text = step + " saved: " + std::to_string(m.stored_bytes) + " bytes stored for " +
                     std::to_string(m.changed_bytes) + " changed, " +
                     Share(m.changed_bytes, m.logical_bytes) + " of " +
                     std::to_string(m.logical_bytes) + "; stall " + Seconds(m.stall_seconds) +
                     ", durable after " + Seconds(m.durable_seconds);
  if (m.busy_wait_seconds >= 0.0005) {
    text += "; waited " + Seconds(m.busy_wait_seconds) + " for the save before";
  }
  if (m.staging_wait_seconds >= 0.0005) {
    text += "; waited " + Seconds(m.staging_wait_seconds) + " as only " +
            std::to_string(m.staged_bytes) + " bytes fit the staging budget";
  }
  if (m.waited_bytes > 0) {
    text += "; waited for " + std::to_string(m.waited_bytes) +
            " bytes from devices, whose staging was full";
  }
  if (m.attempts > 1) text += "; " + std::to_string(m.attempts) + " attempts";
  if (m.dropped_steps > 0) text += "; dropped " + std::to_string(m.dropped_steps) + " old";
  for (const std::string& warning : m.warnings) text += "; warning: " + warning;
  if (!m.status.ok()) text += "; then " + m.status.ToString();
  return text;
}

}  // namespace varve
