// SPDX-License-Identifier: Apache-2.0
//
// Several writers on one handle, several handles on one store, and readers of what moves on.
#include "store/read/sharded_reader.h"
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using HandlesTest = InternalsTest;

std::span<const std::byte> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// A POSIX lock does not keep this process from taking it twice, and RocksDB knows a folder by its
// name.
TEST_F(HandlesTest, SecondWriterByAnotherNameIsLockedOut) {
  const fs::path link = folder_.path() / "link";
  fs::create_symlink(path(), link);
  for (const fs::path& other : {link, folder_.path() / "." / "store", path() / "db" / ".."}) {
    EXPECT_THAT(Store::Open(other), FailsWith(StatusCode::kLocked, "in this process")) << other;
  }
  VARVE_ASSERT_OK(Save(1, {RandomTensor("t", DType::kU8, {1000}, 1)}).status());
}

TEST_F(HandlesTest, ReaderOfAReplacedOrDroppedStepSeesNoOtherItems) {
  const auto save = [&](std::string_view item, OnExisting existing) {
    auto writer = store_->Begin(1, {.on_existing = existing}).value();
    VARVE_ASSERT_OK(writer->PutBytes(item, Bytes(item)));
    VARVE_ASSERT_OK(writer->Commit().status());
  };
  save("first", OnExisting::kError);
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  EXPECT_THAT(reader->ListBytes().value(), ::testing::ElementsAre("first"));
  save("second", OnExisting::kReplace);
  EXPECT_THAT(reader->ListBytes(), FailsWith(StatusCode::kNotFound, "replaced"));
  EXPECT_THAT(reader->ReadBytes("second"), FailsWith(StatusCode::kNotFound, "replaced"));
  EXPECT_THAT(reader->ReadTrainerProgress(), FailsWith(StatusCode::kNotFound, "replaced"));
  EXPECT_THAT(reader->List(), FailsWith(StatusCode::kNotFound, "replaced"));
  const auto second = store_->OpenCheckpoint("main", 1).value();
  VARVE_ASSERT_OK(DropSteps({1}));
  EXPECT_THAT(second->ListBytes(), FailsWith(StatusCode::kNotFound, "dropped"));
  EXPECT_THAT(second->ReadTopology(), FailsWith(StatusCode::kNotFound, "dropped"));
  EXPECT_THAT(second->List(), FailsWith(StatusCode::kNotFound, "dropped"));
}

// RocksDB may show the families of one commit one after the other. Here those of `first` come
// first, and `read` runs on a thread of its own before the others do, until it is done or waits for
// them.
class SplitCommitTest : public HandlesTest {
 protected:
  void SplitNextCommit(const std::set<Family>& first, const std::function<void()>& read) {
    done_ = false;
    database()->set_ingest_for_test([this, first, read](const auto& args) {
      std::vector<rocksdb::IngestExternalFileArg> early, late;
      for (const auto& arg : args) {
        const auto is_arg = [&](Family f) { return database()->handle(f) == arg.column_family; };
        (std::any_of(first.begin(), first.end(), is_arg) ? early : late).push_back(arg);
      }
      if (early.empty() || late.empty()) {
        ADD_FAILURE() << "not the commit that is to be split";
        return database()->rocksdb()->IngestExternalFiles(args);
      }
      rocksdb::Status status = database()->rocksdb()->IngestExternalFiles(early);
      reader_ = std::jthread([this, read] {
        read();
        done_ = true;
      });
      while (!done_ && database()->num_waiting_for_test() == 0) std::this_thread::yield();
      if (status.ok()) status = database()->rocksdb()->IngestExternalFiles(late);
      return status;
    });
  }
  void AwaitReader() {
    reader_.join();
    database()->set_ingest_for_test(nullptr);
  }

  std::atomic<bool> done_{false};
  std::jthread reader_;
};

TEST_F(SplitCommitTest, NumbersThatBelongTogetherAreOfOneState) {
  const TestTensor a = RandomTensor("a", DType::kU8, {100000}, 1);
  auto writer = store_->Begin(1).value();  // which commits a block of save ids
  SplitNextCommit({Family::kMeta, Family::kBirths}, [&] {
    const auto runs = store_->ListRuns();
    ASSERT_TRUE(runs.ok()) << runs.status().ToString();
    ASSERT_EQ(runs->size(), 1u);
    EXPECT_EQ(runs->front().num_steps, 1u);
  });
  VARVE_ASSERT_OK(writer->Put(a.view()));
  VARVE_ASSERT_OK(writer->Commit().status());
  AwaitReader();
  const uint64_t stored = store_->Stats().value().stored_bytes;
  auto second = store_->Begin(2).value();
  SplitNextCommit({Family::kMeta, Family::kBirths}, [&] {
    const auto stats = store_->Stats();
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    EXPECT_EQ(stats->num_steps, 2u);
    EXPECT_GT(stats->stored_bytes, stored);
  });
  const TestTensor changed = RandomTensor("a", DType::kU8, {100000}, 2);
  VARVE_ASSERT_OK(second->Put(changed.view()));
  VARVE_ASSERT_OK(second->Commit().status());
  AwaitReader();
}

