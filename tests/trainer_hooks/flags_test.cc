// SPDX-License-Identifier: Apache-2.0
#include "varve/flags.h"

#include <algorithm>
#include <set>

#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

// Sets flags as an argument parser would: "--name value" or "--name".
Status Parse(const std::vector<std::pair<std::string, std::string>>& arguments,
             CheckpointFlags* flags) {
  const std::vector<FlagSpec> specs = CheckpointFlagSpecs(flags);
  for (const auto& [name, value] : arguments) {
    const auto spec = std::ranges::find(specs, name, &FlagSpec::name);
    if (spec == specs.end()) return Status::NotFound("no flag " + name);
    VARVE_RETURN_IF_ERROR(spec->set(value));
  }
  return ValidateFlags(*flags);
}

TEST(FlagsTest, EachIsSet) {
  CheckpointFlags f;
  VARVE_ASSERT_OK(Parse({{"--save", "a"},
                         {"--save-interval", "5"},
                         {"--run", "r"},
                         {"--no-save-optim", ""},
                         {"--no-async-save", ""},
                         {"--max-checkpoint-keep", "3"},
                         {"--keep-every", "100"},
                         {"--keep-best", "accuracy:max"},
                         {"--remote", "s3://bucket/run"},
                         {"--remote-interval", "4"},
                         {"--remote-keep", "5"},
                         {"--load", "b"},
                         {"--ckpt-step", "best:loss"},
                         {"--no-load-optim", ""},
                         {"--finetune", ""},
                         {"--exit-on-missing-checkpoint", ""},
                         {"--dist-ckpt-strictness", "log_unexpected"},
                         {"--exit-interval", "7"},
                         {"--exit-duration-in-mins", "0.5"},
                         {"--exit-deadline-in-secs", "30"},
                         {"--rank-timeout-in-secs", "2.5"}},
                        &f));
  EXPECT_EQ(f.save, "a");
  EXPECT_EQ(f.save_interval, 5u);
  EXPECT_EQ(f.run, "r");
  EXPECT_FALSE(f.save_optim);
  EXPECT_FALSE(f.async_save);
  EXPECT_EQ(f.max_checkpoint_keep, 3u);
  EXPECT_EQ(f.keep_every, 100u);
  EXPECT_EQ(f.keep_best->metric, "accuracy");
  EXPECT_TRUE(f.keep_best->highest);
  EXPECT_EQ(f.remote, "s3://bucket/run");
  EXPECT_EQ(f.remote_interval, 4u);
  EXPECT_EQ(f.remote_keep, 5u);
  EXPECT_EQ(f.load, "b");
  EXPECT_EQ(f.ckpt_step, "best:loss");
  EXPECT_FALSE(f.load_optim);
  EXPECT_TRUE(f.finetune);
  EXPECT_TRUE(f.exit_on_missing_checkpoint);
  EXPECT_EQ(f.strictness, Strictness::kLogUnexpected);
  EXPECT_EQ(f.exit_interval, 7u);
  EXPECT_EQ(f.exit_duration_in_mins, 0.5);
  EXPECT_EQ(f.exit_deadline_in_secs, 30);
  EXPECT_EQ(f.rank_timeout_in_secs, 2.5);
}

TEST(FlagsTest, NamesDifferAndHelpIsThere) {
  CheckpointFlags f;
  std::set<std::string> names;
  for (const FlagSpec& spec : CheckpointFlagSpecs(&f)) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_TRUE(spec.name.starts_with("--")) << spec.name;
    EXPECT_FALSE(spec.help.empty()) << spec.name;
  }
}

TEST(FlagsTest, BadValuesAreNamed) {
  CheckpointFlags f;
  const auto refused = [&](const std::string& flag, const std::string& value) {
    const Status status = Parse({{flag, value}}, &f);
    EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, flag)) << value;
  };
  for (const char* value : {"", "x", "-1", "1.5", "99999999999999999999", "5 "}) {
    refused("--save-interval", value);
  }
  for (const char* value : {"", "0", "-1", "nan", "inf", "1s", "1e300"}) {
    refused("--exit-duration-in-mins", value);
  }
  refused("--keep-best", "");
  refused("--keep-best", ":max");
  refused("--save", "");
  refused("--finetune", "yes");
  EXPECT_THAT(Parse({{"--dist-ckpt-strictness", "some"}}, &f),
              FailsWith(StatusCode::kInvalidArgument, "some"));
}

