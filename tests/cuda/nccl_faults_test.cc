// SPDX-License-Identifier: Apache-2.0
//
// What ranks say when NCCL, or CUDA under it, fails one of them. It runs on the host's runtime,
// which can be told to fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>

#include "tests/cuda/host_runtime/host_runtime.h"
#include "tests/cuda/host_runtime/nccl_runtime.h"
#include "tests/cuda/nccl_launcher.h"
#include "tests/trainer_hooks/ranks/rank_scripts.h"

namespace varve::internal::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Texts = std::vector<std::string>;

constexpr NcclOptions kPatient{.piece_bytes = 1000, .timeout = kPatience};
constexpr int kNcclRanks = 3;

class NcclFaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::Reset();
    SetDevices(kNcclRanks);
  }
  void TearDown() override {
    AwaitIdle();
    EXPECT_THAT(Leaks(), IsEmpty());
    EXPECT_EQ(NumNcclComms(), 0U);
    testing::Reset();
    SetDevices(4);
    UseKernels(Kernels::kReference);
  }

  // Returns what NcclRanks says on the ranks. None of them gets a group.
  static Texts FailToMake(const NcclOptions& options) {
    Texts texts(kNcclRanks);
    RunNcclRanks(kNcclRanks, options, [&](int rank, Result<std::unique_ptr<RankGroup>> group) {
      EXPECT_EQ(group.status().code(), StatusCode::kUnavailable);
      texts[rank] = group.status().message();
    });
    return texts;
  }
};

// A call that moves bytes, of several pieces.
Status Talk(RankGroup* group) {
  const std::vector<std::byte> bytes(2500, static_cast<std::byte>(group->rank()));
  VARVE_ASSIGN_OR_RETURN(const auto sent, group->Broadcast(bytes, 1));
  EXPECT_EQ(sent, std::vector<std::byte>(2500, std::byte{1}));
  const std::vector<std::span<const std::byte>> to_each(group->size(), bytes);
  VARVE_ASSIGN_OR_RETURN(const auto all, group->AllToAll(to_each));
  for (int r = 0; r < group->size(); ++r) {
    EXPECT_EQ(all[r], std::vector<std::byte>(2500, static_cast<std::byte>(r)));
  }
  return Status::Ok();
}

TEST_F(NcclFaultsTest, BytesGoOverNcclAndNothingIsAllocatedOnTheWay) {
  RunNcclRanks(kNcclRanks, kPatient, [](int, Result<std::unique_ptr<RankGroup>> group) {
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    ASSERT_TRUE((*group)->Barrier().ok());
    const int before = NumCalls("cudaMalloc") + NumCalls("cudaHostAlloc");
    const Status status = Talk(group->get());
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(NumCalls("cudaMalloc") + NumCalls("cudaHostAlloc"), before);
    ASSERT_TRUE((*group)->Barrier().ok());
  });
  EXPECT_EQ(NumCalls("ncclBroadcast"), kNcclRanks * 3);
  EXPECT_EQ(NumCalls("ncclSend"), kNcclRanks * kNcclRanks * 3);
  EXPECT_EQ(NumCalls("ncclRecv"), kNcclRanks * kNcclRanks * 3);
}

// One rank fails and leaves. The ranks that wait for it give up, and so does the next call of the
// others.
TEST_F(NcclFaultsTest, ACallThatFailsOnOneFailsAll) {
  for (const std::string function :
       {"ncclBroadcast", "ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd", "NcclKernel",
        "cudaMemcpyAsync", "cudaEventRecord", "cudaEventQuery"}) {
    SCOPED_TRACE(function);
    Texts texts(kNcclRanks);
    RunNcclRanks(kNcclRanks, kPatient, [&](int rank, Result<std::unique_ptr<RankGroup>> group) {
      ASSERT_TRUE(group.ok()) << group.status().ToString();
      ASSERT_TRUE((*group)->Barrier().ok());
      if (rank == 0) FailCall(function, cudaErrorLaunchFailure, 3);
      ASSERT_TRUE((*group)->Barrier().ok());
      (*group)->set_timeout(kImpatience);
      Status status;
      while (status.ok()) status = Talk(group->get());
      EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      EXPECT_EQ((*group)->Barrier().ToString(), status.ToString());
      EXPECT_EQ((*group)->Broadcast({}, 0).status().ToString(), status.ToString());
      EXPECT_EQ((*group)->Split(0).status().ToString(), status.ToString());
      (*group)->gone();  // may be asked by another thread, which does not know of the failure
      texts[rank] = status.message();
    });
    // Launches are NCCL's: their errors are those of the communicator.
    const std::string said = function == "NcclKernel" ? "ncclCommGetAsyncError" : function;
    EXPECT_THAT(texts, Contains(HasSubstr(said)));
    EXPECT_THAT(texts, Each(AnyOf(HasSubstr(said), HasSubstr("nothing came over NCCL within 3000"),
                                  HasSubstr("left the group"), HasSubstr("gave up"),
                                  HasSubstr("did not come within 3000"))));
  }
}

