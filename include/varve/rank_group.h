// SPDX-License-Identifier: Apache-2.0
//
// A RankGroup lets the ranks of a job communicate inside a save or a restore. It has a few
// collective calls on bytes. Ranks may be threads, or processes that use sockets, MPI
// (varve/mpi_ranks.h) or NCCL (varve/nccl_ranks.h).
//
//   VARVE_ASSIGN_OR_RETURN(const auto options, varve::SocketRanksFromEnv());  // RANK and so on
//   VARVE_ASSIGN_OR_RETURN(const auto group, varve::SocketRanks(options));
//   VARVE_ASSIGN_OR_RETURN(const auto all, group->AllGather(mine));  // all[r]: from rank r
//
// Barrier, AllGather, Broadcast, AllReduce, AllToAll, AllToAllToDevice and Split are collective.
// All ranks make the same collective calls in the same order. No collective call returns Ok before
// all ranks have made it. A call reads its arguments only until it returns.
//
// Thread rule: each rank calls from one thread at a time.
//
// Errors: kUnavailable names the ranks that are gone, or from which nothing arrived before the
// timeout. kFailedPrecondition: ranks make different calls. kInvalidArgument: an argument breaks a
// rule below. After an error the group cannot be used any more. The rank whose call failed tells
// the other ranks why, as far as it can. Every later call of that rank returns the same error at
// once. In a group that Split has made, messages give the rank's number in the original group.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "varve/result.h"

namespace varve {

enum class Reduction { kMin, kMax };

class RankGroup {
 public:
  // The rank leaves the group. Calls of other ranks that still need it fail.
  virtual ~RankGroup() = default;
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  virtual int rank() const = 0;  // in [0, size())
  virtual int size() const = 0;

  // Returns when all ranks have called it.
  virtual Status Barrier() = 0;
  // Returns the bytes that each rank passed, by rank. Lengths may differ.
  virtual Result<std::vector<std::vector<std::byte>>> AllGather(
      std::span<const std::byte> mine) = 0;
  // Returns the bytes that rank `root` passed. `root` is the same on all ranks. `bytes` of other
  // ranks is ignored.
  virtual Result<std::vector<std::byte>> Broadcast(std::span<const std::byte> bytes, int root) = 0;
  // Returns the minimum or maximum over the ranks, for each element. All ranks pass the same number
  // of elements.
  virtual Result<std::vector<int64_t>> AllReduce(std::span<const int64_t> mine,
                                                 Reduction reduction) = 0;
  // Sends to_each[r] to rank r. `to_each` has size() spans. Returns the bytes that each rank sent
  // to this rank, by rank. Lengths may differ.
  virtual Result<std::vector<std::vector<std::byte>>> AllToAll(
      std::span<const std::span<const std::byte>> to_each) = 0;

  // Returns the device in whose memory AllToAllToDevice delivers messages. nullopt: this kind of
  // group has no such call. All ranks have the same kind of group, each with a device of its own.
  virtual std::optional<int> device() const { return std::nullopt; }
  // A message with a short head and a body, both in memory of the host.
  struct HeadAndBody {
    std::span<const std::byte> head;
    std::span<const std::byte> body;
  };
  // Such a message as it arrives. The group owns the body, until the next AllToAllToDevice.
  struct BodyOnDevice {
    std::vector<std::byte> head;
    std::span<const std::byte> body;  // in memory of device()
  };
  // As AllToAll, but each body arrives in memory of device(), where work of any stream may read it.
  // The receiver's host gets only the head. `to_each` has size() messages.
  virtual Result<std::vector<BodyOnDevice>> AllToAllToDevice(std::span<const HeadAndBody> to_each) {
    (void)to_each;
    return Status::FailedPrecondition("this kind of group brings no messages to a device");
  }

  // Makes a new group of the ranks that pass the same color, in their order in this group, with the
  // same timeout. `color` is any number. Both groups are independent from then on. An error of one
  // does not affect the other.
  virtual Result<std::unique_ptr<RankGroup>> Split(int color) = 0;

  // Returns the ranks that are known to have left or died. It does not communicate, so a rank whose
  // machine has vanished is not among them. Any thread may call it, even during another call.
  virtual std::vector<int> gone() const { return {}; }
  // Sets how long later calls of this rank wait while nothing arrives. A kind of group without such
  // a limit ignores it.
  virtual void set_timeout(std::chrono::milliseconds timeout) { (void)timeout; }

 protected:
  RankGroup() = default;
};

// The default for how long a call waits while nothing arrives.
inline constexpr std::chrono::milliseconds kDefaultRankTimeout = std::chrono::minutes(2);
// A rank that has waited this long for other ranks names them on standard error, except in a
// group of ThreadRanks.
inline constexpr std::chrono::milliseconds kSaysItWaitsAfter = std::chrono::seconds(10);

// Makes a group of threads of this process. result[r] is for the thread that is rank r.
// Precondition: size > 0.
std::vector<std::unique_ptr<RankGroup>> ThreadRanks(
    int size, std::chrono::milliseconds timeout = kDefaultRankTimeout);

// Options of a group of processes in which any two processes have a TCP connection. A closed
// connection shows that a rank has left or died. If the machine of a rank vanishes, only the
// timeout shows it. Nothing is encrypted, so use such a group on trusted networks only, as with
// NCCL and MPI.
struct SocketRanksOptions {
  int rank = 0;
  int size = 1;
  // The address at which rank 0 listens until all ranks have connected. The default host works if
  // all ranks are on one machine. With more than one rank, `port` must be set.
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  // The name of the job. It is the same on all ranks. Jobs that may use the same port must have
  // different names. A process that does not know the name is turned away. The name protects from
  // mistakes. It does not protect from attackers who can read the network traffic.
  std::string job;
  std::chrono::milliseconds timeout = kDefaultRankTimeout;
  // How long SocketRanks waits for all ranks to connect.
  std::chrono::milliseconds meeting_timeout = std::chrono::minutes(10);
};

// Connects this rank, and returns when all ranks have connected. kInvalidArgument: an option is out
// of range. kIOError: rank 0 cannot listen. kUnavailable names the ranks that did not connect, or
// says why rank 0 cannot be reached.
Result<std::unique_ptr<RankGroup>> SocketRanks(const SocketRanksOptions& options);

// Reads the options from the environment, as torchrun sets it: RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT, and TORCHELASTIC_RUN_ID as the job. If VARVE_MASTER_PORT is set, it replaces
// MASTER_PORT. Under torchrun it must be set, because torch itself listens at MASTER_PORT.
// kInvalidArgument names the variable that is missing or malformed.
Result<SocketRanksOptions> SocketRanksFromEnv();

}  // namespace varve
