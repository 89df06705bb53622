// SPDX-License-Identifier: Apache-2.0
#include "store/format/keys.h"

#include <gtest/gtest.h>

namespace varve::internal {

namespace {

TEST(KeysTest, SortAsTheirNumbers) {
  EXPECT_LT(keys::Step({1, 255}), keys::Step({1, 256}));
  EXPECT_LT(keys::Step({1, UINT64_MAX}), keys::Step({2, 0}));
  EXPECT_LT(keys::Chunk({7, UINT32_MAX}), keys::Chunk({8, 0}));
  EXPECT_LT(keys::Tensor({1, 5}, "x_1", 9), keys::Tensor({1, 5}, "x_10", 0));
}

TEST(KeysTest, Golden) {
  EXPECT_EQ(keys::Step({1, 0x0203}), std::string("\0\0\0\1\0\0\0\0\0\0\2\3", 12));
  EXPECT_EQ(keys::Tensor({1, 2}, "w", 3), std::string("\0\0\0\1\0\0\0\0\0\0\0\2w\0\0\0\0\3", 18));
  EXPECT_EQ(keys::Counts(5, Counted::kList, 6), std::string("\0\0\0\0\0\0\0\5\1\0\0\0\6", 13));
  EXPECT_EQ(keys::Tag(9, "t"), std::string("t\0\0\0\x09t", 6));
  EXPECT_EQ(keys::Run("main"), "rmain");
}

TEST(KeysTest, ParseUndoesBuild) {
  const std::string tensor_key = keys::Tensor({3, 9}, "a/b c", 4);
  const auto tensor = keys::ParseTensor(tensor_key);
  ASSERT_TRUE(tensor.has_value());
  EXPECT_EQ(tensor->step, (StepKey{3, 9}));
  EXPECT_EQ(tensor->name, "a/b c");
  EXPECT_EQ(tensor->shard, 4u);
  EXPECT_EQ(keys::ParseStep(keys::Step({8, 7})), (StepKey{8, 7}));
  EXPECT_EQ(keys::ParseChunk(keys::Chunk({1, 2})), (ChunkAddress{1, 2}));
  EXPECT_EQ(keys::ParseList(keys::List({1, 2})), (ListAddress{1, 2}));
  EXPECT_EQ(keys::ParseSave(keys::Save(77))->save_id, 77u);
  EXPECT_EQ(keys::ParseSave(keys::SaveBlock(77, 5))->block, 5u);
  EXPECT_EQ(keys::ParseCounts(keys::Counts(6, Counted::kChunk, 2))->block, 2u);
  EXPECT_EQ(keys::ParseItem(keys::Item({1, 1}, "loader")), "loader");
  EXPECT_EQ(keys::ParseTag(keys::Tag(1, "best-so-far")), "best-so-far");
}

TEST(KeysTest, MalformedKeysAreRefused) {
  EXPECT_FALSE(keys::ParseStep("short"));
  EXPECT_FALSE(keys::ParseTensor(keys::Step({1, 1})));
  std::string no_zero = keys::Tensor({1, 2}, "w", 3);
  no_zero[13] = 'x';
  EXPECT_FALSE(keys::ParseTensor(no_zero));
  EXPECT_FALSE(keys::ParseChunk("x"));
  std::string bad_kind = keys::Counts(1, Counted::kChunk, 0);
  bad_kind[8] = 9;
  EXPECT_FALSE(keys::ParseCounts(bad_kind));
  EXPECT_FALSE(DecodeNumber("1234567"));
}

TEST(KeysTest, PrefixEnd) {
  EXPECT_EQ(keys::PrefixEnd("ab"), "ac");
  EXPECT_EQ(keys::PrefixEnd(std::string("a\xff\xff")), "b");
  EXPECT_EQ(keys::PrefixEnd("\xff"), "");
  EXPECT_EQ(keys::PrefixEnd(""), "");
}

}  // namespace

}  // namespace varve::internal
