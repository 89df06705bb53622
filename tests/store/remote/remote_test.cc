// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <fstream>
#include <optional>
#include <thread>

#include "store/remote/heartbeat.h"
#include "store/remote/reclaim_remote.h"
#include "tests/store/remote/remote_fixture.h"
#include "tests/support/comes_true.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(RemoteTest, WhatWasPushedCanBePulled) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  const PushReport first = MustPush();
  EXPECT_EQ(first.snapshot, 1);
  EXPECT_TRUE(first.is_new);
  EXPECT_EQ(first.sent_files, first.total_files);
  EXPECT_EQ(first.sent_bytes, first.total_bytes);
  const PushReport same = MustPush();
  EXPECT_EQ(same.snapshot, 1);
  EXPECT_FALSE(same.is_new);
  EXPECT_EQ(same.sent_files, 0);

  VARVE_ASSERT_OK(Save(2, State(2)).status());
  const PushReport second = MustPush();
  EXPECT_EQ(second.snapshot, 2);
  // The file of the frozen tensor is there already.
  EXPECT_LT(second.sent_bytes, second.total_bytes - uint64_t{700000} * 4 + 1000000);
  EXPECT_THAT(Newest().open, IsEmpty());
  ExpectSnapshotHolds(1, {1});
  ExpectSnapshotHolds(2, {1, 2});
  const auto snapshots = ListSnapshots(url());
  ASSERT_TRUE(snapshots.ok());
  EXPECT_THAT(*snapshots, SizeIs(2));
  EXPECT_EQ(snapshots->back().total_bytes, second.total_bytes);
}

TEST_F(RemoteTest, APullBringsAnEarlierOneUpToDate) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(Pull(url(), copy()).status());
  ExpectStoreHolds(copy(), {1});
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  VARVE_ASSERT_OK(DropSteps({1}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  MustPush();
  const auto dry = Pull(url(), copy(), {.dry_run = true});
  ASSERT_TRUE(dry.ok()) << dry.status().ToString();
  ExpectStoreHolds(copy(), {1});
  const auto report = Pull(url(), copy());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->fetched_bytes, dry->fetched_bytes);
  ExpectStoreHolds(copy(), {2});
  const auto again = Pull(url(), copy());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->fetched_files, 0);
  ExpectStoreHolds(copy(), {2});
  VARVE_ASSERT_OK(Pull(url(), copy(), {.snapshot = 1}).status());  // back again
  ExpectStoreHolds(copy(), {1});
}

TEST_F(RemoteTest, ADryRunChangesNothing) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  const auto dry = Push(path(), url(), {.dry_run = true});
  ASSERT_TRUE(dry.ok()) << dry.status().ToString();
  EXPECT_FALSE(dry->is_new);
  EXPECT_FALSE(fs::exists(place()));
  EXPECT_EQ(dry->sent_bytes, MustPush().sent_bytes);
  VARVE_ASSERT_OK(Pull(url(), copy(), {.dry_run = true}).status());
  EXPECT_FALSE(fs::exists(copy()));
}

TEST_F(RemoteTest, APulledStoreGoesOnAndIsPushedToo) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(Pull(url(), copy()).status());
  VARVE_ASSERT_OK(SaveIn(copy(), 2));
  // Both have files of the same names with other bytes now.
  VARVE_ASSERT_OK(Save(3, State(3)).status());
  EXPECT_EQ(MustPush().snapshot, 2);
  const auto other = Push(copy(), url());
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_EQ(other->snapshot, 3);
  ExpectSnapshotHolds(2, {1, 3});
  ExpectSnapshotHolds(3, {1, 2});
  // Its own step would be lost.
  EXPECT_THAT(Pull(url(), copy()), FailsWith(StatusCode::kFailedPrecondition, "its own steps"));
  ExpectStoreHolds(copy(), {1, 2});
}

