// SPDX-License-Identifier: Apache-2.0
//
// The operations of a store, plain and sealed, on a disk that is full or fails at each of their
// calls. There must be no abort, nothing lost and no torn step. What failed works again once the
// fault is gone, on the same store, still open.
#include <algorithm>
#include <cerrno>
#include <set>

#include "store/ops/inbox.h"
#include "tests/store/faults/store_faults.h"
#include "tests/store/model/copy_folder.h"
#include "tests/store/save/trained_steps.h"
#include "varve/request.h"

// GCC 12 sees the strings of a variant's other members being destroyed (its bug 105562).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

class SealedFaultsTest : public FaultsTest {
 protected:
  void SetUp() override {
    FaultsTest::SetUp();
    closing_options_.key = std::string(32, 'k');  // each check also verifies the seal
  }
};

void Nothing(State*) {}

TEST_F(FaultsTest, Save) {
  MakeTemplate();
  SweepAll(OfStore([&] { return SaveStep(4, 4); },
                   [](State* state) {
                     state->Put({"main", 4}, ContentOfStep(4));
                   }));
}

// RocksDB takes an error of such a read for the end of the table, and would commit wrong bounds. At
// the last block of several it would end the process.
TEST_F(FaultsTest, ReadsOfTheTablesOfACommit) {
  MakeTemplate();
  std::vector<TestTensor> tensors;
  for (uint64_t i = 10; i < 50; ++i) {
    tensors.push_back(RandomTensor("noise" + std::to_string(i), DType::kU8, {5000}, i));
  }
  const auto save = [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(auto writer, store_->Begin(4));
    for (const TestTensor& tensor : tensors) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
    return writer->Commit().status();
  };
  const Scenario scenario = OfStore(save, [&](State* state) { state->Put({"main", 4}, tensors); });
  SweepEach(scenario, {.path = "/incoming/", .call = "reads", .error = EIO});
  SweepEach(scenario, {.path = "/incoming/", .call = "reads", .count = 1000000, .error = EIO});
}

TEST_F(SealedFaultsTest, Save) {
  MakeTemplate();
  SweepAll(OfStore([&] { return SaveStep(4, 4); },
                   [](State* state) {
                     state->Put({"main", 4}, ContentOfStep(4));
                   }));
}

TEST_F(FaultsTest, Replace) {
  MakeTemplate();
  SweepAll(OfStore([&] { return SaveStep(3, 5, OnExisting::kReplace); },
                   [](State* state) {
                     state->Put({"main", 3}, ContentOfStep(5));
                   }));
}

// A save whose frames are predicted from those of the step before and of the save itself, and a
// drop of what such frames need.
class ReplayFaultsTest : public FaultsTest {
 protected:
  void MakeTemplateOf(
      size_t num_steps, const std::function<void()>& more = [] {}) {
    MakeTemplate([&] {
      for (size_t i = 0; i < num_steps; ++i) {
        VARVE_ASSERT_OK(steps_.Save(store_.get(), i));
        before_.Put(steps_.IdOf(i), steps_.TensorsOf(i));
      }
      EXPECT_EQ(HasReplays(*store_).value(), num_steps > 1);
      more();
    });
  }
  Status DropSources(const DropOptions& options = {}) {
    const std::vector<CheckpointId> ids = {steps_.IdOf(0), steps_.IdOf(1)};
    return store_->Drop(ids, options).status();
  }
  void NoteDrop(State* state) const {
    for (const size_t i : {0, 1}) state->steps.erase({steps_.IdOf(i).run, steps_.IdOf(i).step});
  }

  const TrainedSteps steps_{5000, 3};
};

TEST_F(ReplayFaultsTest, Save) {
  MakeTemplateOf(2);
  SweepAll(OfStore([&] { return steps_.Save(store_.get(), 2); },
                   [&](State* state) { state->Put(steps_.IdOf(2), steps_.TensorsOf(2)); }));
}

TEST_F(ReplayFaultsTest, Replace) {
  MakeTemplateOf(3);
  SweepAll(OfStore([&] { return steps_.Replace(store_.get(), 2); },
                   [&](State* state) { state->Put(steps_.IdOf(2), steps_.OtherTensorsOf(2)); }));
}

TEST_F(ReplayFaultsTest, DropOfWhatOthersNeed) {
  MakeTemplateOf(3);
  SweepAll(OfStore([&] { return DropSources(); }, [&](State* state) { NoteDrop(state); }));
}

