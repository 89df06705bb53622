// SPDX-License-Identifier: Apache-2.0
//
// All collectives of a RankGroup made of one: each rank gives every rank a message and gets one
// from every rank. Threads, sockets and MPI differ only in how they do that.
//
// Thread rule: that of RankGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "varve/rank_group.h"

namespace varve {

using Message = std::vector<std::byte>;
using MessageView = std::span<const std::byte>;

enum class CallKind : uint32_t {
  kBarrier = 1,
  kAllGather,
  kBroadcast,
  kAllReduce,
  kAllToAll,
  kSplit
};

// What all ranks must agree on.
struct Call {
  CallKind kind = CallKind::kBarrier;
  int32_t argument = 0;  // the root, or the reduction
  uint64_t number = 0;   // counts the calls of a group from 1
  bool operator==(const Call&) const = default;
};
// "broadcast from rank 2, its call 7". Also of a call that no rank of this version makes.
std::string Describe(const Call& call);

// "rank 3", "ranks 0, 2, 5-9": the names of these ranks, which rise.
std::string RankList(const std::vector<int>& ranks, const std::vector<int>& names);

class RankGroupBase : public RankGroup {
 public:
  // `names` are the numbers of the ranks in messages.
  RankGroupBase(int rank, std::vector<int> names) : rank_(rank), names_(std::move(names)) {}

  int rank() const final { return rank_; }
  int size() const final { return static_cast<int>(names_.size()); }
  Status Barrier() final;
  Result<std::vector<Message>> AllGather(MessageView mine) final;
  Result<Message> Broadcast(MessageView bytes, int root) final;
  Result<std::vector<int64_t>> AllReduce(std::span<const int64_t> mine, Reduction reduction) final;
  Result<std::vector<Message>> AllToAll(std::span<const MessageView> to_each) final;
  Result<std::unique_ptr<RankGroup>> Split(int color) final;

 protected:
  // Fails with what is wrong and does not tell the others; size() messages either way. Ranks that
  // make another call than `call` are an error (OtherCall).
  virtual Result<std::vector<Message>> Exchange(const Call& call,
                                                std::span<const MessageView> to_each) = 0;
  // Tells the others, as far as possible, that this rank has given up and why, and in which call:
  // who is still in an earlier one can finish that, for all have done their part of it. Called
  // once.
  virtual void GiveUp(const Status& why) = 0;
  // The group of `members`, ranks of this group that rise. This rank is members[new_rank]; all
  // others of this group call it at the same time, for the group that they will be in.
  virtual Result<std::unique_ptr<RankGroup>> Subgroup(int new_rank,
                                                      const std::vector<int>& members) = 0;

  const std::vector<int>& names() const { return names_; }
  uint64_t num_calls() const { return num_calls_; }  // that have begun
  std::vector<int> NamesOf(const std::vector<int>& members) const;
  // The messages of an exchange, for the group and for other ranks.
  Status Missing(const Call& call, const std::vector<int>& ranks, const std::string& how) const;
  Status OtherCall(const Call& call, int other, const Call& call_of_other) const;
  Status GaveUp(const Call& call, int other, const Status& why) const;
  // On standard error.
  void SayItWaits(const Call& call, const std::vector<int>& ranks,
                  std::chrono::milliseconds timeout) const;

 private:
  // Exchange, or the error of earlier.
  Result<std::vector<Message>> Do(CallKind kind, int32_t argument,
                                  std::span<const MessageView> to_each);
  Status Fail(Status why);
  // Fails a call before it begins.
  Status Refuse(Status why) {
    ++num_calls_;
    return Fail(std::move(why));
  }

  const int rank_;
  const std::vector<int> names_;
  uint64_t num_calls_ = 0;
  Status failure_;
};

}  // namespace varve