TEST_F(RemoteTest, AFolderThatHasLostItsManifestIsPulledAnew) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(Pull(url(), copy()).status());
  for (const char* const start : {"CURRENT", "MANIFEST-"}) {
    for (const bool is_cut : {false, true}) {
      for (const auto& entry : std::filesystem::directory_iterator(copy() / "db")) {
        if (!entry.path().filename().string().starts_with(start)) continue;
        is_cut ? std::filesystem::resize_file(entry, 7) : void(std::filesystem::remove(entry));
      }
      const auto report = Pull(url(), copy());
      ASSERT_TRUE(report.ok()) << start << ": " << report.status().ToString();
      EXPECT_EQ(report->fetched_files, 0u);
      ExpectStoreHolds(copy(), {1});
    }
  }
  VARVE_ASSERT_OK(SaveIn(copy(), 2));
  std::filesystem::remove(copy() / "db" / "CURRENT");
  EXPECT_THAT(Pull(url(), copy()), FailsWith(StatusCode::kFailedPrecondition, "its own steps"));
}

TEST_F(RemoteTest, APulledCopyOfASealedStoreIsSealedWithTheKey) {
  const std::string key(32, 'k');
  Reset({.store = {.key = key}});
  closing_options_.key = key;
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(Pull(url(), copy("with"), {.key = key}).status());
  const auto store = Store::Open(copy("with"), {.key = key});
  VARVE_ASSERT_OK(store.status());
  EXPECT_GT((*store)->Check({})->num_sealed_files, 0u);
  VARVE_ASSERT_OK(Pull(url(), copy("without")).status());
  ExpectStoreHolds(copy("without"), {1});
  EXPECT_THAT(Store::Open(copy("without"), {.key = key}),
              FailsWith(StatusCode::kCorruption, "seal of the store, is missing"));
  EXPECT_THAT(OpenRemote(url(), {.store = {.key = key}}),
              FailsWith(StatusCode::kInvalidArgument, "have no seal"));
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  const std::string chosen = "2";
  VARVE_ASSERT_OK(Push(path(), url() + "-chosen", {.steps = {chosen}}).status());
  EXPECT_THAT(Pull(url() + "-chosen", copy("chosen"), {.key = key}),
              FailsWith(StatusCode::kFailedPrecondition, "is not sealed"));
  VARVE_ASSERT_OK(Pull(url() + "-chosen", copy("chosen")).status());
  ExpectStoreHolds(copy("chosen"), {2});
}

TEST_F(RemoteTest, WhatCannotBePulledOrPushedIsSaid) {
  EXPECT_THAT(Pull(url(), copy()), FailsWith(StatusCode::kNotFound, "there is no snapshot"));
  EXPECT_THAT(ReclaimRemote(url()), FailsWith(StatusCode::kNotFound, "there is no snapshot"));
  EXPECT_THAT(ReclaimRemote(url(), {.keep_last = 0}),
              FailsWith(StatusCode::kInvalidArgument, "keeps no snapshot"));
  EXPECT_THAT(Push(copy(), url()), FailsWith(StatusCode::kNotFound, "no varve store"));
  EXPECT_THAT(Push(path(), "gs://x"), FailsWith(StatusCode::kInvalidArgument, "no engine"));
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  EXPECT_THAT(Pull(url(), copy(), {.snapshot = 7}),
              FailsWith(StatusCode::kNotFound, "no snapshot 7"));
  fs::create_directory(copy());
  std::ofstream(copy() / "file") << "mine";
  EXPECT_THAT(Pull(url(), copy()), FailsWith(StatusCode::kFailedPrecondition, "not empty"));
  const auto other = Store::Create(copy("other"));
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(Push(copy("other"), url()),
              FailsWith(StatusCode::kFailedPrecondition, "snapshots of another store"));
}

