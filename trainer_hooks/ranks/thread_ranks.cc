// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process. Each puts its messages on a shared board, waits until all
// have done so, and copies its messages from the other ranks' memory.
#include <cassert>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "trainer_hooks/ranks/rank_group_base.h"

namespace varve {
using namespace internal;

namespace {

// The message of one rank on the board. Nobody changes it between the last arrival and the last
// departure, so it is read without the lock then.
struct Place {
  bool has_come = false;
  bool has_left = false;  // for ever
  Call call;
  std::span<const MessageView> to_each;
};

struct Board {
  explicit Board(int size) : places(size) {}

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex, except for what Place says.
  std::vector<Place> places;
  int num_come = 0;
  int num_done = 0;      // have copied what is for them
  uint64_t round = 0;    // rises when all are done
  int who_gave_up = -1;  // the first
  Status why;
  // Groups that are being split off, by their first member, with the number of members still to
  // come.
  std::map<int, std::pair<std::shared_ptr<Board>, size_t>> subgroups;
};

class ThreadGroup : public RankGroupBase {
 public:
  ThreadGroup(int rank, std::vector<int> names, std::shared_ptr<Board> board,
              std::chrono::milliseconds timeout)
      : RankGroupBase(rank, std::move(names)), board_(std::move(board)), timeout_(timeout) {}
  ~ThreadGroup() override {
    const std::lock_guard lock(board_->mutex);
    board_->places[rank()].has_left = true;
    board_->changed.notify_all();
  }

  std::vector<int> gone() const override {
    const std::lock_guard lock(board_->mutex);
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (board_->places[r].has_left) ranks.push_back(r);
    }
    return ranks;
  }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

 protected:
  Result<std::vector<Message>> Exchange(const Call& call,
                                        std::span<const MessageView> to_each) override {
    VARVE_RETURN_IF_ERROR(Come(call, to_each));
    auto received = Copy(call);
    Depart();
    return received;
  }

  void GiveUp(const Status& why) override {
    const std::lock_guard lock(board_->mutex);
    if (board_->who_gave_up >= 0) return;
    board_->who_gave_up = rank();
    board_->why = why;
    board_->changed.notify_all();
  }

  Result<std::unique_ptr<RankGroup>> Subgroup(int new_rank,
                                              const std::vector<int>& members) override {
    const std::lock_guard lock(board_->mutex);
    auto& [board, to_come] = board_->subgroups[members[0]];
    if (board == nullptr) {
      board = std::make_shared<Board>(static_cast<int>(members.size()));
      to_come = members.size();
    }
    auto group = std::make_unique<ThreadGroup>(new_rank, NamesOf(members), board, timeout_);
    if (--to_come == 0) board_->subgroups.erase(members[0]);
    return Result<std::unique_ptr<RankGroup>>(std::move(group));
  }

 private:
  // Returns when all have come. A rank that stops waiting takes its messages off the board again.
  Status Come(const Call& call, std::span<const MessageView> to_each) {
    std::unique_lock lock(board_->mutex);
    Place& mine = board_->places[rank()];
    mine.has_come = true;
    mine.call = call;
    mine.to_each = to_each;
    ++board_->num_come;
    board_->changed.notify_all();
    Status status = AwaitAll(call, &lock);
    if (!status.ok()) {
      mine.has_come = false;
      --board_->num_come;
    }
    return status;
  }

  Status AwaitAll(const Call& call, std::unique_lock<std::mutex>* lock) const {
    while (true) {
      if (board_->who_gave_up >= 0) return GaveUp(call, board_->who_gave_up, board_->why);
      if (board_->num_come == size()) return Status::Ok();
      if (const auto left = Absent(true); !left.empty()) {
        return Missing(call, left, "left the group");
      }
      const bool in_time =
          board_->changed.wait_for(*lock, timeout_, [&, num_seen = board_->num_come] {
            return board_->num_come != num_seen || board_->who_gave_up >= 0 ||
                   !Absent(true).empty();
          });
      if (!in_time) {
        return Missing(call, Absent(false),
                       "did not come within " + std::to_string(timeout_.count()) + " ms");
      }
    }
  }

  // Returns the ranks that have not come, or with `left` only those that never will. Call it under
  // the lock.
  std::vector<int> Absent(bool left) const {
    std::vector<int> absent;
    for (int r = 0; r < size(); ++r) {
      const Place& place = board_->places[r];
      if (!place.has_come && (place.has_left || !left)) absent.push_back(r);
    }
    return absent;
  }

  // All have come: nobody changes a place now.
  Result<std::vector<Message>> Copy(const Call& call) const {
    std::vector<Message> received;
    for (int r = 0; r < size(); ++r) {
      const Place& place = board_->places[r];
      if (place.call != call) return OtherCall(call, r, place.call);
      const MessageView message = place.to_each[rank()];
      received.emplace_back(message.begin(), message.end());
    }
    return received;
  }

  // Returns when no rank reads the caller's messages any more. All are copying, so none can fail to
  // finish.
  void Depart() {
    std::unique_lock lock(board_->mutex);
    const uint64_t round = board_->round;
    if (++board_->num_done < size()) {
      board_->changed.wait(lock, [&] { return board_->round != round; });
      return;
    }
    for (Place& place : board_->places) place.has_come = false;
    board_->num_come = board_->num_done = 0;
    ++board_->round;
    board_->changed.notify_all();
  }

  const std::shared_ptr<Board> board_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::vector<std::unique_ptr<RankGroup>> ThreadRanks(int size, std::chrono::milliseconds timeout) {
  assert(size > 0);
  std::vector<int> names(size);
  std::iota(names.begin(), names.end(), 0);
  const auto board = std::make_shared<Board>(size);
  std::vector<std::unique_ptr<RankGroup>> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<ThreadGroup>(r, names, board, timeout));
  }
  return ranks;
}

}  // namespace varve
