// SPDX-License-Identifier: Apache-2.0
//
// RankGroup is how the ranks of a job talk to each other inside a save or a restore: a few
// collective calls on bytes, over threads, sockets or MPI (varve/mpi_ranks.h).
//
//   VARVE_ASSIGN_OR_RETURN(const auto options, varve::SocketRanksFromEnv());  // RANK and so on
//   VARVE_ASSIGN_OR_RETURN(const auto group, varve::SocketRanks(options));
//   VARVE_ASSIGN_OR_RETURN(const auto all, group->AllGather(mine));  // all[r] is of rank r
//
// Thread rule: one thread at a time for each rank. A call is collective: all ranks make the same
// calls in the same order, and none returns without an error before all have come to it. A call
// reads what is passed in until it returns, and not later.
//
// Errors: kUnavailable names the ranks that are gone, or from which nothing has arrived for the
// timeout. kFailedPrecondition: another rank makes another call. kInvalidArgument: an argument
// breaks a rule below. After an error the group is of no use. It has told the other ranks, as far
// as it could, and every later call returns the same error at once. Messages number ranks as in the
// group that was not split.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "varve/result.h"

namespace varve {

enum class Reduction { kMin, kMax };

class RankGroup {
 public:
  // The rank leaves. What the others still wait for from it fails.
  virtual ~RankGroup() = default;
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  virtual int rank() const = 0;  // in [0, size())
  virtual int size() const = 0;

  // Returns when all ranks have called it.
  virtual Status Barrier() = 0;
  // Gives what each rank passed, by rank. Lengths may differ.
  virtual Result<std::vector<std::vector<std::byte>>> AllGather(
      std::span<const std::byte> mine) = 0;
  // Gives what rank `root` passed. `root` is the same on all ranks. `bytes` of the other ranks is
  // not looked at.
  virtual Result<std::vector<std::byte>> Broadcast(std::span<const std::byte> bytes, int root) = 0;
  // Reduces element by element, over the ranks. All ranks pass the same number of elements.
  virtual Result<std::vector<int64_t>> AllReduce(std::span<const int64_t> mine,
                                                 Reduction reduction) = 0;
  // Sends to_each[r] to rank r. There are size() spans. The result is what each rank sent to this
  // one. Lengths may differ. An empty span costs no more than saying so.
  virtual Result<std::vector<std::vector<std::byte>>> AllToAll(
      std::span<const std::span<const std::byte>> to_each) = 0;

  // Makes a group of those ranks that pass the same color, in their order here, with the same
  // timeout. Both groups are independent from then on. An error of one says nothing to the other.
  virtual Result<std::unique_ptr<RankGroup>> Split(int color) = 0;

  // The ranks that are known to have left or died. Nothing more comes from them. It asks nobody, so
  // a rank whose machine vanished is not among them. Any thread may call it, also during a call.
  virtual std::vector<int> gone() const { return {}; }
  // How long later calls of this rank wait while nothing arrives. A kind of group that has no such
  // limit ignores it.
  virtual void set_timeout(std::chrono::milliseconds timeout) { (void)timeout; }

 protected:
  RankGroup() = default;
};

// How long a call waits while nothing arrives.
inline constexpr std::chrono::milliseconds kDefaultRankTimeout = std::chrono::minutes(2);
// A rank that has waited so long for others names them on standard error.
inline constexpr std::chrono::milliseconds kSaysItWaitsAfter = std::chrono::seconds(10);

// A group of threads of this process. result[r] is for the thread that is rank r. Precondition:
// size > 0.
std::vector<std::unique_ptr<RankGroup>> ThreadRanks(
    int size, std::chrono::milliseconds timeout = kDefaultRankTimeout);

// A group of processes that speak TCP, each with each. Closed connections show that a rank has
// died, and the timeout that its machine has vanished. Nothing is encrypted. It is for networks
// that are trusted, as those of NCCL and MPI are.
struct SocketRanksOptions {
  int rank = 0;
  int size = 1;
  // Where rank 0 listens until all have come, and the others look for it.
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  // The name of the job, the same on all ranks, and different for jobs that may come to the same
  // port. A process that does not know it is turned away. It protects from mistakes, not from
  // attackers who can listen.
  std::string job;
  std::chrono::milliseconds timeout = kDefaultRankTimeout;
  // How long SocketRanks itself waits for all ranks. Jobs may start slowly.
  std::chrono::milliseconds meeting_timeout = std::chrono::minutes(10);
};

// Returns when all ranks have come. kInvalidArgument: the options cannot be. kIOError: rank 0
// cannot listen. kUnavailable names the ranks that did not come, or says why rank 0 cannot be
// reached.
Result<std::unique_ptr<RankGroup>> SocketRanks(const SocketRanksOptions& options);

// From the environment, as torchrun sets it: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and
// TORCHELASTIC_RUN_ID as the job. VARVE_MASTER_PORT goes before MASTER_PORT, where torch itself
// listens. kInvalidArgument names the variable that is missing or malformed.
Result<SocketRanksOptions> SocketRanksFromEnv();

}  // namespace varve
