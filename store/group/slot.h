// SPDX-License-Identifier: Apache-2.0
//
// A slot is a named file of the log for each member. In it the member's rank says that its part of
// an attempt is durable. No two ranks write the same slot, so none waits for another. The next save
// replaces it. A slot is only a message to rank 0, which commits. Losing a slot with its host is no
// worse than never writing it, so a slot is never synced. A slot counts if it was written for the
// nonce of this very attempt, by the current member of the rank. A slot of an earlier attempt, or
// of a process that slept through a later start, does not count.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/group/group_state.h"
#include "store/group/record_log.h"
#include "varve/result.h"

namespace varve::internal {

// An attempt, as its slots name it.
struct SlotKey {
  uint64_t seed = 0;  // of the group
  AttemptId attempt = 0;
  uint64_t nonce = 0;
};

Status WriteSlot(RecordLog* log, const SlotKey& key, const Author& author, const GroupPart& part);
// Returns nullopt when the part is not there, or when the slot still has the given `stamp`.
Result<std::optional<GroupPart>> ReadSlot(const RecordLog& log, const SlotKey& key,
                                          const Author& author, std::string* stamp = nullptr);

// Gathers the parts of an attempt as they come. Thread rule: one thread at a time.
class SlotGatherer {
 public:
  // `log` must outlive it.
  SlotGatherer(const RecordLog* log, const SlotKey& key) : log_(log), key_(key) {}

  // Adds the part of the rank that gathers, so that its slot is not read.
  void Add(uint32_t rank, const GroupPart& part) { parts_[rank] = part; }
  // True when the parts of all ranks are there. It waits for one rank after the other, so that a
  // look in vain looks at one file only.
  Result<bool> Gather(const GroupState& state);
  // Returns those of `ranks` whose parts are not there.
  std::vector<uint32_t> Missing(const GroupState& state, const std::vector<uint32_t>& ranks);
  // Returns the parts by rank. Each is of the rank's member at the time it was gathered.
  const std::map<uint32_t, GroupPart>& parts() const { return parts_; }

 private:
  Result<bool> Look(const GroupState& state, uint32_t rank, std::string* stamp);

  const RecordLog* const log_;
  const SlotKey key_;
  std::map<uint32_t, GroupPart> parts_;
  uint64_t gathered_at_ = 0;  // the state of the last look, and for it ......
  uint32_t first_ = 0;        // ... the first rank whose part was missing, and from here on ...
  Author awaited_;            // ... who that is ...
  std::string stamp_;         // ... and its slot
};

// Returns what a commit says about gathered parts.
GatheredParts SumOf(const std::map<uint32_t, GroupPart>& parts);

inline constexpr std::string_view kSlotsFolder = "slots";
std::string SlotName(MemberId member);

}  // namespace varve::internal
