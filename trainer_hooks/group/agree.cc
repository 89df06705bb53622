// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/agree.h"

#include <utility>

#include "store/util.h"

namespace varve {
namespace {

// A status as bytes: its code, then the message.
std::string Encode(const Status& status) {
  return std::string(1, static_cast<char>(status.code())) + std::string(status.message());
}

}  // namespace

Status Agree(RankGroup* ranks, const Status& mine) {
  if (ranks->size() == 1) return mine;
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks->AllGather(AsBytes(Encode(mine))));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string_view status = AsString(all[rank]);
    if (status.empty() || status[0] == static_cast<char>(StatusCode::kOk)) continue;
    return Status(static_cast<StatusCode>(status[0]),
                  "rank " + std::to_string(rank) + ": " + std::string(status.substr(1)));
  }
  return Status::Ok();
}

Result<std::string> FromRankZero(RankGroup* ranks,
                                 const std::function<Result<std::string>()>& find) {
  Result<std::string> found = std::string();
  if (ranks->rank() == 0) found = find();
  VARVE_RETURN_IF_ERROR(Agree(ranks, found.status()));
  VARVE_ASSIGN_OR_RETURN(const auto bytes, ranks->Broadcast(AsBytes(*found), 0));
  return std::string(AsString(bytes));
}

Result<bool> IsTrueOnAny(RankGroup* ranks, bool mine) {
  const int64_t value[] = {mine ? 1 : 0};
  VARVE_ASSIGN_OR_RETURN(const auto merged, ranks->AllReduce(value, Reduction::kMax));
  return merged[0] != 0;
}

Result<LoadOptions> WithNamesOfAllRanks(RankGroup* ranks, const LoadOptions& options,
                                        const TrainingState& into) {
  std::string names;  // each with a zero behind it
  for (const StateTensor& tensor : into.tensors) names += tensor.name + '\0';
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks->AllGather(AsBytes(names)));
  LoadOptions with = options;
  with.rank = static_cast<uint32_t>(ranks->rank());
  for (const auto& of_rank : all) {
    std::string_view left = AsString(of_rank);
    for (size_t end = left.find('\0'); end != left.npos; end = left.find('\0')) {
      with.on_other_ranks.emplace(left.substr(0, end));
      left.remove_prefix(end + 1);
    }
  }
  return with;
}

}  // namespace varve
