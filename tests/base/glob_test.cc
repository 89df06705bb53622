// SPDX-License-Identifier: Apache-2.0
#include "base/glob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace varve::internal {

namespace {

TEST(GlobTest, KnowsAPatternFromAName) {
  EXPECT_TRUE(IsGlob("*"));
  EXPECT_TRUE(IsGlob("a.*.b"));
  EXPECT_FALSE(IsGlob("a.b"));
  EXPECT_FALSE(IsGlob(""));
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GlobTest, MatchesPlainNames) {
  EXPECT_TRUE(MatchesGlob("", ""));
  EXPECT_TRUE(MatchesGlob("model.wte", "model.wte"));
  EXPECT_FALSE(MatchesGlob("model.wte", "model.wte2"));
  EXPECT_FALSE(MatchesGlob("model.wte", "model.wt"));
  EXPECT_FALSE(MatchesGlob("", "x"));
}

TEST(GlobTest, StarMatchesAnyRun) {
  EXPECT_TRUE(MatchesGlob("*", ""));
  EXPECT_TRUE(MatchesGlob("*", "a/b c.d"));
  EXPECT_TRUE(MatchesGlob("model.*.weight", "model.h.0.attn.weight"));
  EXPECT_FALSE(MatchesGlob("model.*.weight", "model.weight"));
  EXPECT_TRUE(MatchesGlob("*aab*", "aaaab"));
  EXPECT_TRUE(MatchesGlob("a**b", "ab"));
  EXPECT_FALSE(MatchesGlob("ab*ab", "ab"));
  EXPECT_FALSE(MatchesGlob("ab*ab", "aba"));
}

TEST(GlobTest, OtherSignsStandForThemselves) {
  EXPECT_TRUE(MatchesGlob("a?[b]", "a?[b]"));
  EXPECT_FALSE(MatchesGlob("a?", "ab"));
  EXPECT_FALSE(MatchesGlob("a.b", "axb"));
}

// The obvious definition, which takes exponential time.
bool MatchesSlowly(std::string_view glob, std::string_view text) {
  if (glob.empty()) return text.empty();
  if (glob[0] != '*') {
    return !text.empty() && glob[0] == text[0] && MatchesSlowly(glob.substr(1), text.substr(1));
  }
  return MatchesSlowly(glob.substr(1), text) ||
         (!text.empty() && MatchesSlowly(glob, text.substr(1)));
}

TEST(GlobTest, AgreesWithTheObviousDefinition) {
  std::mt19937 random(1);
  const auto draw = [&random](std::string_view letters, size_t max_size) {
    std::string text;
    for (size_t size = random() % (max_size + 1); size > 0; --size) {
      text += letters[random() % letters.size()];
    }
    return text;
  };
  for (int i = 0; i < 20'000; ++i) {
    const std::string glob = draw("ab**", 7);
    const std::string text = draw("ab", 8);
    EXPECT_EQ(MatchesGlob(glob, text), MatchesSlowly(glob, text)) << glob << " on " << text;
  }
}

TEST(GlobTest, TakesLinearTimeOnManyStars) {
  std::string glob;
  for (int i = 0; i < 200; ++i) glob += "*a";
  EXPECT_FALSE(MatchesGlob(glob + "b", std::string(5'000, 'a')));
}

TEST(GlobTest, CapturesWhatStarsStandFor) {
  EXPECT_THAT(CaptureGlob("model.*", "model.h.0").value(), ElementsAre("h.0"));
  EXPECT_THAT(CaptureGlob("*.*", "a.b.c").value(), ElementsAre("a", "b.c"));
  EXPECT_THAT(CaptureGlob("x", "x").value(), ElementsAre());
  EXPECT_FALSE(CaptureGlob("model.*", "master.h").has_value());
}

TEST(RenameRuleTest, PutsCapturesIntoTheRightSide) {
  const RenameRule rule = RenameRule::Parse("model.*=master.*").value();
  EXPECT_EQ(rule.Apply("model.h.0.w"), "master.h.0.w");
  EXPECT_EQ(rule.Apply("exp_avg.h.0.w"), std::nullopt);
  EXPECT_EQ(RenameRule::Parse("*/*=<*|*>").value().Apply("a/b/c"), "<a|b/c>");
  EXPECT_EQ(RenameRule::Parse("a=b").value().Apply("a"), "b");
}

TEST(RenameRuleTest, RejectsWhatIsNoRule) {
  EXPECT_THAT(RenameRule::Parse("model.*").status().message(), HasSubstr("LEFT=RIGHT"));
  EXPECT_THAT(RenameRule::Parse("a*=b").status().message(), HasSubstr("as many *"));
}

}  // namespace

}  // namespace varve::internal