// The files of the dropped steps hold noise, which goes, and what the last step needs, which stays.
TEST_F(ReplayFaultsTest, ReclaimAroundWhatOthersNeed) {
  MakeTemplateOf(3, [&] {
    VARVE_ASSERT_OK(DropSources({.reclaim = false}));
    NoteDrop(&before_);
  });
  const Operation reclaim = [&] { return store_->Reclaim({.all = true}).status(); };
  StartFromTemplate();
  const auto names = [&] {
    std::set<std::string> all;
    for (const TableFile& file : FilesOf(Family::kChunks)) all.insert(file.path.filename());
    return all;
  };
  const std::set<std::string> before = names();
  VARVE_ASSERT_OK(reclaim());
  EXPECT_FALSE(std::ranges::includes(names(), before)) << "no file was rewritten";
  EXPECT_TRUE(HasReplays(*store_).value());
  SweepAll(OfStore(reclaim, Nothing));
}

TEST_F(FaultsTest, Drop) {
  MakeTemplate();
  SweepAll(OfStore([&] { return DropSteps({2}); },
                   [](State* state) {
                     state->steps.erase({"main", 2});
                   }));
}

TEST_F(FaultsTest, Reclaim) {
  MakeTemplate([&] {
    VARVE_ASSERT_OK(DropSteps({2}, {.reclaim = false}));
    before_.steps.erase({"main", 2});
  });
  SweepAll(OfStore([&] { return store_->Reclaim({.all = true}).status(); }, Nothing));
}

TEST_F(SealedFaultsTest, Reclaim) {
  MakeTemplate([&] {
    VARVE_ASSERT_OK(DropSteps({2}, {.reclaim = false}));
    before_.steps.erase({"main", 2});
  });
  SweepAll(OfStore([&] { return store_->Reclaim({.all = true}).status(); }, Nothing));
}

// The first save lives in part: its file is written anew, and the counts say so after that.
TEST_F(FaultsTest, ReclaimOfAPart) {
  MakeTemplate([&] {
    VARVE_ASSERT_OK(store_->RemoveTag("main", "first"));
    VARVE_ASSERT_OK(DropSteps({1}, {.reclaim = false}));
    before_.steps.erase({"main", 1});
    before_.tags.clear();
    before_.metrics.clear();
  });
  SweepAll(OfStore([&] { return store_->Reclaim({.all = true}).status(); }, Nothing));
}

// Many small files become one.
class MergeFaultsTest : public FaultsTest {
 protected:
  static constexpr uint64_t kEnough = 16;

  // A save in progress keeps the files of these from being merged. Its id is lower than theirs.
  void SaveMany() {
    open_ = store_->Begin(1000).value();
    for (uint64_t step = 10; step < 10 + kEnough; ++step) VARVE_ASSERT_OK(SaveStep(step, step));
    ASSERT_GE(FilesOf(Family::kChunks).size(), kEnough);
  }
  void NoteMany() {
    for (uint64_t step = 10; step < 10 + kEnough; ++step) {
      before_.Put({"main", step}, ContentOfStep(step));
    }
  }
  // A writer would merge at once.
  void ExpectMerged() {
    store_ = Store::OpenForReading(path()).value();
    EXPECT_LT(FilesOf(Family::kChunks).size(), kEnough / 2) << "nothing was merged";
  }

  Scenario InTheBackground() {
    const fs::path unmerged = folder_.path() / "unmerged";
    MakeTemplate([&] {
      SaveMany();
      NoteMany();
      VARVE_ASSERT_OK(CopyAtOneMoment(path(), unmerged));
      open_.reset();
    });
    ReplaceTemplate(unmerged);
    const Operation open_and_close = [this]() -> Status {
      store_.reset();
      VARVE_ASSIGN_OR_RETURN(store_, Store::Open(path(), closing_options_));
      store_.reset();
      return Status::Ok();
    };
    Scenario scenario = OfStore(open_and_close, Nothing);
    scenario.start = [this] { CopyTemplate(); };
    return scenario;
  }

  std::unique_ptr<CheckpointWriter> open_;
};

// The thread of the writer may merge before the reclaim does, but only while calls fail.
TEST_F(MergeFaultsTest, AReclaimMerges) {
  MakeTemplate();
  NoteMany();
  const Operation merge = [&] {
    open_.reset();
    return store_->Reclaim({.all = true}).status();
  };
  Scenario scenario = OfStore(merge, Nothing);
  scenario.start = [&] {
    open_.reset();
    StartFromTemplate();
    SaveMany();
  };
  ASSERT_NO_FATAL_FAILURE(scenario.start());
  VARVE_ASSERT_OK(merge());
  store_.reset();
  ExpectMerged();
  SweepAll(scenario);
}

// The thread of the writer merges once after opening, and no caller hears of its errors. The store
// waits for it when it is closed. Meanwhile RocksDB merges the files of other families.
TEST_F(MergeFaultsTest, TheBackgroundMerges) {
  const Scenario scenario = InTheBackground();
  ASSERT_NO_FATAL_FAILURE(scenario.start());
  VARVE_ASSERT_OK(scenario.run());
  ExpectMerged();
  SweepAll(scenario);
}