TEST_F(RemoteTest, AnInterruptedPushIsResumed) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  FlakyObjects::decide() = [](std::string_view call, const std::string& name) {
    const auto parts = ParseBlobName(name);
    const bool is_pack = parts.has_value() && parts->content.starts_with("p");
    return call == "put" && is_pack ? Fault::kFailed : Fault::kNone;
  };
  EXPECT_THAT(Push(path(), url()), FailsWith(StatusCode::kIOError, "refused"));
  FlakyObjects::decide() = nullptr;
  EXPECT_THAT(Newest().open, SizeIs(1));
  const size_t sent = Blobs().size();
  EXPECT_GE(sent, 1);
  EXPECT_THAT(Pull(url(), copy()), FailsWith(StatusCode::kNotFound, "there is no snapshot"));
  const PushReport resumed = MustPush();
  EXPECT_TRUE(resumed.is_new);
  EXPECT_EQ(resumed.resumed_files, sent);
  EXPECT_EQ(resumed.sent_files + sent, resumed.total_files);
  EXPECT_THAT(Newest().open, IsEmpty());
  EXPECT_EQ(Blobs(), NeededBlobs());
  ExpectSnapshotHolds(1, {1});
}

TEST_F(RemoteTest, AnInterruptedPullIsResumed) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  std::atomic<int> gets{0};
  FlakyObjects::decide() = [&gets](std::string_view call, const std::string&) {
    return call == "get" && ++gets > 2 ? Fault::kFailed : Fault::kNone;
  };
  EXPECT_THAT(Pull(url(), copy()), FailsWith(StatusCode::kIOError, "refused"));
  FlakyObjects::decide() = nullptr;
  EXPECT_THAT(Store::OpenForReading(copy()), FailsWith(StatusCode::kNotFound, ""));
  const auto resumed = Pull(url(), copy());
  ASSERT_TRUE(resumed.ok()) << resumed.status().ToString();
  EXPECT_LT(resumed->fetched_files, resumed->total_files);
  ExpectStoreHolds(copy(), {1});
}

TEST_F(RemoteTest, AStoppedPushIsAborted) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  std::atomic<bool> stop{false};
  FlakyObjects::decide() = [&stop](std::string_view call, const std::string&) {
    if (call == "put") stop = true;
    return Fault::kNone;
  };
  const StopScope scope(&stop);
  EXPECT_THAT(Push(path(), url()), FailsWith(StatusCode::kAborted, "stopped"));
}

// Every creation may have an unknown outcome, done or not.
TEST_F(RemoteTest, UnknownOutcomesAreFoundOut) {
  std::mt19937_64 random(1);
  std::mutex mutex;
  for (uint64_t step = 1; step <= 5; ++step) {
    VARVE_ASSERT_OK(Save(step, State(step)).status());
    FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
      const std::lock_guard lock(mutex);
      if (call != "create" || random() % 2 == 0) return Fault::kNone;
      constexpr Fault kFaults[] = {Fault::kLost, Fault::kDone, Fault::kDoneTwice};
      return kFaults[random() % 3];
    };
    const auto report = Push(path(), url());
    FlakyObjects::decide() = nullptr;
    if (report.ok()) {
      EXPECT_EQ(Newest().snapshots.back().number, report->snapshot);
    } else {
      EXPECT_THAT(report, FailsWith(StatusCode::kUnavailable, "unknown"));
      MustPush();
    }
    EXPECT_THAT(Newest().open, IsEmpty());
  }
  const RemoteState state = Newest();
  ExpectSnapshotHolds(state.snapshots.back().number, {1, 2, 3, 4, 5});
  VARVE_ASSERT_OK(ReclaimRemote(url()).status());
  EXPECT_EQ(Blobs(), NeededBlobs());
}

// A collector may remove the file of a record that is being made, again and again.
TEST_F(RemoteTest, ManyUnknownOutcomesInAShortTimeAreBorne) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  int lost = 0;
  FlakyObjects::decide() = [&lost](std::string_view call, const std::string&) {
    return call == "create" && lost++ < 10 ? Fault::kLost : Fault::kNone;
  };
  MustPush();
  FlakyObjects::decide() = nullptr;
  EXPECT_GT(lost, 10);
  ExpectSnapshotHolds(1, {1});
}

