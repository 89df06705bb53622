// SPDX-License-Identifier: Apache-2.0
//
// Which files a reader keeps open. A program of its own, because it looks at all descriptors of its
// process.
#include <filesystem>
#include <string>
#include <vector>

#include "tests/store/store_fixture.h"
#include "tests/support/comes_true.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using OpenFilesTest = StoreTest;

// Each open of a writer starts a new manifest. A reader may take a while before it opens its
// database anew.
TEST_F(OpenFilesTest, ReaderThatFollowsToNewManifestsKeepsNoDeletedFileOpen) {
  const auto reader = Store::OpenForReading(path()).value();
  const auto count_deleted = [&] {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;  // the descriptor of this iteration is gone
      const std::string file = fs::read_symlink(entry.path(), ignored);
      count += file.starts_with(path().string()) && file.ends_with(" (deleted)") ? 1 : 0;
    }
    return count;
  };
  for (uint64_t step = 1; step <= 12; ++step) {
    const std::vector<TestTensor> content = {RandomTensor("t", DType::kU8, {20000}, step)};
    VARVE_ASSERT_OK(Save(step, content).status());
    VARVE_ASSERT_OK(reader->CatchUp());
    ExpectHolds(*reader, step, content);
    if (step % 3 != 0) continue;
    VARVE_ASSERT_OK(DropSteps({step - 2, step - 1}));
    VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
    Reopen();
    VARVE_ASSERT_OK(reader->CatchUp());
    Status status;
    const bool is_none_left = ComesTrue([&] {
      status = reader->CatchUp();
      return !status.ok() || count_deleted() == 0;
    });
    VARVE_ASSERT_OK(status);
    EXPECT_TRUE(is_none_left) << "step " << step;
    ExpectHolds(*reader, step, content);
  }
}

}  // namespace
}  // namespace varve::internal::testing