// RocksDB reads what it has merged before the manifest names it.
TEST_F(MergeFaultsTest, PlantedMistakesAreFoundByTheMerge) {
  const Scenario scenario = InTheBackground();
  const std::string merged = ".sst";
  ExpectHarmless(scenario, "an error of a write of a merged table is swallowed",
                 {.path = merged, .call = "writes", .error = EIO});
  ExpectHarmless(scenario, "a short write of a merged table is taken for whole",
                 {.path = merged, .call = "writes", .short_write = true});
  ExpectHarmless(scenario, "a failed sync of a merged table is taken for done",
                 {.path = merged, .call = "syncs", .error = EIO, .lose = true});
}

TEST_F(FaultsTest, Fork) {
  MakeTemplate();
  SweepAll(OfStore([&] { return store_->Fork("main", "other", 2).status(); },
                   [](State* state) {
                     state->steps[{"other", 2}] = state->steps[{"main", 2}];
                   }));
}

TEST_F(FaultsTest, Rewind) {
  MakeTemplate();
  SweepAll(OfStore([&] { return store_->Rewind("main", 2).status(); },
                   [](State* state) {
                     state->steps[{"main~1", 3}] = state->steps[{"main", 3}];
                     state->steps.erase({"main", 3});
                   }));
}

TEST_F(FaultsTest, Tag) {
  MakeTemplate();
  SweepAll(OfStore(
      [&] {
        return store_->SetTag({"main", 2}, "first");
      },
      [](State* state) {
        state->tags[{"main", "first"}] = 2;  // it moves
      }));
}

TEST_F(FaultsTest, RemoveTag) {
  MakeTemplate();
  SweepAll(OfStore([&] { return store_->RemoveTag("main", "first"); },
                   [](State* state) { state->tags.clear(); }));
}

TEST_F(FaultsTest, Metrics) {
  MakeTemplate();
  SweepAll(OfStore(
      [&] {
        return store_->SetMetrics({"main", 1}, {{"loss", 0.25}, {"other", 2}});
      },
      [](State* state) {
        state->metrics[{"main", 1}] = {{"loss", 0.25}, {"other", 2}};
      }));
}

TEST_F(SealedFaultsTest, Tag) {
  MakeTemplate();
  SweepAll(OfStore(
      [&] {
        return store_->SetTag({"main", 3}, "good");
      },
      [](State* state) {
        state->tags[{"main", "good"}] = 3;
      }));
}

TEST_F(FaultsTest, Create) {
  before_ = {};
  const Operation create = [&]() -> Status {
    store_.reset();
    VARVE_ASSIGN_OR_RETURN(store_, Store::Create(path(), {.digest_seed = 1}));
    return Status::Ok();
  };
  Scenario scenario = OfStore(create, [](State* state) { state->exists = true; });
  scenario.start = [this] { RemoveRound(); };
  SweepAll(scenario);
}

// Of what a crash has left.
TEST_F(FaultsTest, Open) {
  MakeTemplate([&] {
    for (const std::string name : {"birth-9-1.sst", "commit-9-2.sst"}) {
      std::ofstream(path() / "incoming" / name) << "left";
    }
  });
  SweepAll(OfStore(
      [&]() -> Status {
        store_.reset();
        VARVE_ASSIGN_OR_RETURN(store_, Store::Open(path(), closing_options_));
        return Status::Ok();
      },
      Nothing));
}

// What a reader says while calls fail is an error or whole.
TEST_F(FaultsTest, Read) {
  MakeTemplate();
  SweepAll(OfStore(
               [&]() -> Status {
                 VARVE_ASSIGN_OR_RETURN(const auto reader, Store::OpenForReading(path()));
                 VARVE_ASSIGN_OR_RETURN(const State seen, ReadState(*reader));
                 EXPECT_TRUE(Equal(seen, before_)) << "a reader sees " << ToString(seen);
                 return Status::Ok();
               },
               Nothing),
           /*per_kind=*/6);
}

class RequestFaultsTest : public FaultsTest {
 protected:
  // Hands a request in, as Submit does, and applies it, as the loop of the writer does.
  Status Ask(const Request& request) {
    const Inbox inbox(path());
    VARVE_ASSIGN_OR_RETURN(const std::string name, inbox.Put({request, /*wants_answer=*/true}));
    VARVE_RETURN_IF_ERROR(impl()->ApplyInbox());
    VARVE_ASSIGN_OR_RETURN(const auto answer, inbox.TakeAnswer(name));
    return answer.has_value() ? answer->status : Status::Aborted("there is no answer");
  }