TEST_F(RemoteTest, ManyPushAndCollectWhileAWriterSaves) {
  std::atomic<bool> done{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      do VARVE_EXPECT_OK(Push(path(), url()).status());
      while (!done);
    });
  }
  threads.emplace_back([&] {
    while (!done) {
      const Status status = ReclaimRemote(url(), {.keep_last = 3}).status();
      if (status.code() != StatusCode::kNotFound) VARVE_EXPECT_OK(status);
    }
  });
  for (uint64_t step = 1; step <= 10; ++step) {
    VARVE_EXPECT_OK(Save(step, State(step)).status());
    if (step > 2) VARVE_EXPECT_OK(DropSteps({step - 2}));
    VARVE_EXPECT_OK(store_->Reclaim({.all = true}).status());
  }
  done = true;
  threads.clear();
  MustPush();
  const RemoteState state = Newest();
  EXPECT_THAT(state.open, IsEmpty());
  ExpectSnapshotHolds(state.snapshots.back().number, {9, 10});
  for (const RemoteSnapshot& snapshot : state.snapshots) {
    VARVE_EXPECT_OK(Pull(url(), copy(std::to_string(snapshot.number)),
                         {.read_data = true, .snapshot = snapshot.number})
                        .status());
  }
  VARVE_ASSERT_OK(ReclaimRemote(url()).status());
  EXPECT_EQ(Blobs(), NeededBlobs());
}

TEST_F(RemoteTest, OldSnapshotsGoWithWhatOnlyTheyNeeded) {
  for (uint64_t step = 1; step <= 4; ++step) {
    VARVE_ASSERT_OK(Save(step, State(step)).status());
    if (step > 1) VARVE_ASSERT_OK(DropSteps({step - 1}));
    VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
    MustPush();
  }
  const auto before = Blobs();
  const auto dry = ReclaimRemote(url(), {.keep_last = 2, .dry_run = true});
  ASSERT_TRUE(dry.ok()) << dry.status().ToString();
  EXPECT_THAT(dry->dropped, ElementsAre(1, 2));
  EXPECT_EQ(Blobs(), before);
  const auto report = ReclaimRemote(url(), {.keep_last = 2});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->dropped, ElementsAre(1, 2));
  EXPECT_EQ(report->kept, 2);
  EXPECT_EQ(report->removed_blobs, dry->removed_blobs);
  EXPECT_EQ(report->removed_blobs, before.size() - Blobs().size());
  EXPECT_GT(report->removed_bytes, 0);
  EXPECT_EQ(Blobs(), NeededBlobs());
  ExpectSnapshotHolds(3, {3});
  ExpectSnapshotHolds(4, {4});
  EXPECT_THAT(Pull(url(), copy(), {.snapshot = 1}), FailsWith(StatusCode::kNotFound, "snapshot 1"));
}

// A collector that reads the snapshots before it lists the blobs, and then sleeps, destroys what
// was pushed meanwhile. One that lists first does not.
TEST_F(RemoteTest, RootsAreNewerThanVictims) {
  for (const bool is_mistaken : {false, true}) {
    VARVE_ASSERT_OK(Save(is_mistaken ? 3 : 1, State(is_mistaken ? 3 : 1)).status());
    MustPush();
    VARVE_ASSERT_OK(Save(is_mistaken ? 4 : 2, State(is_mistaken ? 4 : 2)).status());
    const auto objects = OpenPlace();
    VARVE_ASSERT_OK(Reclaim(objects.get(), {},
                            {.reads_roots_first = is_mistaken, .after_roots = [&] { MustPush(); }})
                        .status());
    const auto pulled = Pull(url(), copy(std::to_string(is_mistaken)));
    if (is_mistaken) {
      EXPECT_THAT(pulled, FailsWith(StatusCode::kCorruption, "missing"));
    } else {
      VARVE_EXPECT_OK(pulled.status());
    }
  }
}

TEST_F(RemoteTest, ACollectorThatSleptDoesNoHarm) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  const auto objects = OpenPlace();
  const auto sleep = [&] {
    for (uint64_t step = 2; step <= 4; ++step) {
      VARVE_EXPECT_OK(Save(step, State(step)).status());
      MustPush();
      VARVE_EXPECT_OK(ReclaimRemote(url(), {.keep_last = 1}).status());
    }
  };
  const auto report = Reclaim(objects.get(), {.keep_last = 1}, {.after_roots = sleep});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSnapshotHolds(4, {1, 2, 3, 4});
}

