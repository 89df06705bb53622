// SPDX-License-Identifier: Apache-2.0
//
// Which entropy coder a store uses, and what FORMAT says of it.
#include "store/format/format_file.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

class EntropyTest : public StoreTest {
 protected:
  // The planes of the live frames that a coder stores.
  uint64_t PlanesOf(std::string_view coder) {
    for (const CoderUse& use : GetStats().by_coder) {
      if (use.coder == coder) return use.num_planes;
    }
    return 0;
  }
  bool HasFeature() {
    return (ReadFormatFile(path(), /*for_writing=*/true).value().incompatible & kRansFeature) != 0;
  }
  const std::vector<TestTensor> weights_ = {NormalTensor("w", {300, 1000}, 1)};
};

TEST_F(EntropyTest, RansIsCountedAndReadBack) {
  Reset({.store = {.entropy = Entropy::kRans}});
  EXPECT_TRUE(HasFeature());
  VARVE_ASSERT_OK(Save(1, weights_).status());
  ExpectHolds(1, weights_);
  EXPECT_EQ(PlanesOf("rans"), 2u);  // one of each chunk
  EXPECT_EQ(PlanesOf("zstd"), 0u);
  VARVE_ASSERT_OK(DropSteps({1}));
  EXPECT_EQ(PlanesOf("rans"), 0u);
}

TEST_F(EntropyTest, AStoreForZstdStaysOne) {
  Reset({.store = {.entropy = Entropy::kZstd}});
  EXPECT_FALSE(HasFeature());
  VARVE_ASSERT_OK(Save(1, weights_).status());
  EXPECT_EQ(PlanesOf("zstd"), 2u);
  Reopen({.entropy = Entropy::kRans});
  VARVE_ASSERT_OK(Save(2, {NormalTensor("w", {300, 1000}, 2)}).status());
  EXPECT_EQ(PlanesOf("rans"), 0u);
  EXPECT_FALSE(HasFeature());
}

TEST_F(EntropyTest, TheCoderMayChangeFromOpenToOpen) {
  EXPECT_TRUE(HasFeature());  // auto
  Reopen({.entropy = Entropy::kZstd});
  VARVE_ASSERT_OK(Save(1, weights_).status());
  EXPECT_EQ(PlanesOf("rans"), 0u);
  Reopen({.entropy = Entropy::kRans});
  const std::vector<TestTensor> next = {NormalTensor("w", {300, 1000}, 2)};
  VARVE_ASSERT_OK(Save(2, next).status());
  EXPECT_EQ(PlanesOf("rans"), 2u);
  ExpectHolds(1, weights_);
  ExpectHolds(2, next);
}

}  // namespace
}  // namespace varve::internal::testing
