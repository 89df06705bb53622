// SPDX-License-Identifier: Apache-2.0
// Ranks of an MPI job. An exchange is made of messages between pairs of ranks, so that it is known
// which rank has not come. No collective of MPI tells that.
#include "varve/mpi_ranks.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <utility>

#include "trainer_hooks/ranks/mpi_transfer.h"
#include "trainer_hooks/ranks/rank_group_base.h"

namespace varve {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kShortestSleep{20}, kLongestSleep{1000};

// In that case MPI_Finalize could wait for ever.
std::atomic<bool> a_group_has_failed = false;

// The message that a rank sends to all, at any time, when it gives up.
struct Goodbye {
  static constexpr int kTag = 2;
  uint64_t call = 0;  // the number of the one it gave up in
  int32_t code = 0;
  std::array<char, 4084> text{};  // ends with a zero
};

class MpiGroup : public RankGroupBase {
 public:
  // Takes the communicator.
  MpiGroup(MPI_Comm comm, int rank, std::vector<int> names, std::chrono::milliseconds timeout)
      : RankGroupBase(rank, std::move(names)),
        comm_(comm),
        timeout_(timeout),
        mail_(std::make_unique<Mail>(size())) {}

  // Must be called once before all others.
  Status Listen() {
    VARVE_RETURN_IF_ERROR(
        FromMpi("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN)));
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      VARVE_RETURN_IF_ERROR(
          FromMpi("MPI_Irecv", MPI_Irecv(&mail_->received[r], sizeof(Goodbye), MPI_BYTE, r,
                                         Goodbye::kTag, comm_, &mail_->requests[r])));
    }
    return Status::Ok();
  }

  ~MpiGroup() override {
    if (has_failed_) {
      // MPI may still read and write this memory.
      (void)mail_.release();
      return;
    }
    for (MPI_Request& request : mail_->requests) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Comm_free(&comm_);
  }

  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

 protected:
  Result<std::vector<Message>> Exchange(const Call& call,
                                        std::span<const MessageView> to_each) override {
    auto transfer = std::make_unique<MpiTransfer>(comm_, rank(), call, to_each);
    if (Status status = MoveAll(call, transfer.get()); !status.ok()) {
      (void)transfer.release();  // as above
      return status;
    }
    std::vector<Message> received(size());
    for (int r = 0; r < size(); ++r) received[r] = transfer->TakeMessage(r);
    received[rank()].assign(to_each[rank()].begin(), to_each[rank()].end());
    return received;
  }

  void GiveUp(const Status& why) override {
    has_failed_ = a_group_has_failed = true;
    mail_->sent.call = num_calls();
    mail_->sent.code = static_cast<int32_t>(why.code());
    const size_t size = std::min(why.message().size(), mail_->sent.text.size() - 1);
    std::copy_n(why.message().begin(), size, mail_->sent.text.begin());
    for (int r = 0; r < this->size(); ++r) {
      if (r == rank()) continue;
      MPI_Request request;
      if (MPI_Isend(&mail_->sent, sizeof(Goodbye), MPI_BYTE, r, Goodbye::kTag, comm_, &request) ==
          MPI_SUCCESS) {
        MPI_Request_free(&request);
      }
    }
  }

  Result<std::unique_ptr<RankGroup>> Subgroup(int new_rank,
                                              const std::vector<int>& members) override {
    MPI_Comm comm;
    VARVE_RETURN_IF_ERROR(
        FromMpi("MPI_Comm_split", MPI_Comm_split(comm_, members[0], new_rank, &comm)));
    auto group = std::make_unique<MpiGroup>(comm, new_rank, NamesOf(members), timeout_);
    VARVE_RETURN_IF_ERROR(group->Listen());
    return Result<std::unique_ptr<RankGroup>>(std::move(group));
  }

 private:
  // MPI reads and writes this until the group is destroyed.
  struct Mail {
    explicit Mail(int size) : received(size), has_come(size), requests(size, MPI_REQUEST_NULL) {}
    std::vector<Goodbye> received;
    std::vector<bool> has_come;
    std::vector<MPI_Request> requests;
    Goodbye sent;
  };

  Status MoveAll(const Call& call, MpiTransfer* transfer) {
    VARVE_RETURN_IF_ERROR(transfer->Begin());
    auto deadline = Clock::now() + timeout_;
    auto says_so = Clock::now() + kSaysItWaitsAfter;
    auto sleep = kShortestSleep;
    while (true) {
      VARVE_RETURN_IF_ERROR(Verdict(call, *transfer));
      const std::vector<int> waiting = transfer->Waiting();
      if (waiting.empty()) return Status::Ok();
      VARVE_ASSIGN_OR_RETURN(const bool moved, transfer->Advance());
      if (moved) {
        deadline = Clock::now() + timeout_;
        sleep = kShortestSleep;
        continue;
      }
      if (Clock::now() >= says_so) {
        SayItWaits(call, waiting, timeout_);
        says_so = Clock::time_point::max();
      }
      if (Clock::now() >= deadline) {
        return Missing(call, waiting,
                       "did not come within " + std::to_string(timeout_.count()) + " ms");
      }
      std::this_thread::sleep_for(sleep);
      sleep = std::min(2 * sleep, kLongestSleep);
    }
  }

  // Returns how the call went on the other ranks.
  Status Verdict(const Call& call, const MpiTransfer& transfer) {
    int which = MPI_UNDEFINED, has_come = 0;
    VARVE_RETURN_IF_ERROR(FromMpi("MPI_Testany", MPI_Testany(size(), mail_->requests.data(), &which,
                                                             &has_come, MPI_STATUS_IGNORE)));
    if (has_come != 0 && which != MPI_UNDEFINED) mail_->has_come[which] = true;
    for (int r = 0; r < size(); ++r) {
      const Goodbye& goodbye = mail_->received[r];
      if (!mail_->has_come[r] || goodbye.call > call.number) continue;
      return GaveUp(call, r, Status(static_cast<StatusCode>(goodbye.code), goodbye.text.data()));
    }
    for (int r = 0; r < size(); ++r) {
      const Call* other = transfer.CallOf(r);
      if (other != nullptr && *other != call) return OtherCall(call, r, *other);
    }
    return Status::Ok();
  }

  MPI_Comm comm_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<Mail> mail_;
  bool has_failed_ = false;
};

void FinalizeAtExit() {
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized == 0 && !a_group_has_failed) MPI_Finalize();
}

Status Initialise() {
  int is_initialised = 0;
  VARVE_RETURN_IF_ERROR(FromMpi("MPI_Initialized", MPI_Initialized(&is_initialised)));
  if (is_initialised != 0) return Status::Ok();
  int provided = 0;
  VARVE_RETURN_IF_ERROR(FromMpi("MPI_Init_thread",
                                MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided)));
  std::atexit(FinalizeAtExit);
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<RankGroup>> MpiRanks(const MpiRanksOptions& options) {
  VARVE_RETURN_IF_ERROR(Initialise());
  const MPI_Comm of_caller =
      options.communicator.has_value() ? MPI_Comm_f2c(*options.communicator) : MPI_COMM_WORLD;
  MPI_Comm comm;
  VARVE_RETURN_IF_ERROR(FromMpi("MPI_Comm_dup", MPI_Comm_dup(of_caller, &comm)));
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  std::vector<int> names(size);
  std::iota(names.begin(), names.end(), 0);
  auto group = std::make_unique<MpiGroup>(comm, rank, std::move(names), options.timeout);
  VARVE_RETURN_IF_ERROR(group->Listen());
  return Result<std::unique_ptr<RankGroup>>(std::move(group));
}

}  // namespace varve
