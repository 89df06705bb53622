// SPDX-License-Identifier: Apache-2.0
//
// Digests on threads, also when memory runs out.
#include "trainer_hooks/group/replica_digests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/store/store_fixture.h"
#include "tests/support/scarce_memory.h"

namespace varve::internal::testing {
namespace {

constexpr int64_t kRows = 1000, kColumns = 400;

class ReplicaDigestsTest : public ::testing::Test {
 protected:
  // Returns one tensor with the values 0, 1, ... The next has its columns one behind the other.
  StateTensor Dense() {
    return {{.name = "w", .dtype = DType::kI64, .shape = kShape}, dense_.data()};
  }
  StateTensor Strided() {
    return {
        {.name = "w", .dtype = DType::kI64, .shape = kShape}, strided_.data(), kHost, {1, kRows}};
  }

  static Result<std::vector<Digest>> Digests(const std::vector<StateTensor>& tensors, int threads) {
    return ReplicaDigests(tensors, nullptr, threads).Finish();
  }

  const std::vector<int64_t> kShape = {kRows, kColumns};
  std::vector<int64_t> dense_ = Numbers(kColumns, 1);
  std::vector<int64_t> strided_ = Numbers(1, kRows);

 private:
  static std::vector<int64_t> Numbers(int64_t row, int64_t column) {
    std::vector<int64_t> values(kRows * kColumns);
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t k = 0; k < kColumns; ++k) {
        values[static_cast<size_t>(i * row + k * column)] = i * kColumns + k;
      }
    }
    return values;
  }
};

TEST_F(ReplicaDigestsTest, StridesMakeNoDifferenceAndEveryByteDoes) {
  const auto all = Digests({Dense(), Strided()}, 2);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_EQ((*all)[0], (*all)[1]);
  for (const size_t i : {size_t{0}, dense_.size() / 2, dense_.size() - 1}) {
    ++dense_[i];
    EXPECT_NE(Digests({Dense()}, 2)->at(0), (*all)[1]) << i;
    --dense_[i];
  }
}

TEST_F(ReplicaDigestsTest, AThreadTakesLittleMemory) {
  const ScarceMemory memory(SIZE_MAX);
  VARVE_ASSERT_OK(Digests({Strided()}, 3).status());
  EXPECT_LE(memory.largest(), size_t{256} << 10);
}

TEST_F(ReplicaDigestsTest, WithoutMemoryItIsAnError) {
  const ScarceMemory memory(64 << 10);
  const auto digests = Digests({Strided(), Strided()}, 3);
  EXPECT_THAT(digests, FailsWith(StatusCode::kUnavailable, "no memory to compare replicas"));
  EXPECT_TRUE(Digests({Dense()}, 3).ok());  // which needs none
}

}  // namespace
}  // namespace varve::internal::testing