// Only the first rank has bytes to move, for itself. It keeps its group when it has failed.
TEST_F(NcclFaultsTest, WhoFailsIsMissedInTheNextCall) {
  std::latch both(2);
  RunNcclRanks(2, kPatient, [&](int rank, Result<std::unique_ptr<RankGroup>> group) {
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    if (rank == 0) FailCall("ncclSend", cudaErrorLaunchFailure);
    const std::vector<std::byte> bytes(10);
    std::vector<std::span<const std::byte>> to_each(2);
    if (rank == 0) to_each[0] = bytes;
    const auto received = (*group)->AllToAll(to_each);
    EXPECT_EQ(received.ok(), rank == 1) << received.status().ToString();
    if (rank == 1) {
      EXPECT_THAT((*group)->Barrier().message(), HasSubstr("rank 0 left the group"));
    }
    both.arrive_and_wait();
  });
}

TEST_F(NcclFaultsTest, WhoWaitsSaysForWhat) {
  RunNcclRanks(2, kPatient, [&](int rank, Result<std::unique_ptr<RankGroup>> group) {
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    if (rank == 0) FailCall("ncclBroadcast", cudaErrorLaunchFailure);
    ASSERT_TRUE((*group)->Barrier().ok());
    (*group)->set_timeout(kImpatience);
    const Status status = (*group)->Broadcast(std::vector<std::byte>(1500), 1).status();
    EXPECT_THAT(status.message(), HasSubstr("broadcast from rank 1 at byte "));
    EXPECT_THAT(status.message(), HasSubstr(" of 1500, on rank " + std::to_string(rank)));
  });
}

TEST_F(NcclFaultsTest, TheTimeoutCanBeSetLater) {
  std::latch both(2);
  RunNcclRanks(2, kPatient, [&](int rank, Result<std::unique_ptr<RankGroup>> group) {
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    (*group)->set_timeout(kImpatience);
    if (rank == 1) {
      EXPECT_THAT((*group)->Broadcast(std::vector<std::byte>(1500), 1).status().message(),
                  HasSubstr("nothing came over NCCL within 3000 ms"));
    } else {
      FailCall("ncclBroadcast", cudaErrorLaunchFailure, 0, 0);
      EXPECT_FALSE((*group)->Broadcast({}, 1).ok());
    }
    both.arrive_and_wait();
  });
}

TEST_F(NcclFaultsTest, ALostDeviceFailsAll) {
  RunNcclRanks(kNcclRanks, kPatient, [&](int rank, Result<std::unique_ptr<RankGroup>> group) {
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    if (rank == 2) LoseDevice(2);
    ASSERT_TRUE((*group)->Barrier().ok());
    (*group)->set_timeout(kImpatience);
    Status status;
    while (status.ok()) status = Talk(group->get());
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr(rank == 2 ? "cuda error" : ""));
  });
}

TEST_F(NcclFaultsTest, ARankWithoutMemoryIsKnownToAll) {
  for (const char* function : {"cudaMalloc", "cudaHostAlloc", "ncclGetUniqueId"}) {
    FailCall(function, cudaErrorMemoryAllocation);
    const Texts texts = FailToMake(kPatient);
    EXPECT_THAT(texts, Each(HasSubstr(function)));
    EXPECT_EQ(std::ranges::count_if(texts,
                                    [](const std::string& text) {
                                      return text.find(" has no NCCL: ") != std::string::npos;
                                    }),
              kNcclRanks - 1);
  }
}

TEST_F(NcclFaultsTest, ARankThatDoesNotJoinIsMissed) {
  FailCall("ncclCommInitRankConfig", cudaErrorLaunchFailure);
  const NcclOptions impatient{.piece_bytes = 1000, .timeout = kImpatience};
  EXPECT_THAT(FailToMake(impatient), Each(HasSubstr("ncclCommInitRankConfig")));
}

TEST_F(NcclFaultsTest, TwoRanksOnOneDevice) {
  std::vector<std::thread> ranks;
  for (auto& host : ThreadRanks(2)) {
    ranks.emplace_back([host = std::move(host)] {
      EXPECT_THAT(NcclRanks(host.get(), kPatient).status().message(), HasSubstr("invalid usage"));
      EXPECT_TRUE(host->Barrier().ok());  // of use as before
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(NcclFaultsTest, OptionsThatCannotBe) {
  RunNcclRanks(1, {.piece_bytes = 0}, [](int, Result<std::unique_ptr<RankGroup>> group) {
    EXPECT_EQ(group.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(group.status().message(), HasSubstr("piece_bytes is 0"));
  });
  std::vector<std::thread> ranks;
  for (auto& host : ThreadRanks(2)) {
    ranks.emplace_back([host = std::move(host)] {
      NcclOptions options = kPatient;
      options.device = host->rank();
      options.piece_bytes += static_cast<size_t>(host->rank());
      const Status status = NcclRanks(host.get(), options).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr("piece_bytes is 1001 on rank 1 and 1000 on rank 0"));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace varve::internal::testing