TEST_F(SplitCommitTest, AStepThatIsThereIsWhole) {
  const TestTensor a = RandomTensor("a", DType::kU8, {100000}, 1);
  const TestTensor b = RandomTensor("b", DType::kU8, {1000}, 2);
  auto writer = store_->Begin(1).value();  // which commits a block of save ids
  SplitNextCommit({Family::kMeta, Family::kSteps}, [&] {
    const auto list = store_->ListCheckpoints("main");
    ASSERT_TRUE(list.ok()) << list.status().ToString();
    ASSERT_EQ(list->size(), 1u);
    EXPECT_THAT(list->front().tags, ::testing::ElementsAre("good"));
    const auto reader = ShardedReader::Open(*store_, "main", 1).value();
    EXPECT_EQ(reader->ListMatching("a*").value().size(), 1u);
    ExpectHolds(1, {a, b});
    EXPECT_THAT(reader->ListBytes().value(), ::testing::ElementsAre("item"));
    EXPECT_EQ(reader->ReadTrainerProgress().value().value().global_step, 1u);
  });
  VARVE_ASSERT_OK(writer->Put(a.view()));
  VARVE_ASSERT_OK(writer->Put(b.view()));
  VARVE_ASSERT_OK(writer->PutBytes("item", Bytes("x")));
  VARVE_ASSERT_OK(writer->SetTrainerProgress({.global_step = 1}));
  VARVE_ASSERT_OK(writer->AddTag("good"));
  VARVE_ASSERT_OK(writer->Commit().status());
  AwaitReader();
}

TEST_F(SplitCommitTest, ATagThatIsThereNamesAStepThatIs) {
  const TestTensor a = RandomTensor("a", DType::kU8, {100000}, 1);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  auto writer = store_->Begin(2).value();
  SplitNextCommit({Family::kMeta}, [&] {
    const auto step = store_->FindTag("main", "good");
    ASSERT_TRUE(step.ok()) << step.status().ToString();
    ExpectHolds(*step, {a});
  });
  VARVE_ASSERT_OK(writer->Put(a.view()));
  VARVE_ASSERT_OK(writer->AddTag("good"));
  VARVE_ASSERT_OK(writer->Commit().status());
  AwaitReader();
}

TEST_F(SplitCommitTest, AStepThatGoesIsGoneAndNotDamaged) {
  VARVE_ASSERT_OK(Save(1, {RandomTensor("a", DType::kU8, {100000}, 1)}).status());
  const auto reader = ShardedReader::Open(*store_, "main", 1).value();
  SplitNextCommit({Family::kTensors, Family::kState, Family::kLists}, [&] {
    EXPECT_THAT(reader->ListMatching("a*"), FailsWith(StatusCode::kNotFound, "dropped"));
    EXPECT_THAT(reader->List(), FailsWith(StatusCode::kNotFound, "dropped"));
    EXPECT_THAT(reader->Find("a"), FailsWith(StatusCode::kNotFound, "dropped"));
  });
  VARVE_ASSERT_OK(DropSteps({1}, {.reclaim = false}));
  AwaitReader();
}