// Its attempt counts as dead while it sleeps before the commit. It must not name what was
// collected.
TEST_F(RemoteTest, APushThatSleptStartsAgain) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  int creations = 0;
  FlakyObjects::decide() = [&](std::string_view call, const std::string& name) {
    const bool is_state = call == "create" && ParseStateName(name).has_value();
    if (is_state && ++creations == 2) {  // the first opens the attempt
      const auto report =
          Reclaim(OpenPlace().get(), {.wait_for_pushes = std::chrono::milliseconds(1)});
      EXPECT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_GE(report->removed_blobs, 2);
    }
    return Fault::kNone;
  };
  const PushReport report = MustPush();
  FlakyObjects::decide() = nullptr;
  EXPECT_TRUE(report.is_new);
  ExpectSnapshotHolds(report.snapshot, {1});
  EXPECT_THAT(Newest().open, IsEmpty());
}

TEST_F(RemoteTest, APushWhoseBaseIsRemovedStartsAgain) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(Pull(url(), copy("other")).status());
  VARVE_ASSERT_OK(SaveIn(copy("other"), 2));
  VARVE_ASSERT_OK(Save(3, State(3)).status());
  VARVE_ASSERT_OK(DropSteps({1}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  int creations = 0;
  FlakyObjects::decide() = [&](std::string_view call, const std::string& name) {
    const bool is_state = call == "create" && ParseStateName(name).has_value();
    if (is_state && ++creations == 2) {  // the push is about to commit
      MustPush();
      VARVE_EXPECT_OK(ReclaimRemote(url(), {.keep_last = 1}).status());
    }
    return Fault::kNone;
  };
  const auto report = Push(copy("other"), url());
  FlakyObjects::decide() = nullptr;
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->snapshot, 3);
  ExpectSnapshotHolds(2, {3});
  ExpectSnapshotHolds(3, {1, 2});
}

TEST_F(RemoteTest, AnEarlierStateIsNotPushedAfterALaterOne) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy("earlier")).status());
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  MustPush();
  const auto report = Push(copy("earlier"), url());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_FALSE(report->is_new);
  EXPECT_EQ(report->snapshot, 1);
  EXPECT_THAT(Newest().snapshots, SizeIs(1));
}

TEST_F(RemoteTest, DamageIsFoundOnBothSides) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  const auto flip = [](const fs::path& file, std::streamoff offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset);
    const int byte = stream.get();
    stream.seekp(offset);
    stream.put(static_cast<char>(byte ^ 1));
  };
  fs::path largest;
  for (const auto& entry : fs::directory_iterator(place() / "blobs")) {
    if (largest.empty() || entry.file_size() > fs::file_size(largest)) largest = entry.path();
  }
  flip(largest, 1000);
  EXPECT_THAT(Pull(url(), copy()), FailsWith(StatusCode::kCorruption, largest.filename().string()));
  EXPECT_THAT(Store::OpenForReading(copy()), FailsWith(StatusCode::kNotFound, ""));
  flip(largest, 1000);
  VARVE_ASSERT_OK(Pull(url(), copy()).status());

  for (const auto& entry : fs::directory_iterator(copy() / "db")) {
    if (entry.path().extension() == ".sst" && entry.file_size() > 1000000) largest = entry.path();
  }
  flip(largest, 1000);
  fs::remove_all(place());
  EXPECT_THAT(Push(copy(), url()), FailsWith(StatusCode::kCorruption, largest.string()));
  EXPECT_THAT(Blobs(), IsEmpty());  // or the next push would use what is damaged
  EXPECT_THAT(Pull(url(), copy("new")), FailsWith(StatusCode::kNotFound, "there is no snapshot"));
  flip(largest, 1000);
}

