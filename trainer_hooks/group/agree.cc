// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/agree.h"

#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "base/util.h"

namespace varve::internal {

namespace {

constexpr size_t kMaxTold = 20;  // ranks whose errors differ

// A status as bytes: its code, then the message.
std::string Encode(const Status& status) {
  return std::string(1, static_cast<char>(status.code())) + std::string(status.message());
}

Status Decode(std::string_view bytes) {
  const int code = bytes.empty() ? -1 : static_cast<unsigned char>(bytes[0]);
  if (code == static_cast<int>(StatusCode::kOk)) return Status::Ok();
  if (code < 0 || code > static_cast<int>(StatusCode::kAborted)) {
    return Status::Unavailable("its outcome cannot be read, code " + std::to_string(code));
  }
  return {static_cast<StatusCode>(code), std::string(bytes.substr(1))};
}

}  // namespace

Status Agree(RankGroup* ranks, const Status& mine) {
  if (ranks->size() == 1) return mine;
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks->AllGather(AsBytes(Encode(mine))));
  Status first;
  std::set<std::string> told;
  for (size_t rank = 0; rank < all.size() && told.size() < kMaxTold; ++rank) {
    const Status status = Decode(AsString(all[rank]));
    if (status.ok() || !told.insert(std::string(status.message())).second) continue;
    const Status of_rank = status.WithContext("rank " + std::to_string(rank));
    first = first.ok() ? of_rank
                       : Status(first.code(), std::string(first.message()) + "\n" +
                                                  std::string(of_rank.message()));
  }
  return first;
}

Result<std::string> FromRankZero(RankGroup* ranks,
                                 const std::function<Result<std::string>()>& find) {
  Result<std::string> found = std::string();
  if (ranks->rank() == 0) found = find();
  VARVE_RETURN_IF_ERROR(Agree(ranks, found.status()));
  VARVE_ASSIGN_OR_RETURN(const auto bytes, ranks->Broadcast(AsBytes(*found), 0));
  return std::string(AsString(bytes));
}

Result<CheckpointId> StepFromRankZero(RankGroup* ranks,
                                      const std::function<Result<CheckpointId>()>& find) {
  CheckpointId id;
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, FromRankZero(ranks, [&]() -> Result<std::string> {
                           VARVE_ASSIGN_OR_RETURN(const CheckpointId found, find());
                           return std::string(AsString(std::as_bytes(std::span(&found.step, 1)))) +
                                  found.run;
                         }));
  if (bytes.size() < sizeof(id.step)) return Status::Unavailable("rank 0 sent no step");
  std::memcpy(&id.step, bytes.data(), sizeof(id.step));
  id.run = bytes.substr(sizeof(id.step));
  return id;
}

Status AgreeOnNumber(RankGroup* ranks, std::string_view what, uint64_t mine) {
  const std::string text = std::to_string(mine);
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks->AllGather(AsBytes(text)));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return Status::FailedPrecondition(std::string(what) + " is " + std::string(AsString(all[0])) +
                                      " on rank 0 and " + std::string(AsString(all[rank])) +
                                      " on rank " + std::to_string(rank));
  }
  return Status::Ok();
}

Result<bool> IsTrueOnAny(RankGroup* ranks, bool mine) {
  const int64_t value[] = {mine ? 1 : 0};
  VARVE_ASSIGN_OR_RETURN(const auto merged, ranks->AllReduce(value, Reduction::kMax));
  return merged[0] != 0;
}

}  // namespace varve::internal
