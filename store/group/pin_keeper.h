// SPDX-License-Identifier: Apache-2.0
//
// The pins of a handle's open readers. A pin ends by itself after some number of records, so that
// the pin of a dead process does not hold its attempt for ever. Pins of open readers are renewed
// before that. Thread rule: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "store/group/group_log.h"
#include "store/group/group_state.h"
#include "varve/result.h"

namespace varve::internal {

class PinKeeper {
 public:
  // A pin lives for this many records, and longer in large groups. It outlives dozens of saves of
  // all ranks, each of which writes one record.
  static constexpr uint64_t kLeastLife = 4096;
  static constexpr uint64_t kSavesInALife = 64;

  // `log` must outlive this.
  explicit PinKeeper(GroupLog* log, uint64_t least_life = kLeastLife)
      : log_(log), least_life_(least_life) {}
  PinKeeper(const PinKeeper&) = delete;
  PinKeeper& operator=(const PinKeeper&) = delete;
  ~PinKeeper();

  // Keeps the attempt in the members until Unpin. Returns the ticket for Unpin. kNotFound: the
  // attempt is gone.
  Result<uint64_t> Pin(AttemptId attempt);
  // If this fails, the pin ends by itself later.
  void Unpin(uint64_t ticket);

  // Renews the pins that have reached half their life. The thread does this once a second.
  void RenewOld();

 private:
  struct Held {
    AttemptId attempt = 0;
    uint64_t pin = 0;  // its number in the log
  };

  uint64_t LifeIn(const GroupState& state) const;
  Result<uint64_t> Append(AttemptId attempt);
  void Remove(uint64_t pin);
  bool IsOld(const Held& held) const;
  void RenewLoop(std::stop_token stop);

  GroupLog* const log_;
  const uint64_t least_life_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::map<uint64_t, Held> held_;  // by ticket, guarded by mutex_
  uint64_t next_ticket_ = 1;       // guarded by mutex_
  std::jthread thread_;            // from the first pin on, guarded by mutex_
};

}  // namespace varve::internal
