// SPDX-License-Identifier: Apache-2.0
#include "cli/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace varve::internal::cli {
namespace {

using ::testing::HasSubstr;

SubmitReport TwoDropped(AppliedBy applied_by) {
  SubmitReport report{.applied_by = applied_by};
  report.drop.dropped = {{"main", 1}, {"exp", 2}};
  report.drop.reclaim.freed_bytes = 1024;
  return report;
}

TEST(RequestTest, SaysWhoDidIt) {
  EXPECT_THAT(DropText(TwoDropped(AppliedBy::kCaller)),
              HasSubstr("2 steps dropped; 1.0 KiB freed"));
  EXPECT_THAT(DropText(TwoDropped(AppliedBy::kWriter)),
              HasSubstr("2 steps dropped by the live writer; 1.0 KiB freed"));
  EXPECT_EQ(DropText({}), "drop: handed to the live writer, not waited for\n");
}

TEST(RequestTest, APreviewSaysWhatComesBackAndWhen) {
  DropReport preview{.dropped = {{"main", 1}}, .reclaim = {.freed_bytes = 2048}};
  EXPECT_EQ(PreviewText(preview, /*no_reclaim=*/false),
            "2.0 KiB (2048 bytes) would come back at once\n");
  EXPECT_TRUE(PreviewOutcome(preview).ok());
  preview.reclaim.pending_bytes = 1;
  EXPECT_THAT(PreviewText(preview, false),
              HasSubstr("at once\n1 B (1 byte) lie in files that are mostly alive"));
  EXPECT_THAT(PreviewText(preview, true), HasSubstr("1 B (1 byte) would wait"));
}

TEST(RequestTest, APreviewThatLeavesSomethingOutIsDamage) {
  const DropReport preview{.warnings = {"save 7 is damaged"}};
  EXPECT_THAT(PreviewText(preview, /*no_reclaim=*/false),
              HasSubstr("warning: save 7 is damaged\n"));
  EXPECT_EQ(PreviewOutcome(preview).code(), ExitCode::kDamaged);
  EXPECT_EQ(PreviewOutcome(preview).message(),
            "the bytes leave out what cannot be read: save 7 is damaged");
}

TEST(RequestTest, JsonHasTheKeysOfTheContract) {
  const nlohmann::ordered_json object = ToJson(TwoDropped(AppliedBy::kWriter));
  EXPECT_EQ(object["dropped"].dump(), R"([{"run":"main","step":1},{"run":"exp","step":2}])");
  EXPECT_EQ(object["freed_bytes"], 1024);
  for (const char* key : {"pending_bytes", "disk_bytes_before", "disk_bytes_after"}) {
    EXPECT_TRUE(object[key].is_number_unsigned()) << key;
  }
  EXPECT_EQ(object["applied_by"], "writer");
  EXPECT_EQ(ToJson(SubmitReport{})["applied_by"], "nobody");
  EXPECT_EQ(ToJson(TwoDropped(AppliedBy::kCaller))["applied_by"], "caller");
}

}  // namespace
}  // namespace varve::internal::cli