// The record of the snapshot is created, and each call after it fails. The push is told so, or not.
TEST_F(RemoteTest, AfterAnErrorBehindItsRecordASnapshotMayBeThere) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  uint64_t last = 1;
  for (const Fault on_record : {Fault::kNone, Fault::kDone}) {
    ++last;
    VARVE_ASSERT_OK(Save(last, State(last)).status());
    // The record of an attempt comes before the blobs.
    std::atomic<bool> is_put = false, is_created = false;
    FlakyObjects::decide() = [&](std::string_view call, const std::string& name) {
      if (is_created) return Fault::kFailed;
      is_put = is_put || call == "put";
      is_created = is_put && call == "create" && name.starts_with("state-");
      return is_created ? on_record : Fault::kNone;
    };
    const auto pushed = Push(path(), url());
    FlakyObjects::decide() = nullptr;
    EXPECT_TRUE(is_created);
    EXPECT_THAT(pushed, FailsWith(StatusCode::kUnavailable, "outcome unknown"));
    ASSERT_EQ(ListSnapshots(url()).value().back().number, last);
    const auto again = Push(path(), url());
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_FALSE(again->is_new);
  }
  ExpectSnapshotHolds(2, {1, 2});
  ExpectSnapshotHolds(3, {1, 2, 3});
}

TEST_F(RemoteTest, APushThatIsAliveIsNeverClosed) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  constexpr std::chrono::milliseconds kInterval(100);
  RemoteState state = Newest();
  const auto objects = OpenPlace();
  RemoteLog log(objects.get());
  const auto open = [](uint64_t id) {
    return [id](RemoteState* next) -> Result<bool> {
      if (next->IsOpen(id)) return false;
      next->open.push_back({id, "another/host/1/2"});
      return true;
    };
  };
  VARVE_ASSERT_OK(log.Append(open(1)).status());
  VARVE_ASSERT_OK(log.Append(open(2)).status());
  {
    int lists = 0;
    // The state, the beats before, and the first look at them. It comes late enough for a beat.
    FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
      if (call != "list" || ++lists != 3) return Fault::kNone;
      const std::string before = NewestBeat();
      EXPECT_TRUE(ComesTrue([&] { return NewestBeat() > before; }));
      return Fault::kNone;
    };
    std::optional<Heartbeat> alive(std::in_place, objects.get(), 1, kInterval);
    const auto report = Reclaim(OpenPlace().get(), {.wait_for_pushes = kBeatsMissed * kInterval});
    alive.reset();  // which asks, too
    FlakyObjects::decide() = nullptr;
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_TRUE(Newest().IsOpen(1));
    EXPECT_FALSE(Newest().IsOpen(2));
  }
  for (const auto wait : {1, 5'000, 29'999}) {
    EXPECT_THAT(ReclaimRemote(url(), {.wait_for_pushes = std::chrono::milliseconds(wait)}),
                FailsWith(StatusCode::kInvalidArgument, "a slow push from a dead one"));
  }
  EXPECT_TRUE(Newest().IsOpen(1));
  VARVE_ASSERT_OK(Reclaim(objects.get(), {.wait_for_pushes = kBeatsMissed * kInterval}).status());
  EXPECT_FALSE(Newest().IsOpen(1));
}

// A collector that was stopped while it watched has seen nothing. The beat before it was stopped
// and the one after it count, however late it looks.
TEST_F(RemoteTest, ACollectorThatWasStoppedLooksAgain) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  const auto objects = OpenPlace();
  RemoteLog log(objects.get());
  VARVE_ASSERT_OK(log.Append([](RemoteState* next) -> Result<bool> {
                       if (next->IsOpen(1)) return false;
                       next->open.push_back({1, "another/host/1/2"});
                       return true;
                     })
                      .status());
  int lists = 0;
  std::optional<Heartbeat> alive;
  FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
    // The state, the beats before, the first look. Then both sleep, the collector for longer than
    // it wants to watch, and the push goes on. The look after the next comes late enough for a
    // beat.
    if (call != "list") return Fault::kNone;
    if (++lists == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      alive.emplace(objects.get(), 1, std::chrono::milliseconds(100));
    } else if (lists == 5) {
      EXPECT_TRUE(ComesTrue([&] { return !NewestBeat().empty(); }));
    }
    return Fault::kNone;
  };
  const auto report =
      Reclaim(OpenPlace().get(), {.wait_for_pushes = std::chrono::milliseconds(2400)});
  alive.reset();  // which asks, too
  FlakyObjects::decide() = nullptr;
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(Newest().IsOpen(1));
}

