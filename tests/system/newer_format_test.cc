// SPDX-License-Identifier: Apache-2.0
//
// Stores from the future: what this version must refuse, and what it may still do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "store/format/format_file.h"
#include "tests/support/step_content.h"
#include "tests/support/temp_folder.h"

namespace varve::internal::testing {
namespace {

using ::testing::HasSubstr;

constexpr ContentPlan kPlan{.max_tensor_bytes = 4096};

class NewerFormatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = Store::Create(path_);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto report = SaveContent(store->get(), kPlan, 1, 1);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
  }

  // Rewrites FORMAT as a newer program would have.
  void Change(void (*change)(FormatFile*)) {
    auto format = ReadFormatFile(path_, /*for_writing=*/true);
    ASSERT_TRUE(format.ok()) << format.status().ToString();
    change(&*format);
    const Status status = WriteFormatFile(path_, *format);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  void ExpectReadable() {
    const auto store = Store::OpenForReading(path_);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto reader = (*store)->OpenCheckpoint("main", 1);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    const Status status = VerifyContent(**reader, kPlan);
    EXPECT_TRUE(status.ok()) << status.ToString();
    const auto check = (*store)->Check({.read_data = true, .progress = {}});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_TRUE(check->ok()) << check->errors.front();
  }

  void ExpectRefused(const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(path_.string()));
    EXPECT_THAT(status.message(), HasSubstr("newer"));
  }

  TempFolder folder_;
  std::filesystem::path path_ = folder_.path() / "store";
};

TEST_F(NewerFormatTest, NewerVersionIsRefused) {
  Change([](FormatFile* format) { format->version = kFormatVersion + 1; });
  ExpectRefused(Store::Open(path_).status());
  ExpectRefused(Store::OpenForReading(path_).status());
}

TEST_F(NewerFormatTest, UnknownIncompatibleFeatureIsRefused) {
  Change([](FormatFile* format) { format->incompatible |= uint64_t{1} << 63; });
  ExpectRefused(Store::Open(path_).status());
  ExpectRefused(Store::OpenForReading(path_).status());
}

TEST_F(NewerFormatTest, UnknownReadCompatibleFeatureForbidsWritingOnly) {
  Change([](FormatFile* format) { format->read_compatible |= uint64_t{1} << 63; });
  ExpectRefused(Store::Open(path_).status());
  ExpectReadable();
}

TEST_F(NewerFormatTest, UnknownCompatibleFeatureIsIgnored) {
  Change([](FormatFile* format) { format->compatible |= uint64_t{1} << 63; });
  ExpectReadable();
  auto store = Store::Open(path_);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto report = SaveContent(store->get(), kPlan, 2, 2);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
}

}  // namespace
}  // namespace varve::internal::testing
