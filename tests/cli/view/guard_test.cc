// SPDX-License-Identifier: Apache-2.0
#include "cli/view/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace varve::internal::cli {
namespace {

using ::testing::HasSubstr;

const std::string kToken(32, 'a');

HttpRequest Request(const std::string& path) {
  return {.method = "GET", .path = path, .headers = {{"host", "127.0.0.1:80"}}};
}

std::string WhyRefused(const HttpRequest& request) {
  Guard guard(kToken, 80);
  const auto verdict = guard.Examine(request);
  return verdict.response ? verdict.response->body : "";
}

TEST(GuardTest, TokensAreRandom) {
  const auto token = MakeToken();
  ASSERT_TRUE(token.ok());
  EXPECT_THAT(*token, ::testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_NE(*token, MakeToken().value());
}

TEST(GuardTest, ComparesEveryByte) {
  EXPECT_TRUE(EqualInConstantTime("", ""));
  EXPECT_TRUE(EqualInConstantTime("abc", "abc"));
  for (const char* other : {"bbc", "acc", "abx", "ab", "abcd", "", "\xe1\x62\x63"}) {
    EXPECT_FALSE(EqualInConstantTime("abc", other)) << other;
  }
}

TEST(GuardTest, GivesWhatLiesBehindTheToken) {
  Guard guard(kToken, 80);
  EXPECT_EQ(guard.url(), "http://127.0.0.1:80/" + kToken + "/");
  EXPECT_EQ(guard.Examine(Request("/" + kToken + "/")).path, "");
  const auto verdict = guard.Examine(Request("/" + kToken + "/api/runs"));
  EXPECT_FALSE(verdict.response);
  EXPECT_EQ(verdict.path, "api/runs");
}

TEST(GuardTest, RefusesPathsWithoutTheToken) {
  for (const std::string& path :
       {std::string(), std::string("/"), "/" + kToken, "/" + kToken + "a/", kToken + "/",
        "//" + kToken + "/", "/" + kToken.substr(1) + "/x", "/" + kToken.substr(1) + "b/"}) {
    EXPECT_THAT(WhyRefused(Request(path)), HasSubstr("token")) << path;
  }
}

TEST(GuardTest, RefusesASecondHost) {
  HttpRequest request = Request("/" + kToken + "/");
  request.headers.emplace("host", "evil.example");
  EXPECT_THAT(WhyRefused(request), HasSubstr("127.0.0.1"));
  request.headers.clear();
  EXPECT_THAT(WhyRefused(request), HasSubstr("127.0.0.1"));
}

TEST(GuardTest, AnOriginMustBeTheHostThatIsAsked) {
  HttpRequest request = Request("/" + kToken + "/api/runs");
  request.headers.emplace("origin", "http://localhost:80");
  EXPECT_THAT(WhyRefused(request), HasSubstr("origin"));
  request.headers = {{"host", "localhost:80"}, {"origin", "http://localhost:80"}};
  EXPECT_EQ(WhyRefused(request), "");
}

TEST(GuardTest, WithoutAnEntranceNothingOpens) {
  for (const char* path : {"/open/", "/open", ""}) {
    EXPECT_THAT(WhyRefused(Request(path)), HasSubstr("token")) << path;
  }
}

TEST(GuardTest, TheEntranceIsForAConnectionOfThisUser) {
  Guard guard(kToken, 80);
  EXPECT_EQ(guard.MakeEntrance("secret"), "http://127.0.0.1:80/open/secret");
  // No program is connected from this port, so nobody knows whose the request is.
  const auto verdict = guard.Examine(Request("/open/secret"));
  ASSERT_TRUE(verdict.response);
  EXPECT_EQ(verdict.response->status, 403);
  EXPECT_THAT(verdict.response->body, HasSubstr("of one user"));
  EXPECT_THAT(guard.Examine(Request("/open/secre")).response->body, HasSubstr("token"));
}

}  // namespace
}  // namespace varve::internal::cli