// What only other steps need is not sent, and the store itself stays as it is.
TEST_F(RemoteTest, ChosenStepsArePushedAlone) {
  for (uint64_t step = 1; step <= 6; ++step) VARVE_ASSERT_OK(Save(step, State(step)).status());
  VARVE_ASSERT_OK(store_->SetTag({"main", 5}, "good"));
  VARVE_ASSERT_OK(store_->Fork("main", "other", 3).status());
  const auto dry = Push(path(), url(), {.dry_run = true, .steps = {"2", "good"}});
  ASSERT_TRUE(dry.ok()) << dry.status().ToString();
  const auto report = Push(path(), url(), {.steps = {"2", "good"}});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(report->is_new);
  ExpectSnapshotHolds(1, {2, 5});
  ExpectStoreHolds(path(), {1, 2, 3, 4, 5, 6});
  const auto more = Push(path(), url(), {.steps = {"5", "6"}});
  ASSERT_TRUE(more.ok()) << more.status().ToString();
  EXPECT_LT(more->sent_bytes, more->total_bytes);  // what only step 5 has is there
  ExpectSnapshotHolds(2, {5, 6});
  const PushReport all = MustPush();
  EXPECT_GT(all.total_bytes, report->total_bytes);
  EXPECT_GT(all.total_bytes, more->total_bytes);
  const auto pulled = Pull(url(), copy(), {.read_data = true});
  ASSERT_TRUE(pulled.ok()) << pulled.status().ToString();
  EXPECT_EQ(pulled->num_steps, 7);  // that of the fork, too
  EXPECT_THAT(Push(path(), url(), {.steps = {"7"}}), FailsWith(StatusCode::kNotFound, "step 7"));
  EXPECT_THAT(Push(path(), url(), {.steps = {"none"}}), FailsWith(StatusCode::kNotFound, "none"));
  EXPECT_THAT(Push(path(), url(), {.steps = {"a@b@c"}}),
              FailsWith(StatusCode::kInvalidArgument, ""));
  EXPECT_THAT(Newest().snapshots, SizeIs(3));
}

TEST_F(RemoteTest, ChosenStepsArePushedBesideAWriter) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(store_->SetTag({"main", 1}, "first"));
  std::atomic<bool> done{false};
  std::jthread pusher([&] {
    do VARVE_EXPECT_OK(Push(path(), url(), {.steps = {"first"}}).status());
    while (!done);
  });
  for (uint64_t step = 2; step <= 10; ++step) {
    VARVE_EXPECT_OK(Save(step, State(step)).status());
    if (step > 2) VARVE_EXPECT_OK(DropSteps({step - 1}));
    VARVE_EXPECT_OK(store_->Reclaim({.all = true}).status());
  }
  done = true;
  pusher.join();
  for (const RemoteSnapshot& each : Newest().snapshots) ExpectSnapshotHolds(each.number, {1});
}
TEST_F(RemoteTest, OldStatesAreRemovedButTheFirst) {
  const auto objects = OpenPlace();
  RemoteLog log(objects.get());
  for (uint64_t i = 1; i <= 140; ++i) {
    const auto state = log.Append([i](RemoteState* next) -> Result<bool> {
      if (next->next_snapshot == i + 1) return false;
      next->next_snapshot = i + 1;
      return true;
    });
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    EXPECT_EQ(state->number, i);
  }
  const auto names = objects->ListRecords(kStatePrefix, "", 1000);
  ASSERT_TRUE(names.ok());
  EXPECT_LE(names->size(), 130);
  EXPECT_EQ(names->front(), StateName(1));
  EXPECT_EQ(names->back(), StateName(140));
  fs::remove_all(place());
}

}  // namespace
}  // namespace varve::internal::testing
