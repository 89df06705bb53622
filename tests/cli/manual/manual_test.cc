// SPDX-License-Identifier: Apache-2.0
#include "cli/manual/manual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>

#include "cli/manual/completion.h"

namespace varve::internal::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ManualTest : public ::testing::Test {
 protected:
  ManualTest() {
    app_.add_flag("--json", flag_, "Print JSON");
    CLI::App* verb = app_.add_subcommand("save", "Save a thing");
    verb->add_option("FILE", files_, "What to save")->required();
    verb->add_option("-r,--rule", rule_, "What to do if it exists")
        ->check(CLI::IsMember({"error", "replace"}))
        ->required();
    verb->add_option("--run", run_, "Where to")->type_name("RUN")->capture_default_str();
    verb->add_flag("--secret", flag_, "For nobody")->group("");
    verb->footer("It's '~/.a\\b'.\n.Net\n\n  as it is\n\nJSON: run");
    app_.add_subcommand("__hidden", "For scripts")->group("");
  }

  CommandManual Command() const { return DescribeCommand(app_); }
  CommandManual Verb() const { return Command().verbs.at(0); }

  CLI::App app_{"Keeps things", "keep"};
  bool flag_ = false;
  std::vector<std::string> files_;
  std::string rule_;
  std::string run_ = "main";
};

TEST_F(ManualTest, DescribesWhatIsNotHidden) {
  EXPECT_THAT(VerbNames(Command()), ElementsAre("save"));
  EXPECT_THAT(OptionNames(Command(), /*with_flags=*/true), ElementsAre("-h", "--help", "--json"));
  EXPECT_THAT(OptionNames(Command(), /*with_flags=*/false), IsEmpty());
  EXPECT_THAT(OptionNames(Verb(), /*with_flags=*/true), ElementsAre("-r", "--rule", "--run"));
}

TEST_F(ManualTest, KnowsOptions) {
  const CommandManual verb = Verb();
  ASSERT_EQ(verb.arguments.size(), 1u);
  EXPECT_EQ(verb.arguments[0].value, "FILE");
  EXPECT_TRUE(verb.arguments[0].repeats);
  EXPECT_THAT(verb.options[0].choices, ElementsAre("error", "replace"));
  EXPECT_TRUE(verb.options[0].required);
  EXPECT_EQ(verb.options[1].Explanation(), "Where to (default main)");
  EXPECT_EQ(Synopsis(verb), "keep save [OPTION...] FILE... -r error|replace");
  EXPECT_EQ(Synopsis(Command()), "keep [OPTION...] VERB ...");
}

TEST_F(ManualTest, HelpFitsTheColumns) {
  CommandManual command{.name = "keep", .description = "Keeps"};
  const std::string words = "one two three four five six seven eight nine ten eleven twelve";
  command.options = {{.names = {"-x"}, .description = words},
                     {.names = {"--a-name-that-is-too-long"}, .description = "short"}};
  EXPECT_THAT(
      HelpText(command),
      HasSubstr("  -x                    one two three four five six seven eight nine ten eleven\n"
                "                        twelve\n"
                "  --a-name-that-is-too-long\n"
                "                        short\n"));
}

TEST_F(ManualTest, ManPageEscapesWhatTroffWouldTake) {
  const std::string page = ManPage(Command());
  EXPECT_THAT(page, HasSubstr("It\\(aqs \\(aq\\(ti/.a\\eb\\(aq.\n\\&.Net\n"));
  EXPECT_THAT(page, HasSubstr(".nf\n.PP\n  as it is\n.fi\n.PP\nJSON: run\n"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-r\\fR, \\fB\\-\\-rule\\fR \\fIerror|replace\\fR\n"));
  EXPECT_THAT(page, Not(HasSubstr("secret")));
}

TEST_F(ManualTest, CandidatesFollowTheNameOfTheValue) {
  using Kind = Candidates::Kind;
  const CommandManual command = Command();
  const auto kind_of = [&command](const std::string& value) {
    return CandidatesOf({.value = value}, command).kind;
  };
  for (const char* const value : {"STEP", "STEP2", "RUN", "TAG", "NAME", "GLOB"}) {
    EXPECT_EQ(kind_of(value), Kind::kOfStore) << value;
  }
  EXPECT_THAT(CandidatesOf({.value = "STEP2"}, command).words, ElementsAre("steps"));
  EXPECT_THAT(CandidatesOf({.value = "GLOB"}, command).words, ElementsAre("tensors"));
  EXPECT_EQ(kind_of("FILE"), Kind::kFiles);
  EXPECT_EQ(kind_of("DEST"), Kind::kFolders);
  EXPECT_EQ(kind_of("N"), Kind::kNothing);
  EXPECT_THAT(CandidatesOf({.value = "VERB"}, command).words, ::testing::Contains("save"));
  EXPECT_THAT(CandidatesOf(Verb().options[0], command).words, ElementsAre("error", "replace"));
}

TEST(ShellQuotedTest, KeepsQuotes) { EXPECT_EQ(ShellQuoted("a'b"), "'a'\\''b'"); }

}  // namespace
}  // namespace varve::internal::cli
