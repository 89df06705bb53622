// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/ranks/rank_group_base.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/coding.h"
#include "base/number_list.h"

namespace varve::internal {

namespace {

std::string KindName(CallKind kind) {
  switch (kind) {
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kAllGather:
      return "all-gather";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kAllReduce:
      return "all-reduce";
    case CallKind::kAllToAll:
      return "all-to-all";
    case CallKind::kSplit:
      return "split";
  }
  return "call of kind " + std::to_string(static_cast<uint32_t>(kind));
}

int64_t Reduce(int64_t a, int64_t b, Reduction reduction) {
  return reduction == Reduction::kMin ? std::min(a, b) : std::max(a, b);
}

}  // namespace

std::string Describe(const Call& call) {
  std::string text = KindName(call.kind);
  if (call.kind == CallKind::kBroadcast) text += " from " + std::to_string(call.argument);
  if (call.kind == CallKind::kAllReduce) {
    text += call.argument == static_cast<int32_t>(Reduction::kMin) ? " of the least"
                                                                   : " of the greatest";
  }
  return text + " (call " + std::to_string(call.number) + ")";
}

std::string RankList(const std::vector<int>& ranks, const std::vector<int>& names) {
  std::vector<int> named;
  for (const int rank : ranks) named.push_back(names[rank]);
  return NumberList("rank", named);
}

std::vector<int> RankGroupBase::NamesOf(const std::vector<int>& members) const {
  std::vector<int> names;
  for (const int member : members) names.push_back(names_[member]);
  return names;
}

Status RankGroupBase::Missing(const Call& call, const std::vector<int>& ranks,
                              const std::string& how) const {
  return Status::Unavailable(Describe(call) + " of rank " + std::to_string(names_[rank_]) + ": " +
                             RankList(ranks, names_) + " " + how);
}

void RankGroupBase::SayItWaits(const Call& call, const std::vector<int>& ranks,
                               std::chrono::milliseconds timeout) const {
  std::fprintf(stderr, "varve: %s of rank %d waits for %s, and gives up after %lld ms\n",
               Describe(call).c_str(), names_[rank_], RankList(ranks, names_).c_str(),
               static_cast<long long>(timeout.count()));
}

Status RankGroupBase::OtherCall(const Call& call, int other, const Call& call_of_other) const {
  return Status::FailedPrecondition("rank " + std::to_string(names_[other]) + " is in " +
                                    Describe(call_of_other) + " where rank " +
                                    std::to_string(names_[rank_]) + " is in " + Describe(call));
}

Status RankGroupBase::GaveUp(const Call& call, int other, const Status& why) const {
  return why.WithContext(Describe(call) + " of rank " + std::to_string(names_[rank_]) + ": rank " +
                         std::to_string(names_[other]) + " gave up");
}

Status RankGroupBase::Fail(Status why) {
  GiveUp(why);
  return failure_ = std::move(why);
}

Result<std::vector<Message>> RankGroupBase::Do(CallKind kind, int32_t argument,
                                               std::span<const MessageView> to_each) {
  if (!failure_.ok()) return failure_;
  auto received = Exchange({kind, argument, ++num_calls_}, to_each);
  if (!received.ok()) return Fail(received.status());
  return received;
}

Status RankGroupBase::Barrier() {
  return Do(CallKind::kBarrier, 0, std::vector<MessageView>(size())).status();
}

Result<std::vector<Message>> RankGroupBase::AllGather(MessageView mine) {
  return Do(CallKind::kAllGather, 0, std::vector<MessageView>(size(), mine));
}

Result<Message> RankGroupBase::Broadcast(MessageView bytes, int root) {
  if (!failure_.ok()) return failure_;
  if (root < 0 || root >= size()) {
    return Refuse(Status::InvalidArgument("broadcast from rank " + std::to_string(root) +
                                          " in a group of " + std::to_string(size())));
  }
  const MessageView mine = rank_ == root ? bytes : MessageView();
  VARVE_ASSIGN_OR_RETURN(auto received,
                         Do(CallKind::kBroadcast, root, std::vector<MessageView>(size(), mine)));
  return std::move(received[root]);
}

Result<std::vector<int64_t>> RankGroupBase::AllReduce(std::span<const int64_t> mine,
                                                      Reduction reduction) {
  VARVE_ASSIGN_OR_RETURN(const auto received,
                         Do(CallKind::kAllReduce, static_cast<int32_t>(reduction),
                            std::vector<MessageView>(size(), std::as_bytes(mine))));
  std::vector<int64_t> reduced(mine.begin(), mine.end());
  for (int r = 0; r < size(); ++r) {
    if (received[r].size() != mine.size_bytes()) {
      return Fail(Status::InvalidArgument("all-reduce: rank " + std::to_string(names_[r]) +
                                          " has " + std::to_string(received[r].size()) +
                                          " bytes, rank " + std::to_string(names_[rank_]) +
                                          " has " + std::to_string(mine.size_bytes())));
    }
    for (size_t i = 0; i < reduced.size(); ++i) {
      const auto other = LoadLittle<int64_t>(received[r].data() + i * sizeof(int64_t));
      reduced[i] = Reduce(reduced[i], other, reduction);
    }
  }
  return reduced;
}

Result<std::vector<Message>> RankGroupBase::AllToAll(std::span<const MessageView> to_each) {
  if (!failure_.ok()) return failure_;
  if (std::ssize(to_each) != size()) {
    return Refuse(Status::InvalidArgument("all-to-all of " + std::to_string(to_each.size()) +
                                          " messages in a group of " + std::to_string(size())));
  }
  return Do(CallKind::kAllToAll, 0, to_each);
}

Result<std::unique_ptr<RankGroup>> RankGroupBase::Split(int color) {
  const MessageView mine = std::as_bytes(std::span(&color, 1));
  VARVE_ASSIGN_OR_RETURN(const auto colors,
                         Do(CallKind::kSplit, 0, std::vector<MessageView>(size(), mine)));
  std::vector<int> members;
  int rank = 0;
  for (int r = 0; r < size(); ++r) {
    if (colors[r].size() != sizeof(int)) {
      return Fail(Status::InvalidArgument("split: rank " + std::to_string(names_[r]) + " sent " +
                                          std::to_string(colors[r].size()) +
                                          " bytes instead of a color"));
    }
    if (LoadLittle<int>(colors[r].data()) != color) continue;
    if (r == rank_) rank = static_cast<int>(members.size());
    members.push_back(r);
  }
  auto group = Subgroup(rank, members);
  if (!group.ok() && failure_.ok()) return Fail(group.status());
  return group;
}

}  // namespace varve::internal
