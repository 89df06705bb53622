// SPDX-License-Identifier: Apache-2.0
//
// Makes all collectives of a RankGroup from one: each rank sends a message to every rank and gets
// one from every rank. Threads, sockets and MPI differ only in how they do that.
//
// Thread rule: as RankGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "varve/rank_group.h"

namespace varve::internal {

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
// Returns "broadcast from rank 2, its call 7". It also takes a call that no rank of this version
// makes.
std::string Describe(const Call& call);

// Returns "rank 3" or "ranks 0, 2, 5-9". `ranks` must rise. `names` are their numbers in messages.
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
  // Exchanges messages. Success gives size() messages. After an error the result says what is
  // wrong, and the other ranks are not told. It is an error when ranks make another call than
  // `call` (OtherCall).
  virtual Result<std::vector<Message>> Exchange(const Call& call,
                                                std::span<const MessageView> to_each) = 0;
  // Tells the others, as far as possible, that this rank has given up, why, and in which call. A
  // rank that is still in an earlier call can finish it, because all have done their part of it.
  // Called once.
  virtual void GiveUp(const Status& why) = 0;
  // Makes a group of `members`, which are ranks of this group and rise. This rank is
  // members[new_rank]. All other ranks of this group call it at the same time, each for its own new
  // group.
  virtual Result<std::unique_ptr<RankGroup>> Subgroup(int new_rank,
                                                      const std::vector<int>& members) = 0;

  const std::vector<int>& names() const { return names_; }
  uint64_t num_calls() const { return num_calls_; }  // calls that have started
  std::vector<int> NamesOf(const std::vector<int>& members) const;
  // Error messages of an exchange, for this group and for other ranks.
  Status Missing(const Call& call, const std::vector<int>& ranks, const std::string& how) const;
  Status OtherCall(const Call& call, int other, const Call& call_of_other) const;
  Status GaveUp(const Call& call, int other, const Status& why) const;
  // Says on standard error that it waits.
  void SayItWaits(const Call& call, const std::vector<int>& ranks,
                  std::chrono::milliseconds timeout) const;

 private:
  // Returns Exchange, or the error of an earlier call.
  Result<std::vector<Message>> Do(CallKind kind, int32_t argument,
                                  std::span<const MessageView> to_each);
  Status Fail(Status why);
  // Fails a call before it starts.
  Status Refuse(Status why) {
    ++num_calls_;
    return Fail(std::move(why));
  }

  const int rank_;
  const std::vector<int> names_;
  uint64_t num_calls_ = 0;
  Status failure_;
};

}  // namespace varve::internal
