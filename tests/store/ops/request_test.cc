// SPDX-License-Identifier: Apache-2.0
//
// Requests to a store with and without a writer.
#include "varve/request.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "store/ops/inbox.h"
#include "tests/store/store_fixture.h"

// GCC 12 sees the strings of a variant's other members being destroyed (its bug 105562).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::IsEmpty;
using testing::RandomTensor;
using ::testing::UnorderedElementsAre;

class RequestTest : public testing::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    for (const uint64_t step : {1, 2, 3}) {
      VARVE_ASSERT_OK(Save(step, {RandomTensor("w", DType::kF32, {100000}, step)}).status());
    }
  }
  std::vector<std::string> InboxFiles() const {
    std::vector<std::string> names;
    std::error_code no_folder;  // made by the first request
    for (const auto& entry : fs::directory_iterator(path() / "inbox", no_folder)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
};

TEST_F(RequestTest, ALiveWriterApplies) {
  const auto tagged = Submit(path(), SetTagRequest{{"main", 2}, "good"});
  ASSERT_TRUE(tagged.ok()) << tagged.status().ToString();
  EXPECT_EQ(tagged->applied_by, AppliedBy::kWriter);
  EXPECT_EQ(*store_->FindTag("main", "good"), 2);
  VARVE_ASSERT_OK(Submit(path(), SetMetricsRequest{{"main", 1}, {{"loss", 0.5}}}).status());
  EXPECT_EQ((*store_->OpenCheckpoint("main", 1))->info().metrics.at("loss"), 0.5);
  VARVE_ASSERT_OK(Submit(path(), RemoveTagRequest{"main", "good"}).status());
  EXPECT_FALSE(store_->FindTag("main", "good").ok());
  const auto dropped = Submit(path(), DropRequest{{{"main", 1}, {"main", 2}}});
  ASSERT_TRUE(dropped.ok()) << dropped.status().ToString();
  EXPECT_THAT(dropped->drop.dropped, ElementsAre(CheckpointId{"main", 1}, CheckpointId{"main", 2}));
  EXPECT_GT(dropped->drop.reclaim.freed_bytes + dropped->drop.reclaim.pending_bytes, 0);
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 1);
  EXPECT_THAT(InboxFiles(), IsEmpty());
}

TEST_F(RequestTest, WithoutAWriterTheCallerApplies) {
  store_.reset();
  const auto tagged = Submit(path(), SetTagRequest{{"main", 2}, "good"});
  ASSERT_TRUE(tagged.ok()) << tagged.status().ToString();
  EXPECT_EQ(tagged->applied_by, AppliedBy::kCaller);
  const auto dropped = Submit(path(), DropRequest{{{"main", 1}}}, {.wait = false});
  ASSERT_TRUE(dropped.ok()) << dropped.status().ToString();
  EXPECT_EQ(dropped->applied_by, AppliedBy::kCaller);
  EXPECT_THAT(dropped->drop.dropped, ElementsAre(CheckpointId{"main", 1}));
  EXPECT_THAT(InboxFiles(), IsEmpty());
}

TEST_F(RequestTest, AnInboxThatCannotBeListedIsAnError) {
  store_.reset();
  fs::remove_all(path() / "inbox");
  const Inbox inbox(path());
  EXPECT_THAT(inbox.List().value(), IsEmpty());
  std::ofstream(path() / "inbox") << "a file";
  EXPECT_THAT(inbox.List(),
              FailsWith(StatusCode::kNotFound, "cannot list " + (path() / "inbox").string()));
  fs::remove(path() / "inbox");
  fs::create_directory_symlink(path(), path() / "inbox");
  EXPECT_THAT(inbox.List(), FailsWith(StatusCode::kCorruption, "inbox is a link"));
  fs::remove(path() / "inbox");
}

TEST_F(RequestTest, ErrorsComeBack) {
  EXPECT_THAT(Submit(path(), SetTagRequest{{"main", 9}, "good"}),
              FailsWith(StatusCode::kNotFound, "step 9 of run main"));
  EXPECT_THAT(Submit(path(), SetTagRequest{{"main", 1}, "latest"}),
              FailsWith(StatusCode::kInvalidArgument, "latest"));
  EXPECT_THAT(Submit(path(), DropRequest{{{"main", 1}, {"x", 1}}}),
              FailsWith(StatusCode::kNotFound, "step 1 of run x"));
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 3);
  EXPECT_THAT(InboxFiles(), IsEmpty());
  EXPECT_THAT(Submit(folder_.path() / "none", SetTagRequest{{"main", 1}, "t"}),
              FailsWith(StatusCode::kNotFound, "none"));
}