// A record that is not needed may be damaged: it is not read.
TEST_F(SplitCommitTest, NamesThatBeginAlikeAreReadAlone) {
  std::vector<TestTensor> state;
  for (const char* name : {"a.1", "a.2", "ab", "b.1", "b.2"}) {
    state.push_back(RandomTensor(name, DType::kU8, {100}, state.size()));
  }
  VARVE_ASSERT_OK(Save(1, state).status());
  const auto reader = ShardedReader::Open(*store_, "main", 1).value();
  const auto names = [&](std::string_view glob) {
    std::vector<std::string> found;
    for (const TensorInfo& info : reader->ListMatching(glob).value()) found.push_back(info.name);
    return found;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(names("*"), ElementsAre("a.1", "a.2", "ab", "b.1", "b.2"));
  EXPECT_THAT(names("*1"), ElementsAre("a.1", "b.1"));
  const StepKey step{impl()->FindRun("main").value().id, 1};
  const std::string key = keys::Tensor(step, "b.1", 0);
  const std::string value = Value(Family::kTensors, key);
  Change(Family::kTensors, key, "damaged");
  EXPECT_THAT(names("a*"), ElementsAre("a.1", "a.2", "ab"));
  EXPECT_THAT(names("a.*2"), ElementsAre("a.2"));
  EXPECT_THAT(names("ab"), ElementsAre("ab"));
  EXPECT_THAT(names("c*"), ElementsAre());
  EXPECT_THAT(reader->ListMatching("a"), FailsWith(StatusCode::kNotFound, "no tensor a at step 1"));
  for (const char* glob : {"b*", "b.1", "*2"}) {
    EXPECT_THAT(reader->ListMatching(glob), FailsWith(StatusCode::kCorruption, "b.1")) << glob;
  }
  Change(Family::kTensors, key, value);
}

TEST_F(HandlesTest, AStepThatAnotherSaveComparesWithIsNotReplaced) {
  const TestTensor a = RandomTensor("t", DType::kU8, {100000}, 1);
  const TestTensor b = RandomTensor("t", DType::kU8, {100000}, 2);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  auto next = store_->Begin(2).value();  // compares with step 1
  VARVE_ASSERT_OK(next->Put(a.view()));
  EXPECT_THAT(Save(1, {b}, {.on_existing = OnExisting::kReplace}),
              FailsWith(StatusCode::kFailedPrecondition,
                        "base of another save in progress; try again when that save has ended"));
  VARVE_ASSERT_OK(next->Commit().status());
  ExpectHolds(1, {a});
  ExpectHolds(2, {a});
}

TEST_F(HandlesTest, TwoReplacementsOfOneStepLeaveOneOfThem) {
  const TestTensor a = RandomTensor("t", DType::kU8, {100000}, 1);
  const TestTensor b = RandomTensor("t", DType::kU8, {100000}, 2);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  auto first = store_->Begin(1, {.on_existing = OnExisting::kReplace}).value();
  auto second = store_->Begin(1, {.on_existing = OnExisting::kReplace}).value();
  VARVE_ASSERT_OK(first->Put(b.view()));
  VARVE_ASSERT_OK(second->Put(a.view()));
  const auto one = first->Commit();
  const auto two = second->Commit();
  EXPECT_NE(one.ok(), two.ok());
  EXPECT_THAT(one.ok() ? two.status() : one.status(),
              FailsWith(StatusCode::kFailedPrecondition, "save in progress"));
  ExpectHolds(1, {one.ok() ? b : a});
}

TEST_F(HandlesTest, AbandonAfterCommitIsHarmless) {
  auto writer = store_->Begin(1).value();
  VARVE_ASSERT_OK(writer->Commit().status());
  writer->Abandon();
  EXPECT_EQ(store_->LatestStep("main").value(), 1u);
}

TEST_F(HandlesTest, NewSavesGoOnAfterABlockOfThem) {
  uint64_t last = impl()->NewSaveId().value();
  for (int i = 0; i < 4200; ++i) {
    const uint64_t next = impl()->NewSaveId().value();
    ASSERT_GT(next, last);
    last = next;
  }
}

// Beside a writer, a read looks once more for what is missing. The caller need not catch up first.
TEST_F(HandlesTest, ReaderFindsWhatWasCommittedAfterItOpened) {
  const TestTensor a = RandomTensor("t", DType::kU8, {100000}, 1);
  auto beside = Store::OpenForReading(path()).value();
  for (uint64_t step = 1; step <= 5; ++step) {
    VARVE_ASSERT_OK(Save(step, {a}, {.run = "r" + std::to_string(step)}).status());
    ExpectHolds(*beside, step, {a}, "r" + std::to_string(step));
  }
  EXPECT_THAT(beside->OpenCheckpoint("r1", 9),
              FailsWith(StatusCode::kNotFound, "step 9 of run r1"));
}

TEST_F(HandlesTest, ReaderGoesOnWhenTheWriterHasGone) {
  const TestTensor a = RandomTensor("t", DType::kU8, {100000}, 1);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  auto beside = Store::OpenForReading(path()).value();
  store_.reset();
  ExpectHolds(*beside, 1, {a});
  Reopen();
  VARVE_ASSERT_OK(Save(2, {a}).status());
  ExpectHolds(*beside, 2, {a});
}

TEST_F(HandlesTest, ParentMayBeAnyStepOfTheRun) {
  const TestTensor a = NormalTensor("t", {300000}, 1);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  VARVE_ASSERT_OK(Save(2, {NormalTensor("t", {300000}, 2)}).status());
  EXPECT_EQ(Save(3, {a}, {.parent = 1}).value().new_bytes, 0u);
  EXPECT_EQ(store_->OpenCheckpoint("main", 3).value()->info().parent, (CheckpointId{"main", 1}));
  EXPECT_THAT(store_->Begin(4, {.parent = 9}),
              FailsWith(StatusCode::kNotFound, "step 9 of run main"));
  EXPECT_THAT(store_->Begin(4, {.run = "new", .parent = 1}),
              FailsWith(StatusCode::kNotFound, "no run new"));
  VARVE_ASSERT_OK(DropSteps({1, 2, 3}));  // failed Begins hold no pins
}

}  // namespace
}  // namespace varve::internal::testing
