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
// calls in the same order, and none returns without an error before all have come to it. What is
// passed in is only read until the call returns.
//
// Errors: a call fails with kUnavailable, and names the ranks, when one is gone or when nothing
// arrives for the timeout; with kFailedPrecondition when another rank makes another call; with
// kInvalidArgument when an argument breaks a rule below. After an error the group is of no use: it
// has told the other ranks, as far as it could, and every later call returns the same error at
// once. Ranks in messages are numbered as in the group that was not split.
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
  // What each rank passed, by rank. Lengths may differ.
  virtual Result<std::vector<std::vector<std::byte>>> AllGather(
      std::span<const std::byte> mine) = 0;
  // What rank `root` passed. `root` is the same on all ranks; `bytes` of the others is not looked
  // at.
  virtual Result<std::vector<std::byte>> Broadcast(std::span<const std::byte> bytes, int root) = 0;
  // Element by element, over the ranks. All pass the same number of elements.
  virtual Result<std::vector<int64_t>> AllReduce(std::span<const int64_t> mine,
                                                 Reduction reduction) = 0;
  // to_each[r] goes to rank r, size() spans; the result is what each rank sent to this one. Lengths
  // may differ, and nothing is sent for empty ones but that they are.
  virtual Result<std::vector<std::vector<std::byte>>> AllToAll(
      std::span<const std::span<const std::byte>> to_each) = 0;

  // The group of those ranks that pass the same color, in their order here, with the same timeout.
  // Both groups are independent from then on: an error of one says nothing to the other.
  virtual Result<std::unique_ptr<RankGroup>> Split(int color) = 0;

  // The ranks that are known to have left or died: nothing more comes from them. Asks nobody, so a
  // rank whose machine vanished is not among them. Any thread, also beside a call.
  virtual std::vector<int> gone() const { return {}; }
  // How long calls from now on wait while nothing arrives. Of this rank alone; a kind of group that
  // has no such limit ignores it.
  virtual void set_timeout(std::chrono::milliseconds timeout) { (void)timeout; }

 protected:
  RankGroup() = default;
};

// How long a call waits while nothing arrives.
inline constexpr std::chrono::milliseconds kDefaultRankTimeout = std::chrono::minutes(2);
// Whoever has waited so long for other ranks says on standard error for which.
inline constexpr std::chrono::milliseconds kSaysItWaitsAfter = std::chrono::seconds(10);

// A group of threads of this process: result[r] is for the thread that is rank r. Precondition:
// size > 0.
std::vector<std::unique_ptr<RankGroup>> ThreadRanks(
    int size, std::chrono::milliseconds timeout = kDefaultRankTimeout);

// A group of processes that speak TCP, each with each. A rank that dies is noticed by its closed
// connections, one whose machine vanishes by the timeout. Nothing is encrypted: for networks that
// are trusted, as those of NCCL and MPI are.
struct SocketRanksOptions {
  int rank = 0;
  int size = 1;
  // Where rank 0 listens until all have come, and the others look for it.
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  // The same on all ranks, and different for jobs that may come to the same port: what does not
  // know it is turned away. It protects from mistakes, not from attackers who can listen.
  std::string job;
  std::chrono::milliseconds timeout = kDefaultRankTimeout;
  // How long SocketRanks itself waits for all ranks: jobs may start slowly.
  std::chrono::milliseconds meeting_timeout = std::chrono::minutes(10);
};

// Returns when all ranks have come. kInvalidArgument for options that cannot be; kIOError when rank
// 0 cannot listen; kUnavailable names the ranks that did not come, or says why rank 0 cannot be
// reached.
Result<std::unique_ptr<RankGroup>> SocketRanks(const SocketRanksOptions& options);

// From the environment, as torchrun sets it: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and
// TORCHELASTIC_RUN_ID as the job. VARVE_MASTER_PORT goes before MASTER_PORT, where torch itself
// listens. kInvalidArgument names the variable that is missing or malformed.
Result<SocketRanksOptions> SocketRanksFromEnv();

}  // namespace varve