// Requests that wait when there is no writer are applied by the next writer, oldest first.
TEST_F(RequestTest, TheNextWriterAppliesWhatWaits) {
  store_.reset();
  const Inbox inbox(path());
  VARVE_ASSERT_OK(inbox.Put({SetTagRequest{{"main", 1}, "moving"}, false}).status());
  VARVE_ASSERT_OK(inbox.Put({SetTagRequest{{"main", 3}, "moving"}, false}).status());
  const auto refused = inbox.Put({SetTagRequest{{"main", 9}, "moving"}, false});
  Reopen();
  const auto report =
      Submit(path(), SetMetricsRequest{{"main", 1}, {{"x", 1}}});  // after the others
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(*store_->FindTag("main", "moving"), 3);
  // The error of a request that nobody waits for is kept for an hour.
  EXPECT_THAT(InboxFiles(), ElementsAre(*refused + ".answer"));
}

// A writer died after it had started a request. The request is applied again, and what has happened
// already is no error.
TEST_F(RequestTest, AStartedDropIsFinished) {
  const CheckpointId first{"main", 1};
  VARVE_ASSERT_OK(store_->Drop(std::span(&first, 1)).status());
  store_.reset();
  const Inbox inbox(path());
  const auto name = inbox.Put({DropRequest{{{"main", 1}, {"main", 2}}}, true});
  fs::rename(path() / "inbox" / (*name + ".request"), path() / "inbox" / (*name + ".started"));
  Reopen();
  VARVE_ASSERT_OK(Submit(path(), SetMetricsRequest{{"main", 3}, {{"x", 1}}}).status());
  const auto answer = inbox.TakeAnswer(*name);
  ASSERT_TRUE(answer.ok() && answer->has_value());
  VARVE_EXPECT_OK((*answer)->status);
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 1);
}

// A writer died before it showed the answer. The step was saved again since, and stays.
TEST_F(RequestTest, AnAppliedDropIsNotAppliedAgain) {
  store_.reset();
  const Inbox inbox(path());
  const auto name = inbox.Put({DropRequest{{{"main", 1}}}, true});
  const auto file = [&](const std::string& suffix) { return path() / "inbox" / (*name + suffix); };
  for (const std::string left : {".started", ".request"}) {
    SCOPED_TRACE(left);
    std::ofstream(file(left)) << EncodeRequest({DropRequest{{{"main", 1}}}, true});
    std::ofstream(file(".applied")) << EncodeAnswer({Status::Ok(), {}});
    Reopen();
    VARVE_ASSERT_OK(Submit(path(), SetMetricsRequest{{"main", 3}, {{"x", 1}}}).status());
    EXPECT_EQ(store_->ListCheckpoints("main")->size(), 3);
    EXPECT_THAT(InboxFiles(), ElementsAre(*name + ".answer"));
    const auto answer = inbox.TakeAnswer(*name);
    ASSERT_TRUE(answer.ok() && answer->has_value());
    VARVE_EXPECT_OK((*answer)->status);
    store_.reset();
  }
}

// The writer took the request, could not write an answer, and has gone.
TEST_F(RequestTest, OneWithoutAnAnswerIsNotAwaitedForEver) {
  const auto take = [&] {
    for (const std::string& name : InboxFiles()) {
      std::error_code gone;  // the store was faster
      if (!name.ends_with(".request")) continue;
      fs::rename(path() / "inbox" / name, folder_.path() / "taken", gone);
      if (!gone) return true;
    }
    return false;
  };
  while (store_ != nullptr) {
    std::jthread taker([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (take()) return store_.reset();
      }
    });
    const auto report = Submit(path(), SetTagRequest{{"main", 1}, "t"});
    taker.request_stop();
    taker.join();
    if (report.ok()) continue;
    ASSERT_THAT(report, FailsWith(StatusCode::kAborted, "there is no answer"));
  }
}

// A request that cannot be read stays. Later requests are applied nevertheless, with and without a
// writer. Reading from the start of a process's memory is an I/O error for everyone, root too.
TEST_F(RequestTest, OneThatCannotBeReadHoldsUpNoOther) {
  fs::create_directories(path() / "inbox");
  fs::create_symlink("/proc/self/mem", path() / "inbox" / "0.request");
  ASSERT_EQ(::mkfifo((path() / "inbox" / "1.request").c_str(), 0600), 0);
  VARVE_ASSERT_OK(Submit(path(), SetTagRequest{{"main", 1}, "t"}).status());
  EXPECT_EQ(*store_->FindTag("main", "t"), 1);
  store_.reset();
  const Inbox inbox(path());
  VARVE_ASSERT_OK(inbox.Put({SetTagRequest{{"main", 2}, "t"}, false}).status());
  Reopen();
  VARVE_ASSERT_OK(Submit(path(), SetMetricsRequest{{"main", 1}, {{"x", 1}}}).status());
  EXPECT_EQ(*store_->FindTag("main", "t"), 2);
  EXPECT_THAT(InboxFiles(), UnorderedElementsAre("0.request", "1.request"));
}

