// SPDX-License-Identifier: Apache-2.0
//
// A reader that fails while it catches up with its writer. RocksDB keeps such an error, or shows an
// older state from then on. So the reader gives no answer until it has opened its database anew.
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "tests/store/internals.h"
#include "tests/support/comes_true.h"
#include "tests/support/failing_io.h"

namespace varve::internal::testing {
namespace {

class RenewFaultsTest : public InternalsTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    VARVE_ASSERT_OK(Save(1, Content(1)).status());
    reader_ = Store::OpenForReading(path()).value();
    VARVE_ASSERT_OK(Save(2, Content(2)).status());
    store_.reset();  // or the writer might meet the fault
  }

  static std::vector<TestTensor> Content(uint64_t step) {
    return {RandomTensor("t", DType::kU8, {20000}, step)};
  }

  Database* seen() { return static_cast<StoreImpl*>(reader_.get())->database(); }

  // Call it while `fault` lasts.
  void ExpectNoAnswer(const FailingIo& fault) {
    EXPECT_THAT(reader_->CatchUp(), FailsWith(StatusCode::kIOError, path().string()));
    EXPECT_NE(fault.failed(), "");
    EXPECT_FALSE(reader_->LatestStep("main").ok());
    EXPECT_FALSE(reader_->ListCheckpoints("main").ok());
    for (const uint64_t step : {1, 2}) EXPECT_FALSE(reader_->OpenCheckpoint("main", step).ok());
    // Also when nothing catches up first.
    EXPECT_THAT(seen()->LastKey(Family::kSteps, ""),
                FailsWith(StatusCode::kIOError, path().string()));
  }

  void ExpectSeesAll() {
    EXPECT_TRUE(ComesTrue([&] { return reader_->CatchUp().ok(); }));
    VARVE_ASSERT_OK(reader_->CatchUp());
    EXPECT_EQ(reader_->LatestStep("main").value(), 2u);
    EXPECT_EQ(seen()->num_renewals_for_test(), 1u);
    for (const uint64_t step : {1, 2}) ExpectHolds(*reader_, step, Content(step));
  }

  std::unique_ptr<Store> reader_;
};

TEST_F(RenewFaultsTest, ATableThatDoesNotOpenOnceIsSeenAtOnce) {
  const FailingIo fault({.path = ".sst", .call = "open", .error = EMFILE});
  VARVE_EXPECT_OK(reader_->CatchUp());
  EXPECT_THAT(fault.failed(), ::testing::HasSubstr(".sst"));
  ExpectSeesAll();
}

TEST_F(RenewFaultsTest, TablesThatDoNotOpenAreNoOlderAnswer) {
  {
    const FailingIo fault({.path = ".sst", .call = "open", .count = UINT64_MAX, .error = EMFILE});
    ExpectNoAnswer(fault);
  }
  ExpectSeesAll();
}

// RocksDB looks for logs last. When that fails, it knows of the new tables, and does not show them.
TEST_F(RenewFaultsTest, AFolderThatDoesNotOpenOnceHidesNothing) {
  const FailingIo fault({.path = "/db", .call = "opendir", .error = EMFILE});
  VARVE_EXPECT_OK(reader_->CatchUp());
  EXPECT_THAT(fault.failed(), ::testing::HasSubstr("opendir"));
  ExpectSeesAll();
}

TEST_F(RenewFaultsTest, AFolderThatDoesNotOpenIsNoOlderAnswer) {
  {
    const FailingIo fault({.path = "/db", .call = "opendir", .count = UINT64_MAX, .error = EMFILE});
    ExpectNoAnswer(fault);
  }
  ExpectSeesAll();
}

}  // namespace
}  // namespace varve::internal::testing