TEST(FlagsTest, DurableEveryStepIsAnIntervalOfOne) {
  CheckpointFlags f;
  VARVE_ASSERT_OK(Parse({{"--save", "a"}, {"--durable-every-step", ""}}, &f));
  EXPECT_TRUE(f.durable_every_step);
  EXPECT_THAT(Parse({{"--durable-every-step", "5"}}, &f),
              FailsWith(StatusCode::kInvalidArgument, "--durable-every-step wants no value"));
}

TEST(FlagsTest, WhatDoesNotGoTogetherIsRefusedInASentence) {
  const auto refused = [](const std::vector<std::pair<std::string, std::string>>& arguments,
                          const char* text) {
    CheckpointFlags f;
    EXPECT_THAT(Parse(arguments, &f), FailsWith(StatusCode::kInvalidArgument, text));
  };
  refused({{"--save", "a"}}, "--save needs --save-interval");
  refused({{"--save-interval", "5"}}, "--save-interval needs --save");
  refused({{"--save", "a"}, {"--save-interval", "0"}}, "at least 1");
  refused({{"--durable-every-step", ""}}, "--durable-every-step needs --save");
  refused({{"--save", "a"}, {"--durable-every-step", ""}, {"--save-interval", "5"}},
          "leave one of them out");
  refused({{"--no-save-optim", ""}}, "--no-save-optim needs --save");
  refused({{"--max-checkpoint-keep", "3"}}, "--max-checkpoint-keep needs --save");
  refused({{"--save", "a"}, {"--save-interval", "5"}, {"--keep-every", "10"}},
          "--keep-every needs --max-checkpoint-keep");
  refused({{"--save", "a"}, {"--save-interval", "5"}, {"--keep-best", "loss"}},
          "--keep-best needs --max-checkpoint-keep");
  refused({{"--remote", "s3://b/x"}}, "--remote needs --save");
  refused({{"--save", "a"}, {"--save-interval", "5"}, {"--remote-interval", "2"}},
          "--remote-interval needs --remote");
  refused({{"--save", "a"}, {"--save-interval", "5"}, {"--remote-keep", "2"}},
          "--remote-keep needs --remote");
  refused({{"--save", "a"},
           {"--save-interval", "5"},
           {"--remote", "s3://b/x"},
           {"--remote-interval", "0"}},
          "--remote-interval must be at least 1");
  refused({{"--ckpt-step", "5"}}, "--ckpt-step needs --load");
  refused({{"--no-load-optim", ""}}, "--no-load-optim needs --load");
  refused({{"--finetune", ""}}, "--finetune needs --load");
  refused({{"--exit-on-missing-checkpoint", ""}}, "--exit-on-missing-checkpoint needs --load");
  refused({{"--exit-deadline-in-secs", "5"}}, "--exit-deadline-in-secs needs --save");
  refused({{"--exit-interval", "0"}}, "--exit-interval must be at least 1");
  refused({{"--run", "a@b"}}, "'@'");
  CheckpointFlags f{.exit_duration_in_mins = -1.0};
  const std::string expected = "wants more than 0, at most 1e9, not \"";
  EXPECT_THAT(ValidateFlags(f), FailsWith(StatusCode::kInvalidArgument,
                                          "--exit-duration-in-mins " + expected + "-1"));
  f = {.save = "s", .save_interval = 1, .exit_deadline_in_secs = 2e9};
  EXPECT_THAT(ValidateFlags(f), FailsWith(StatusCode::kInvalidArgument,
                                          "--exit-deadline-in-secs " + expected + "2000000000"));
  f = {.rank_timeout_in_secs = 0.0};
  EXPECT_THAT(ValidateFlags(f),
              FailsWith(StatusCode::kInvalidArgument, "--rank-timeout-in-secs " + expected + "0"));
}

// The words of a command line, as main gets them.
class CommandLine {
 public:
  explicit CommandLine(std::vector<std::string> words) : words_(std::move(words)) {
    for (std::string& word : words_) argv_.push_back(word.data());
    argc_ = static_cast<int>(argv_.size());
    argv_.push_back(nullptr);
  }
  Status Take(CheckpointFlags* flags) { return TakeCheckpointFlags(&argc_, argv_.data(), flags); }
  // The words that are left, up to the null.
  std::vector<std::string> Left() const {
    EXPECT_EQ(argv_[static_cast<size_t>(argc_)], nullptr);
    return {argv_.begin(), argv_.begin() + argc_};
  }

 private:
  std::vector<std::string> words_;
  std::vector<char*> argv_;
  int argc_ = 0;
};

