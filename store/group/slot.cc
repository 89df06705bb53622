// SPDX-License-Identifier: Apache-2.0
#include "store/group/slot.h"

#include <utility>
#include <variant>

namespace varve::internal {

std::string SlotName(MemberId member) {
  return std::string(kSlotsFolder) + "/" + MemberName(member);
}

// A slot is a PREPARED record with the attempt's nonce in place of a number.
Status WriteSlot(RecordLog* log, const SlotKey& key, const Author& author, const GroupPart& part) {
  const GroupRecord record{author, PreparedRecord{key.attempt, part}};
  return log->Put(SlotName(author.member), EncodeGroupRecord(key.seed, key.nonce, record),
                  /*durable=*/false);
}

Result<std::optional<GroupPart>> ReadSlot(const RecordLog& log, const SlotKey& key,
                                          const Author& author, std::string* stamp) {
  VARVE_ASSIGN_OR_RETURN(const auto bytes, log.Get(SlotName(author.member), stamp));
  if (!bytes.has_value()) return std::optional<GroupPart>();
  // It has another nonce, or is torn, so it is not the awaited slot.
  const Result<GroupRecord> record = DecodeGroupRecord(key.seed, key.nonce, *bytes);
  if (!record.ok() || record->author != author) return std::optional<GroupPart>();
  const auto* prepared = std::get_if<PreparedRecord>(&record->body);
  if (prepared == nullptr || prepared->attempt != key.attempt ||
      prepared->part.member != author.member) {
    return std::optional<GroupPart>();
  }
  return std::optional(prepared->part);
}

Result<bool> SlotGatherer::Look(const GroupState& state, uint32_t rank, std::string* stamp) {
  const auto member = state.ranks.find(rank);
  if (member == state.ranks.end()) return false;
  const auto found = parts_.find(rank);
  if (found != parts_.end() && found->second.member == member->second) return true;
  const Author author{state.epoch, rank, member->second};
  if (stamp != nullptr && author != std::exchange(awaited_, author)) stamp->clear();
  VARVE_ASSIGN_OR_RETURN(const auto part, ReadSlot(*log_, key_, author, stamp));
  if (part.has_value()) parts_[rank] = *part;
  return part.has_value();
}

Result<bool> SlotGatherer::Gather(const GroupState& state) {
  if (std::exchange(gathered_at_, state.next) != state.next) first_ = 0;
  for (; first_ < state.num_ranks; ++first_) {
    VARVE_ASSIGN_OR_RETURN(const bool is_there, Look(state, first_, &stamp_));
    if (!is_there) return false;
  }
  return true;
}

std::vector<uint32_t> SlotGatherer::Missing(const GroupState& state,
                                            const std::vector<uint32_t>& ranks) {
  std::vector<uint32_t> missing;
  for (const uint32_t rank : ranks) {
    const Result<bool> is_there = Look(state, rank, nullptr);
    if (!is_there.ok() || !*is_there) missing.push_back(rank);
  }
  return missing;
}

GatheredParts SumOf(const std::map<uint32_t, GroupPart>& parts) {
  GatheredParts sum;
  std::vector<MemberId> members;
  for (const auto& [rank, part] : parts) {
    members.push_back(part.member);
    sum.totals.Add(part);
  }
  sum.members = DigestOfMembers(members);
  return sum;
}

}  // namespace varve::internal