  // No writer has the store open.
  Status AskWithoutAWriter(const Request& request) {
    store_.reset();
    return Submit(path(), request, {.key = closing_options_.key}).status();
  }
};

TEST_F(RequestFaultsTest, AWriterTags) {
  MakeTemplate();
  SweepAll(OfStore(
      [&] {
        return Ask(SetTagRequest{{"main", 3}, "good"});
      },
      [](State* state) {
        state->tags[{"main", "good"}] = 3;
      }));
}

TEST_F(RequestFaultsTest, AWriterDrops) {
  MakeTemplate();
  SweepAll(OfStore(
      [&] {
        return Ask(DropRequest{{{"main", 2}}});
      },
      [](State* state) {
        state->steps.erase({"main", 2});
      }));
}

// A request that could not be started the first time was never applied. So what is not there is
// still an error the next time.
TEST_F(RequestFaultsTest, AWriterRemovesNoTag) {
  MakeTemplate();
  const Scenario scenario = OfStore(
      [&]() -> Status {
        const Inbox inbox(path());
        VARVE_ASSIGN_OR_RETURN(const std::string name,
                               inbox.Put({RemoveTagRequest{"main", "none"}, true}));
        for (int attempt = 0; attempt < 3; ++attempt) {
          impl()->ApplyInbox().IgnoreError();
          VARVE_ASSIGN_OR_RETURN(const auto answer, inbox.TakeAnswer(name));
          if (!answer.has_value()) continue;
          EXPECT_FALSE(answer->status.ok()) << "a tag that is not there was removed";
          return answer->status.code() == StatusCode::kNotFound ? Status::Ok() : answer->status;
        }
        return Status::Aborted("there is no answer");
      },
      Nothing);
  SweepAll(scenario, /*per_kind=*/2);
  // Neither the answer can be written nor the request removed.
  for (const uint64_t count : {3, 4, 5, 6, 8}) {
    SweepEach(scenario, {.path = "/inbox", .count = count, .error = EIO});
  }
}

TEST_F(RequestFaultsTest, TheCallerDrops) {
  MakeTemplate();
  SweepAll(OfStore(
      [&] {
        return AskWithoutAWriter(DropRequest{{{"main", 2}}});
      },
      [](State* state) {
        state->steps.erase({"main", 2});
      }));
}

TEST_F(RequestFaultsTest, TheCallerSetsMetrics) {
  MakeTemplate();
  SweepAll(OfStore(
      [&] {
        return AskWithoutAWriter(SetMetricsRequest{{"main", 3}, {{"loss", 0.125}}});
      },
      [](State* state) {
        state->metrics[{"main", 3}]["loss"] = 0.125;
      }));
}

// A writer also looks through a reader of its own. What that reader cannot catch up with is not an
// answer.
TEST_F(FaultsTest, LookingBesideTheWriter) {
  MakeTemplate();
  StartFromTemplate();
  uint64_t opening = 0;
  {
    const FailingIo count({.path = "/CURRENT", .call = "open"});
    VARVE_ASSERT_OK(Store::OpenForReading(path()).status());
    opening = count.num_calls();
  }
  ASSERT_GT(opening, 0u);
  const CheckpointId id{"main", 2};
  const std::function<Status()> questions[] = {[&] {
                                                 return store_->BytesFreedByDrop({&id, 1}).status();
                                               },
                                               [&] {
                                                 return store_->ForecastDrop({&id, 1}).status();
                                               },
                                               [&] { return store_->Check({}).status(); }};
  for (const auto& ask : questions) {
    {
      const FailingIo fault({.path = "/CURRENT",
                             .call = "open",
                             .first = opening,
                             .count = UINT64_MAX,
                             .error = EIO});
      EXPECT_THAT(ask(), FailsWith(StatusCode::kIOError, "CURRENT"));
      EXPECT_NE(fault.failed(), "");
    }
    VARVE_EXPECT_OK(ask());
  }
}

// What a commit has done that RocksDB called failed may be seen from then on. Else a read that
// began before would take two states for one.
TEST_F(FaultsTest, OpeningAgainAfterAnErrorCountsAsAChange) {
  MakeTemplate();
  StartFromTemplate();
  const uint64_t before = database()->num_ingest_events();
  {
    const FailingIo fault({.path = "/db/MANIFEST-", .call = "syncs", .error = EIO});
    store_->SetTag({"main", 2}, "good").IgnoreError();
    EXPECT_NE(fault.failed(), "");
  }
  EXPECT_EQ(database()->num_ingest_events(), before + 4);  // an ingest, and an opening
}

}  // namespace
}  // namespace varve::internal::testing
