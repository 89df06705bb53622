// SPDX-License-Identifier: Apache-2.0
//
// How ranks that talk over NCCL load into their devices: what is copied to and from the host, what
// is done at the same time, and what they say when a call fails. It runs on the host's runtime,
// which counts, holds up and fails.
#include <atomic>
#include <chrono>
#include <latch>
#include <mutex>
#include <thread>

#include "tests/cuda/host_runtime/host_runtime.h"
#include "tests/cuda/nccl_load_fixture.h"
#include "tests/support/comes_true.h"

namespace varve::internal::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;

class NcclCopiesTest : public NcclLoadTest {
 protected:
  void SetUp() override {
    testing::Reset();
    SetDevices(kRanks);
    UseKernels(Kernels::kReference);
    NcclLoadTest::SetUp();
  }
  void TearDown() override {
    NcclLoadTest::TearDown();
    AwaitIdle();
    EXPECT_THAT(Leaks(), ::testing::IsEmpty());
    testing::Reset();
    SetDevices(4);
    UseKernels(Kernels::kReference);
  }
  uint64_t TargetBytes() const {
    uint64_t bytes = 0;
    for (const Rank& rank : ranks_) {
      for (const TestTensor& tensor : rank.expected) bytes += tensor.bytes.size();
    }
    return bytes;
  }
};

TEST_F(NcclCopiesTest, TensorsGoFromDeviceToDevice) {
  const TestTensor a = RandomTensor("a", DType::kF32, {kMillion + 12'345}, 1);
  const TestTensor c = RandomTensor("c", DType::kF32, {1000, 600}, 2);
  const TestTensor s = RandomTensor("s", DType::kU8, {1001}, 3);
  const TestTensor own = RandomTensor("own", DType::kF32, {1000}, 4);
  reader_ = SaveAndRead({a, c, s, own});
  for (const TestTensor& tensor : {a, s}) AddToAll(tensor);
  for (int rank = 0; rank < kRanks; ++rank) AddColumns(c, rank);
  const uint64_t sent = TargetBytes();
  ranks_[0].Add(own);  // which no other rank wants
  const uint64_t to_host = CopiedBytes(cudaMemcpyDeviceToHost);
  const uint64_t to_device = CopiedBytes(cudaMemcpyHostToDevice);
  const uint64_t on_device = CopiedBytes(cudaMemcpyDeviceToDevice);
  for (const Status& status : LoadAll()) VARVE_EXPECT_OK(status);
  // To the host come digests, and messages that are small enough to be digested there.
  EXPECT_LT(CopiedBytes(cudaMemcpyDeviceToHost) - to_host, 32'768u);
  // Each byte that is read goes to a device once, whoever gets it. Tables of chunks go with it.
  const uint64_t read = a.bytes.size() + c.bytes.size() + s.bytes.size() + own.bytes.size();
  EXPECT_LT(CopiedBytes(cudaMemcpyHostToDevice) - to_device, read + 32'768);
  EXPECT_EQ(CopiedBytes(cudaMemcpyDeviceToDevice) - on_device, sent);
  ExpectFilled();
}

// Until all three reads have begun, of which two are of the first round, no device does anything.
TEST_F(NcclCopiesTest, TheNextPiecesAreReadWhileTheseAreOnTheirWay) {
  const TestTensor a = RandomTensor("a", DType::kF32, {5 * kMillion}, 1);
  reader_ = SaveAndRead({a});
  AddToAll(a);
  std::atomic<int> reads = 0;
  reader_->set_on_read([&] { ++reads; });
  std::latch have_groups(kRanks + 1), are_held(1);
  std::thread holder([&] {
    have_groups.arrive_and_wait();
    for (int i = 0; i < kRanks; ++i) HoldDevice(i, true);
    are_held.count_down();
    EXPECT_TRUE(ComesTrue([&] { return reads >= 3 && NumCalls("ncclSend") > 0; }));
    EXPECT_EQ(reads, 3);
    for (int i = 0; i < kRanks; ++i) HoldDevice(i, false);
  });
  options_.piece_bytes = size_t{4} << 20;
  on_groups_ = [&] {
    have_groups.arrive_and_wait();
    are_held.wait();
  };
  const std::vector<Status> results = LoadAll();
  holder.join();
  for (const Status& status : results) VARVE_EXPECT_OK(status);
  ExpectFilled();
}

// The ranks that wait for the one that fails give up.
TEST_F(NcclCopiesTest, ACallThatFailsOnOneFailsTheLoadOnAll) {
  const TestTensor a = RandomTensor("a", DType::kF32, {100'000}, 1);
  const TestTensor c = RandomTensor("c", DType::kF32, {100, 600}, 2);
  reader_ = SaveAndRead({a, c});
  AddToAll(a);
  for (int rank = 0; rank < kRanks; ++rank) AddColumns(c, rank);
  for (const std::string function :
       {"ncclSend", "NcclKernel", "cudaMalloc", "cudaMemcpy2DAsync", "LaunchDigests",
        "cudaStreamWaitEvent", "cudaStreamSynchronize"}) {
    SCOPED_TRACE(function);
    std::latch have_groups(kRanks);
    std::once_flag fails;
    on_groups_ = [&] {
      have_groups.arrive_and_wait();
      std::call_once(fails, [&] { FailCall(function, cudaErrorLaunchFailure, 0, 1); });
    };
    options_.timeout = std::chrono::seconds(5);
    const std::vector<Status> results = LoadAll();
    FailCall(function, cudaSuccess);
    for (const Status& status : results) {
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
    }
    // Launches are NCCL's: their errors are those of the communicator.
    const std::string said = function == "NcclKernel" ? "ncclCommGetAsyncError" : function;
    EXPECT_THAT(results[1].message(), HasSubstr(said));
    AwaitIdle();
  }
  on_groups_ = nullptr;
  options_.timeout = std::chrono::minutes(2);
  for (const Status& status : LoadAll()) VARVE_EXPECT_OK(status);
  ExpectFilled();
}

}  // namespace
}  // namespace varve::internal::testing
