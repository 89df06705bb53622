// SPDX-License-Identifier: Apache-2.0
//
// Slots: a named file of the log for each member, in which its rank says that its part of an
// attempt is durable. No two ranks write the same one, so none waits for another, and the next save
// replaces it. It is only a message to rank 0, who commits: what is lost with the host need not
// have been there, so a slot is never synced. What makes a slot count: it was written for the nonce
// of this very attempt, by the rank's member of now. One of an earlier attempt, or of a process
// that slept through a later start, is none.
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

namespace varve {

// An attempt as its slots are bound to it.
struct SlotKey {
  uint64_t seed = 0;  // of the group
  AttemptId attempt = 0;
  uint64_t nonce = 0;
};

Status WriteSlot(RecordLog* log, const SlotKey& key, const Author& author, const GroupPart& part);
// nullopt: its part is not there, or, with a `stamp`, the slot has not changed since.
Result<std::optional<GroupPart>> ReadSlot(const RecordLog& log, const SlotKey& key,
                                          const Author& author, std::string* stamp = nullptr);

// Gathers the parts of an attempt as they come. Thread rule: one thread at a time.
class SlotGatherer {
 public:
  // `log` must outlive it.
  SlotGatherer(const RecordLog* log, const SlotKey& key) : log_(log), key_(key) {}

  // Whether the parts of all ranks are there. Waits for one rank after the other, so that a look in
  // vain is a look at one file.
  Result<bool> Gather(const GroupState& state);
  // Those of `ranks` whose parts are not there.
  std::vector<uint32_t> Missing(const GroupState& state, const std::vector<uint32_t>& ranks);
  // By rank; each of its member when it was gathered.
  const std::map<uint32_t, GroupPart>& parts() const { return parts_; }

 private:
  Result<bool> Look(const GroupState& state, uint32_t rank, std::string* stamp);

  const RecordLog* const log_;
  const SlotKey key_;
  std::map<uint32_t, GroupPart> parts_;
  uint64_t gathered_at_ = 0;  // the state of the last look; on it ...
  uint32_t first_ = 0;        // ... the first rank whose part was missing, and from here on ...
  Author awaited_;            // ... who that is ...
  std::string stamp_;         // ... and its slot
};

// What a commit says of gathered parts.
GatheredParts SumOf(const std::map<uint32_t, GroupPart>& parts);

inline constexpr std::string_view kSlotsFolder = "slots";
std::string SlotName(MemberId member);

}  // namespace varve