TEST(TakeCheckpointFlagsTest, TakesItsOwnAndLeavesTheOthersInTheirOrder) {
  CommandLine line({"--save", "-v", "--save", "a", "--batch", "8", "--save-interval=5", "file",
                    "--finetune", "--saved", "--save=b=c", "--keep-best", "loss", "-"});
  CheckpointFlags f;
  VARVE_ASSERT_OK(line.Take(&f));
  EXPECT_THAT(line.Left(), ::testing::ElementsAre("--save", "-v", "--batch", "8", "file", "--saved",
                                                  "-"));  // the first is the program
  EXPECT_EQ(f.save, "b=c");
  EXPECT_EQ(f.save_interval, 5u);
  EXPECT_TRUE(f.finetune);
  EXPECT_EQ(f.keep_best->metric, "loss");
  EXPECT_EQ(f.run, "main");
}

TEST(TakeCheckpointFlagsTest, WordsAfterTwoDashesStay) {
  CommandLine line({"train", "--run", "r", "--", "--run", "s", "--"});
  CheckpointFlags f;
  VARVE_ASSERT_OK(line.Take(&f));
  EXPECT_THAT(line.Left(), ::testing::ElementsAre("train", "--", "--run", "s", "--"));
  EXPECT_EQ(f.run, "r");
}

TEST(TakeCheckpointFlagsTest, NothingChangesWhenAFlagIsWrong) {
  for (const auto& [words, text] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--save-interval", "x"}, "--save-interval wants a whole number, not \"x\""},
           {{"--save-interval", "-1"}, "not \"-1\""},
           {{"--save"}, "--save is the last word, expected FOLDER after it"},
           {{"--save="}, "--save wants a FOLDER, not \"\""},
           {{"--save", "--load"}, "--save is followed by \"--load\", expected FOLDER"},
           {{"--save", "--"}, "write --save=VALUE"},
           {{"--finetune=yes"}, "--finetune wants no value, not \"yes\""},
           {{"--finetune="}, "--finetune wants no value"}}) {
    std::vector<std::string> all = {"train", "--run", "r"};
    all.insert(all.end(), words.begin(), words.end());
    CommandLine line(all);
    CheckpointFlags f{.load = "before"};
    EXPECT_THAT(line.Take(&f), FailsWith(StatusCode::kInvalidArgument, text));
    EXPECT_EQ(line.Left(), all);
    EXPECT_EQ(f.run, "main");
    EXPECT_EQ(f.load, "before");
  }
}

TEST(TakeCheckpointFlagsTest, AValueMayBeginWithDashesAfterAnEqualsSign) {
  CommandLine line({"train", "--run=--r"});
  CheckpointFlags f;
  VARVE_ASSERT_OK(line.Take(&f));
  EXPECT_EQ(f.run, "--r");
}

TEST(TakeCheckpointFlagsTest, NoWordsAndNoPointersAreNoCrash) {
  CheckpointFlags f;
  CommandLine none({});
  VARVE_ASSERT_OK(none.Take(&f));
  EXPECT_THAT(none.Left(), ::testing::IsEmpty());
  int argc = 2;
  char word[] = "train";
  char* argv[] = {word, nullptr, nullptr};
  EXPECT_THAT(TakeCheckpointFlags(&argc, argv, &f),
              FailsWith(StatusCode::kInvalidArgument, "a null before argc"));
  EXPECT_FALSE(TakeCheckpointFlags(nullptr, argv, &f).ok());
  EXPECT_FALSE(TakeCheckpointFlags(&argc, nullptr, &f).ok());
  EXPECT_FALSE(TakeCheckpointFlags(&argc, argv, nullptr).ok());
  argc = -1;
  EXPECT_FALSE(TakeCheckpointFlags(&argc, argv, &f).ok());
}

TEST(FlagsTest, RetentionExemptsBestTaggedAndEveryNth) {
  CheckpointFlags f;
  EXPECT_FALSE(RetentionOf(f).has_value());
  f = {.max_checkpoint_keep = 2, .keep_every = 10, .keep_best = KeepBest{.metric = "loss"}};
  const RetentionPolicy policy = RetentionOf(f).value();
  EXPECT_EQ(policy.keep_last, 2u);
  EXPECT_EQ(policy.keep_every, 10u);
  EXPECT_EQ(policy.keep_best.at(0).metric, "loss");
  EXPECT_EQ(policy.keep_tags, std::vector<std::string>{"*"});
}

}  // namespace
}  // namespace varve::internal::testing
