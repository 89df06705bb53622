// SPDX-License-Identifier: Apache-2.0
#include "store/remote/heartbeat.h"

#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>

#include "base/guarded.h"
#include "varve/stop.h"

namespace varve::internal {

namespace {

constexpr std::string_view kPrefix = "beat-";
constexpr size_t kPage = 1000;

std::string NameOf(uint64_t attempt, uint64_t number) {
  char text[64];
  std::snprintf(text, sizeof(text), "beat-%016llx-%010llu",
                static_cast<unsigned long long>(attempt), static_cast<unsigned long long>(number));
  return text;
}

std::optional<uint64_t> AttemptOf(std::string_view name) {
  constexpr size_t kDigits = 16;
  uint64_t attempt = 0;
  if (name.size() <= kPrefix.size() + kDigits) return std::nullopt;
  const char* const first = name.data() + kPrefix.size();
  const auto [stop, error] = std::from_chars(first, first + kDigits, attempt, 16);
  return error == std::errc() && stop == first + kDigits ? std::optional(attempt) : std::nullopt;
}

Status VisitBeats(const Objects& objects,
                  const std::function<void(uint64_t, const std::string&)>& visit) {
  for (std::string after;;) {
    VARVE_ASSIGN_OR_RETURN(const auto page, objects.ListRecords(kPrefix, after, kPage));
    for (const std::string& name : page) {
      if (const auto attempt = AttemptOf(name)) visit(*attempt, name);
    }
    if (page.size() < kPage) return Status::Ok();
    after = page.back();
  }
}

}  // namespace

Heartbeat::Heartbeat(Objects* objects, uint64_t attempt, std::chrono::milliseconds interval)
    : objects_(objects),
      attempt_(attempt),
      interval_(interval),
      thread_([this](std::stop_token stop) { Run(stop); }) {}

// Does not wait for a server that is down. The last beat is left to the collector.
Heartbeat::~Heartbeat() { ended_ = true; }

// A beat that fails is left out. If many fail, the push may count as dead, and starts again.
void Heartbeat::Run(const std::stop_token& stop) {
  const StopScope scope(&ended_);
  for (uint64_t number = 1;; ++number) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, stop, interval_, [] { return false; });
    }
    if (stop.stop_requested()) return;
    Guarded("a beat", [&] {
      objects_->CreateRecord(NameOf(attempt_, number), "").status().IgnoreError();
      return number > 1 ? objects_->RemoveRecord(NameOf(attempt_, number - 1)) : Status::Ok();
    }).IgnoreError();
  }
}

Result<std::map<uint64_t, std::string>> ReadBeats(const Objects& objects) {
  std::map<uint64_t, std::string> beats;
  VARVE_RETURN_IF_ERROR(VisitBeats(
      objects, [&](uint64_t attempt, const std::string& name) { beats[attempt] = name; }));
  return beats;
}

void RemoveBeats(Objects* objects, const std::function<bool(uint64_t)>& is_open) {
  std::vector<std::string> names;
  VisitBeats(*objects, [&](uint64_t attempt, const std::string& name) {
    if (!is_open(attempt)) names.push_back(name);
  }).IgnoreError();
  for (const std::string& name : names) objects->RemoveRecord(name).IgnoreError();
}

}  // namespace varve::internal
