// SPDX-License-Identifier: Apache-2.0
#include "objects/url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace varve::internal {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ObjectsUrlTest, PartsAreFound) {
  const auto s3 =
      ObjectsUrl::Parse("S3://bucket/a/b/?endpoint=http%3A%2F%2F127.0.0.1:80&region=eu-1&flag");
  ASSERT_TRUE(s3.ok()) << s3.status().ToString();
  EXPECT_EQ(s3->scheme, "s3");
  EXPECT_EQ(s3->place, "bucket");
  EXPECT_EQ(s3->path, "a/b");
  EXPECT_EQ(s3->query.at("endpoint"), "http://127.0.0.1:80");
  EXPECT_EQ(s3->query.at("region"), "eu-1");
  EXPECT_EQ(s3->query.at("flag"), "");
  const auto plain = ObjectsUrl::Parse("s3://bucket?endpoint=http://h:80");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->path, "");
  EXPECT_EQ(plain->query.at("endpoint"), "http://h:80");
  const auto file = ObjectsUrl::Parse("file:///a%20b/c d");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->path, "/a b/c d");
}

TEST(ObjectsUrlTest, WhatIsWrongIsSaid) {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"", "is no URL"},
           {"/a/b", "is no URL"},
           {"://b", "is no URL"},
           {"1s://b", "is no URL"},
           {"file://host/b", "three slashes"},
           {"file://", "three slashes"},
           {"s3:///prefix", "malformed"},
           {"s3://b/p q", "malformed"},
           {"s3://b/%4", "malformed"},
           {"s3://b/%zz", "malformed"},
           {"file:///a%00b", "malformed"},
           {std::string("file:///a\0b", 11), "malformed"},
           {"s3://b/?=x", "malformed"},
           {"s3://b/?x=1&x=2", "malformed"}}) {
    const auto url = ObjectsUrl::Parse(text);
    EXPECT_EQ(url.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(url.status().message(), HasSubstr(says)) << text;
  }
}

TEST(ObjectsUrlTest, CredentialsAreRefusedAndNotRepeated) {
  const auto url = ObjectsUrl::Parse("s3://key:secret@bucket/x");
  EXPECT_EQ(url.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(url.status().message(), HasSubstr("~/.aws/credentials"));
  EXPECT_THAT(url.status().message(), Not(HasSubstr("secret")));
}

TEST(ObjectsUrlTest, APathIsNoUrl) {
  EXPECT_TRUE(LooksLikeUrl("s3://b"));
  EXPECT_TRUE(LooksLikeUrl("gs://b"));
  EXPECT_FALSE(LooksLikeUrl("/s3://b"));
  EXPECT_FALSE(LooksLikeUrl("folder"));
  EXPECT_FALSE(LooksLikeUrl("C:/x"));
}

TEST(OpenObjectsTest, AnEngineThatIsNotThereIsSaid) {
  const Status unknown = OpenObjects("gs://bucket/x").status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.message(), HasSubstr("no engine has the scheme \"gs\""));
  // This program links none of the optional engines.
  const Status left_out = OpenObjects("s3://bucket/x").status();
  EXPECT_EQ(left_out.code(), StatusCode::kUnavailable);
  EXPECT_THAT(left_out.message(), HasSubstr("VARVE_WITH_S3"));
  EXPECT_EQ(OpenObjects("file:///x?region=1").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace

}  // namespace varve::internal
