// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/infinitrain_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/formats/file_folder.h"
#include "tests/cli/formats/foreign_builder.h"

namespace varve::internal::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InfiniTrainFilesTest : public ::testing::Test {
 protected:
  Result<InfiniTrainFiles> Open(const std::vector<std::string>& names) {
    std::vector<std::filesystem::path> paths;
    for (const std::string& name : names) paths.push_back(folder_.path() / name);
    return InfiniTrainFiles::Open(paths);
  }
  std::string ErrorOf(const std::vector<std::string>& names) {
    const Result<InfiniTrainFiles> files = Open(names);
    EXPECT_FALSE(files.ok());
    return files.status().message();
  }

  FileFolder folder_;
  const std::string b_a_ = CkptFile(2, CkptEntry("b", 1, {}, "b") + CkptEntry("a", 1, {}, "a"));
  const std::string t_ = CkptFile(1, CkptEntry("adam.t", 1, {}, "t"));
};

TEST_F(InfiniTrainFilesTest, ReadsAFolder) {
  folder_.Write("model.ckpt", b_a_);
  folder_.Write("optimizer.ckpt", t_);
  folder_.Write("trainer_state.json", "{}");
  folder_.Write("lr_scheduler.ckpt", "");
  const auto files = Open({""});
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  ASSERT_EQ(files->layout().size(), 2u);
  EXPECT_EQ(files->layout()[0].file, "model.ckpt");
  EXPECT_THAT(files->layout()[0].tensors, ElementsAre("b", "a"));
  EXPECT_THAT(files->layout()[1].tensors, ElementsAre("adam.t"));
  EXPECT_EQ(files->tensors().size(), 3u);
  EXPECT_EQ(files->state_text(), "{}");
  EXPECT_THAT(files->others(), ElementsAre(folder_.path() / "lr_scheduler.ckpt"));
}

TEST_F(InfiniTrainFilesTest, NeedsOnlyAModel) {
  EXPECT_THAT(ErrorOf({""}), HasSubstr("there is no model.ckpt"));
  folder_.Write("optimizer.ckpt", t_);
  EXPECT_THAT(ErrorOf({""}), HasSubstr("there is no model.ckpt"));
  folder_.Write("model.ckpt", b_a_);
  std::filesystem::remove(folder_.path() / "optimizer.ckpt");
  const auto files = Open({""});
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_FALSE(files->state_text().has_value());
}

TEST_F(InfiniTrainFilesTest, SendsTheUserToTheFoldersOfRanks) {
  std::filesystem::create_directory(folder_.path() / "rank_000003");
  EXPECT_THAT(ErrorOf({""}), HasSubstr("must be imported one by one, as "));
}

TEST_F(InfiniTrainFilesTest, NamesTheMalformedFile) {
  folder_.Write("model.ckpt", "CKPT");
  EXPECT_THAT(ErrorOf({"model.ckpt"}),
              HasSubstr("model.ckpt: at byte 4: the version needs 4 bytes"));
}

TEST_F(InfiniTrainFilesTest, RejectsATensorInTwoFiles) {
  folder_.Write("model.ckpt", t_);
  folder_.Write("optimizer.ckpt", t_);
  EXPECT_THAT(ErrorOf({""}),
              HasSubstr("\"adam.t\" is in two files: model.ckpt and optimizer.ckpt"));
}

TEST_F(InfiniTrainFilesTest, RejectsOneNameTwiceAndOtherNames) {
  folder_.Write("model.ckpt", t_);
  folder_.Write("trainer_state.json", "{}");
  EXPECT_THAT(ErrorOf({"model.ckpt", ""}), HasSubstr("model.ckpt: another file has that name"));
  EXPECT_THAT(ErrorOf({"trainer_state.json", "trainer_state.json"}), HasSubstr("has that name"));
  EXPECT_THAT(ErrorOf({"model.bin"}), HasSubstr("model.bin: expected a folder"));
  EXPECT_EQ(Open({"optimizer.ckpt"}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace varve::internal::formats
