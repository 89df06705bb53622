// SPDX-License-Identifier: Apache-2.0
#include "store/db/cursor.h"

#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

class CursorTest : public InternalsTest {
 protected:
  // Every third of a hundred numbers, over several files.
  void SetUp() override {
    InternalsTest::SetUp();
    expect_damage_ = true;  // the records are none
    for (int file = 0; file < 3; ++file) {
      CommitBatch batch;
      for (uint64_t i = 0; i < 99; i += 3) {
        if (static_cast<int>(i / 3 % 3) == file)
          batch.Put(Family::kLists, EncodeNumber(i), Value(i));
      }
      VARVE_ASSERT_OK(batch.Commit(database(), impl()->incoming(), {}));
    }
  }
  static std::string Value(uint64_t i) { return "value of " + std::to_string(i); }
  // Finds the key by a cursor and by itself.
  void ExpectFinds(Cursor* cursor, uint64_t i) {
    const auto found = cursor->Find(EncodeNumber(i));
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    if (i % 3 == 0 && i < 99) {
      EXPECT_EQ(found->value_or("nothing"), Value(i));
    } else {
      EXPECT_EQ(*found, std::nullopt) << i;
    }
  }
};

TEST_F(CursorTest, FindsWhatRises) {
  Cursor cursor(database(), Family::kLists);
  for (uint64_t i = 0; i < 110; ++i) ExpectFinds(&cursor, i);
  Cursor in_strides(database(), Family::kLists);
  for (uint64_t i = 1; i < 110; i += 37) ExpectFinds(&in_strides, i);
}

TEST_F(CursorTest, FindsInAnyOrder) {
  Cursor cursor(database(), Family::kLists);
  std::mt19937_64 random(1);
  for (int i = 0; i < 500; ++i) ExpectFinds(&cursor, random() % 120);
  ExpectFinds(&cursor, 500);  // beyond the last
  ExpectFinds(&cursor, 0);
  ExpectFinds(&cursor, 0);
}

}  // namespace
}  // namespace varve::internal::testing
