// SPDX-License-Identifier: Apache-2.0
#include "objects/shared_library.h"

#include <gmock/gmock.h>

#include "tests/support/status_checks.h"

namespace varve::internal {
namespace {

using ::testing::HasSubstr;

constexpr char kLibrary[] = "libc.so.6";
constexpr char kPackage[] = "libc6";

TEST(SharedLibraryTest, AFunctionOfItIsFound) {
  const auto library = SharedLibrary::Load(kLibrary, kPackage);
  VARVE_ASSERT_OK(library.status());
  int (*absolute)(int) = nullptr;
  VARVE_ASSERT_OK(library->Find("abs", &absolute));
  EXPECT_EQ(absolute(-7), 7);
}

TEST(SharedLibraryTest, AnErrorNamesWhatIsMissing) {
  const Status missing = SharedLibrary::Load("libvarve_none.so.1", "its-package").status();
  EXPECT_EQ(missing.code(), StatusCode::kUnavailable);
  EXPECT_THAT(missing.message(), HasSubstr("libvarve_none.so.1"));
  EXPECT_THAT(missing.message(), HasSubstr("Debian: its-package"));
  const auto library = SharedLibrary::Load(kLibrary, kPackage);
  VARVE_ASSERT_OK(library.status());
  int (*function)() = nullptr;
  const Status unknown = library->Find("varve_none", &function);
  EXPECT_EQ(unknown.code(), StatusCode::kUnavailable);
  EXPECT_THAT(unknown.message(), HasSubstr("varve_none"));
  EXPECT_EQ(function, nullptr);
}

}  // namespace
}  // namespace varve::internal
