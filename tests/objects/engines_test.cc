// SPDX-License-Identifier: Apache-2.0
//
// This program links each engine of the build.
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#ifdef VARVE_HAS_S3
#include "varve/s3.h"
#endif
#ifdef VARVE_HAS_RADOS
#include "varve/rados.h"
#endif

namespace varve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Each program that links an engine would pay for these libraries at its start.
TEST(EnginesTest, ProgramsStartWithoutTheLibrariesOfEngines) {
#ifdef VARVE_HAS_S3
  UseS3();
#endif
#ifdef VARVE_HAS_RADOS
  UseRados();
#endif
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  ASSERT_THAT(text.str(), HasSubstr("/libc.so"));
  EXPECT_THAT(text.str(), Not(HasSubstr("/librados.so")));
  EXPECT_THAT(text.str(), Not(HasSubstr("/libcurl.so")));
}

}  // namespace
}  // namespace varve
