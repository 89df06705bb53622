// SPDX-License-Identifier: Apache-2.0
#include "store/group/pin_keeper.h"

#include <algorithm>

#include "base/guarded.h"
#include "base/random_number.h"
#include "base/util.h"

namespace varve::internal {

namespace {

constexpr auto kTimeBetweenLooks = std::chrono::seconds(1);

}  // namespace

uint64_t PinKeeper::LifeIn(const GroupState& state) const {
  return std::max(least_life_, kSavesInALife * state.num_ranks);
}

PinKeeper::~PinKeeper() {
  std::jthread thread;
  {
    const std::lock_guard lock(mutex_);
    thread = std::move(thread_);
  }
}  // joins

Result<uint64_t> PinKeeper::Pin(AttemptId attempt) {
  VARVE_ASSIGN_OR_RETURN(const uint64_t pin, Append(attempt));
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    // Without the thread a pin lasts as long as the pin of a dead process.
    Guarded("starting a thread", [this] {
      thread_ = std::jthread([this](std::stop_token stop) { RenewLoop(stop); });
      return Status::Ok();
    }).IgnoreError();
  }
  held_[next_ticket_] = {attempt, pin};
  return next_ticket_++;
}

Result<uint64_t> PinKeeper::Append(AttemptId attempt) {
  const uint64_t pin = RandomNumber();
  // It proposes in nobody's name, because reading does not depend on epochs.
  VARVE_RETURN_IF_ERROR(
      log_->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
        if (state.pins.contains(pin)) return std::optional<GroupRecord>();
        if (state.FindAttempt(attempt) == nullptr) return Status::NotFound("it was dropped");
        return std::optional(GroupRecord{{}, PinRecord{pin, attempt, LifeIn(state)}});
      }));
  return pin;
}

void PinKeeper::Unpin(uint64_t ticket) {
  uint64_t pin = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto it = held_.find(ticket);
    if (it == held_.end()) return;
    pin = it->second.pin;
    held_.erase(it);
  }
  Remove(pin);
}

void PinKeeper::Remove(uint64_t pin) {
  log_->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
        if (!state.pins.contains(pin)) return std::optional<GroupRecord>();
        return std::optional(GroupRecord{{}, UnpinRecord{pin}});
      })
      .IgnoreError();
}

bool PinKeeper::IsOld(const Held& held) const {
  return log_->With([&](const GroupState& state) {
    const auto it = state.pins.find(held.pin);
    return it == state.pins.end() || it->second.last < state.next + LifeIn(state) / 2;
  });
}

// A record cannot make a pin longer. So a new pin takes its place while the old one still holds.
void PinKeeper::RenewOld() {
  if (!log_->Refresh().ok()) return;  // the next look may find more
  const std::lock_guard lock(mutex_);
  for (auto& [ticket, held] : held_) {
    if (!IsOld(held)) continue;
    const Result<uint64_t> renewed = Append(held.attempt);
    if (!renewed.ok()) continue;  // it was dropped, which reads will notice, or the log fails
    Remove(held.pin);
    held.pin = *renewed;
  }
}

void PinKeeper::RenewLoop(std::stop_token stop) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, kTimeBetweenLooks, [] { return false; });
    if (stop.stop_requested()) return;
    {
      const std::lock_guard guard(mutex_);
      if (held_.empty()) continue;
    }
    Guarded("renewing pins", [this] {
      RenewOld();
      return Status::Ok();
    }).IgnoreError();
  }
}

}  // namespace varve::internal