TEST_F(RequestTest, OneOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  constexpr uid_t kStranger = 12345;
  store_.reset();
  const Inbox inbox(path());
  const auto name = inbox.Put({DropRequest{{{"main", 1}}}, false});
  ASSERT_EQ(::chown((path() / "inbox" / (*name + ".request")).c_str(), kStranger, kStranger), 0);
  Reopen();
  VARVE_ASSERT_OK(Submit(path(), SetTagRequest{{"main", 2}, "t"}).status());
  const auto answer = inbox.TakeAnswer(*name);
  ASSERT_TRUE(answer.ok() && answer->has_value());
  EXPECT_THAT((*answer)->status,
              FailsWith(StatusCode::kFailedPrecondition, "is a request of user 12345"));
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 3);
  // Nor does a file of that user take the place of the change, or of its answer.
  store_.reset();
  const auto own = inbox.Put({SetTagRequest{{"main", 3}, "own"}, true});
  const auto forge = [&](const std::string& suffix, const std::string& bytes) {
    const fs::path forged = path() / "inbox" / (*own + suffix);
    std::ofstream(forged) << bytes;
    ASSERT_EQ(::chown(forged.c_str(), kStranger, kStranger), 0);
  };
  for (const std::string suffix : {".started", ".applied", ".answer"}) {
    forge(suffix, suffix == ".started" ? EncodeRequest({DropRequest{{{"main", 1}}}, true})
                                       : EncodeAnswer({Status::Aborted("forged"), {}}));
  }
  const auto waited = inbox.TakeAnswer(*own);
  ASSERT_TRUE(waited.ok() && !waited->has_value());
  Reopen();
  VARVE_ASSERT_OK(Submit(path(), SetTagRequest{{"main", 2}, "t"}).status());
  EXPECT_EQ(*store_->FindTag("main", "own"), 3);
  const auto applied = inbox.TakeAnswer(*own);
  ASSERT_TRUE(applied.ok() && applied->has_value());
  VARVE_EXPECT_OK((*applied)->status);
  // What it leaves is removed after an hour.
  forge(".applied", EncodeAnswer({Status::Ok(), {}}));
  const fs::path left = path() / "inbox" / (*own + ".applied");
  fs::last_write_time(left, fs::last_write_time(left) - std::chrono::hours(2));
  VARVE_ASSERT_OK(inbox.Prepare());
  EXPECT_FALSE(fs::exists(left));
  // The owner of the folder may ask.
  ASSERT_EQ(::chown(path().c_str(), kStranger, kStranger), 0);
  const auto again = inbox.Put({DropRequest{{{"main", 1}}}, true});
  ASSERT_EQ(::chown((path() / "inbox" / (*again + ".request")).c_str(), kStranger, kStranger), 0);
  VARVE_ASSERT_OK(Submit(path(), SetTagRequest{{"main", 2}, "u"}).status());
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 2);
}

TEST_F(RequestTest, NonsenseInTheInboxHarmsNobody) {
  fs::create_directories(path() / "inbox");
  std::ofstream(path() / "inbox" / "0.request") << "nonsense";
  std::ofstream(path() / "inbox" / "1.request") << std::string(100, '\xff');
  std::ofstream(path() / "inbox" / "2.txt") << "mine";
  VARVE_ASSERT_OK(Submit(path(), SetTagRequest{{"main", 1}, "t"}).status());
  EXPECT_EQ(*store_->FindTag("main", "t"), 1);
  const auto answer = Inbox(path()).TakeAnswer("0");
  ASSERT_TRUE(answer.ok() && answer->has_value());
  EXPECT_THAT((*answer)->status, FailsWith(StatusCode::kCorruption, "not a request"));
}

void ExpectRoundTrip(const Request& request) {
  const std::string bytes = EncodeRequest({request, false});
  const auto decoded = DecodeRequest(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(EncodeRequest(*decoded), bytes);
  EXPECT_EQ(decoded->request.index(), request.index());
  for (size_t cut = 0; cut < bytes.size(); ++cut) {  // must not crash. Most cuts are refused
    DecodeRequest(bytes.substr(0, cut)).status().IgnoreError();
  }
}

TEST(InboxTest, RequestsAndAnswersRoundTrip) {
  ExpectRoundTrip(SetTagRequest{{"r", 1}, "t"});
  ExpectRoundTrip(RemoveTagRequest{"r", "t"});
  ExpectRoundTrip(SetMetricsRequest{{"r", 2}, {{"a", 1}, {"b", -0.0}}});
  ExpectRoundTrip(DropRequest{{{"r", 1}, {"s", UINT64_MAX}}, false});
  InboxAnswer answer{Status::NotFound("no step"), {}};
  answer.drop.dropped = {{"main", 3}};
  answer.drop.reclaim.freed_bytes = 5;
  const auto decoded = DecodeAnswer(EncodeAnswer(answer));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->status.ToString(), answer.status.ToString());
  EXPECT_EQ(decoded->drop.dropped, answer.drop.dropped);
  EXPECT_EQ(decoded->drop.reclaim.freed_bytes, 5);
}

}  // namespace

}  // namespace varve::internal
