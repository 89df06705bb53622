// SPDX-License-Identifier: Apache-2.0
#include "varve/name_map.h"

#include <fstream>

#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

using testing::FailsWith;

TEST(NameMapTest, EmptyMapChangesNothing) {
  const NameMap map;
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(map.Apply("model.wte"), "model.wte");
}

TEST(NameMapTest, PairsMatchWholeComponents) {
  NameMap map;
  VARVE_ASSERT_OK(map.AddPair("x_1", "y"));
  EXPECT_FALSE(map.empty());
  EXPECT_EQ(map.Apply("x_1"), "y");
  EXPECT_EQ(map.Apply("x_1.weight"), "y.weight");
  EXPECT_EQ(map.Apply("x_10"), "x_10");
  EXPECT_EQ(map.Apply("x_10.weight"), "x_10.weight");
  EXPECT_EQ(map.Apply("x_1."), "y.");
  EXPECT_EQ(map.Apply("a.x_1"), "a.x_1");
  EXPECT_EQ(map.Apply("x_"), "x_");
}

TEST(NameMapTest, FirstRuleThatMatchesDecides) {
  NameMap map;
  VARVE_ASSERT_OK(map.AddPair("model.head", "lm_head"));
  VARVE_ASSERT_OK(map.AddRegex(R"(model\.(.*)\.bias)", "biases.$1"));
  VARVE_ASSERT_OK(map.AddPair("model", "net"));
  VARVE_ASSERT_OK(map.AddPair("model.h", "never"));
  VARVE_ASSERT_OK(map.AddRegex("model.*", "never"));
  EXPECT_EQ(map.Apply("model.head.bias"), "lm_head.bias");
  EXPECT_EQ(map.Apply("model.h.bias"), "biases.h");
  EXPECT_EQ(map.Apply("model.h.weight"), "net.h.weight");
  EXPECT_EQ(map.Apply("models"), "never");
}

TEST(NameMapTest, RegexMatchesTheWholeNameAndInsertsItsGroups) {
  NameMap map;
  VARVE_ASSERT_OK(map.AddRegex(R"(module\.(.*))", "$1"));
  VARVE_ASSERT_OK(map.AddRegex(R"((\w+)_moment1_0)", "exp_avg.$1"));
  VARVE_ASSERT_OK(map.AddRegex("(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)", "$10$1$$"));
  EXPECT_EQ(map.Apply("module.wte"), "wte");
  EXPECT_EQ(map.Apply("my.module.wte"), "my.module.wte");
  EXPECT_EQ(map.Apply("wte_moment1_0"), "exp_avg.wte");
  EXPECT_EQ(map.Apply("wte_moment1_0.x"), "wte_moment1_0.x");
  EXPECT_EQ(map.Apply("abcdefghij"), "ja$");
}

// A rule is applied once, so that experts can change places.
TEST(NameMapTest, ExpertsAreRenumbered) {
  NameMap map;
  VARVE_ASSERT_OK(map.AddPair("moe.experts.0", "moe.experts.1"));
  VARVE_ASSERT_OK(map.AddPair("moe.experts.1", "moe.experts.0"));
  VARVE_ASSERT_OK(map.AddPair("moe.experts.10", "moe.experts.2"));
  EXPECT_EQ(map.Apply("moe.experts.0.w1"), "moe.experts.1.w1");
  EXPECT_EQ(map.Apply("moe.experts.1.w1"), "moe.experts.0.w1");
  EXPECT_EQ(map.Apply("moe.experts.10.w1"), "moe.experts.2.w1");
  EXPECT_EQ(map.Apply("moe.experts.11.w1"), "moe.experts.11.w1");
}

TEST(NameMapTest, RefusesWrongPairs) {
  NameMap map;
  EXPECT_THAT(map.AddPair("", "x"), FailsWith(StatusCode::kInvalidArgument, "empty name"));
  EXPECT_THAT(map.AddPair("x", ""), FailsWith(StatusCode::kInvalidArgument, "empty name"));
  VARVE_EXPECT_OK(map.AddPair("x", "y"));
  VARVE_EXPECT_OK(map.AddPair("x", "y"));
  EXPECT_THAT(map.AddPair("x", "z"), FailsWith(StatusCode::kInvalidArgument,
                                               "\"x\" becomes \"y\" already, and now \"z\""));
}

TEST(NameMapTest, RefusesWrongExpressions) {
  NameMap map;
  EXPECT_THAT(map.AddRegex("(a", "b"),
              FailsWith(StatusCode::kInvalidArgument, "the expression \"(a\" is wrong: "));
  EXPECT_THAT(map.AddRegex("(a)", "$2"),
              FailsWith(StatusCode::kInvalidArgument,
                        "the expression \"(a)\" has 1 groups, \"$2\" names $2"));
  EXPECT_TRUE(map.empty());
}

TEST(NameMapTest, PairsThatMatchNoNameAreListedInTheirOrder) {
  NameMap map;
  for (const char* from : {"z", "x.1", "b", "a", "x"}) VARVE_ASSERT_OK(map.AddPair(from, "new"));
  const std::vector<std::string> names = {"a.weight", "x.1.w", "x.2", "bc"};
  EXPECT_THAT(map.PairsWithoutUse(names), ::testing::ElementsAre("z", "b"));
  EXPECT_THAT(map.PairsWithoutUse({}), ::testing::ElementsAre("z", "x.1", "b", "a", "x"));
  EXPECT_THAT(NameMap().PairsWithoutUse(names), ::testing::IsEmpty());
}

class NameMapFileTest : public ::testing::Test {
 protected:
  Status Add(const std::string& text) {
    std::ofstream(path_) << text;
    return map_.AddFile(path_);
  }

  testing::TempFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "names";
  NameMap map_;
};

TEST_F(NameMapFileTest, PairsComeFromAFile) {
  VARVE_ASSERT_OK(Add("# structured  trainer\n\n  linear_0.w_0\tmodel.h.0 \r\n a b\n#c d\nx y"));
  EXPECT_EQ(map_.Apply("linear_0.w_0"), "model.h.0");
  EXPECT_EQ(map_.Apply("a.b"), "b.b");
  EXPECT_EQ(map_.Apply("#c"), "#c");
  EXPECT_EQ(map_.Apply("x"), "y");
}

TEST_F(NameMapFileTest, ErrorsNameTheLineAndAddNothing) {
  EXPECT_THAT(Add("a b\nc\n"), FailsWith(StatusCode::kInvalidArgument,
                                         path_.string() + ":2: \"c\", expected two names"));
  EXPECT_THAT(Add("a b c\n"), FailsWith(StatusCode::kInvalidArgument, ":1: \"a b c\""));
  EXPECT_THAT(Add("a b\n\na c\n"),
              FailsWith(StatusCode::kInvalidArgument, ":3: \"a\" becomes \"b\" already"));
  EXPECT_TRUE(map_.empty());
}

TEST_F(NameMapFileTest, FileMustBeThere) {
  EXPECT_THAT(map_.AddFile(path_), FailsWith(StatusCode::kNotFound, path_.string()));
  EXPECT_FALSE(map_.AddFile(folder_.path()).ok());
}

}  // namespace

}  // namespace varve::internal
