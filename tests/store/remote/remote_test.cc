// SPDX-License-Identifier: Apache-2.0
#include "varve/remote.h"

#include <atomic>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "store/remote/heartbeat.h"
#include "store/remote/pusher.h"
#include "store/remote/reclaim_remote.h"
#include "store/remote/remote_log.h"
#include "tests/store/remote/flaky_objects.h"
#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::FailsWith;
using testing::Fault;
using testing::FlakyObjects;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::NormalTensor;
using testing::RandomTensor;
using ::testing::SizeIs;
using testing::TestTensor;

class RemoteTest : public testing::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    AddEngine("flaky", FlakyObjects::Open);
    FlakyObjects::decide() = nullptr;
  }
  void TearDown() override {
    FlakyObjects::decide() = nullptr;
    StoreTest::TearDown();
  }

  fs::path place() const { return folder_.path() / "remote"; }
  std::string url() const { return "flaky://x" + place().string(); }
  fs::path copy(const std::string& name = "copy") const { return folder_.path() / name; }
  static std::vector<TestTensor> State(uint64_t step) {
    return {NormalTensor("w", {400000}, step), RandomTensor("frozen", DType::kF32, {700000}, 1)};
  }
  static Status SaveIn(const fs::path& folder, uint64_t step) {
    VARVE_ASSIGN_OR_RETURN(const auto store, Store::Open(folder));
    VARVE_ASSIGN_OR_RETURN(const auto writer, store->Begin(step));
    const auto tensors = State(step);
    for (const TestTensor& tensor : tensors) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
    return writer->Commit().status();
  }
  PushReport MustPush() {
    const auto report = Push(path(), url());
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return report.ok() ? *report : PushReport();
  }
  // Pulls a snapshot into a new folder, which must hold exactly these steps.
  void ExpectSnapshotHolds(uint64_t snapshot, const std::vector<uint64_t>& steps) {
    const fs::path folder = copy("pulled" + std::to_string(++num_pulled_));
    const auto report = Pull(url(), folder, {.read_data = true, .snapshot = snapshot});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->num_steps, steps.size());
    ExpectStoreHolds(folder, steps);
  }
  void ExpectStoreHolds(const fs::path& folder, const std::vector<uint64_t>& steps) {
    const auto store = Store::OpenForReading(folder);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto check = (*store)->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, IsEmpty());
    EXPECT_EQ((*store)->ListCheckpoints("main")->size(), steps.size());
    for (const uint64_t step : steps) ExpectHolds(**store, step, State(step));
  }
  std::unique_ptr<Objects> OpenPlace() { return *OpenObjects(url()); }
  RemoteState Newest() {
    const auto objects = OpenPlace();
    return *RemoteLog(objects.get()).ReadNewest();
  }
  std::set<std::string> Blobs() {
    std::set<std::string> names;
    VARVE_EXPECT_OK(OpenPlace()->ListBlobs([&](const BlobInfo& blob) {
      names.insert(blob.name);
      return Status::Ok();
    }));
    return names;
  }
  // The blobs that snapshots name.
  std::set<std::string> NeededBlobs() {
    std::set<std::string> names;
    const auto objects = OpenPlace();
    const RemoteLog log(objects.get());
    const RemoteState newest = *log.ReadNewest();
    for (const RemoteSnapshot& snapshot : newest.snapshots) {
      names.insert(snapshot.body.blob);
      const SnapshotBody body = *log.ReadBody(snapshot);
      for (const BodyTable& table : body.tables) names.insert(table.where.blob);
    }
    return names;
  }

  int num_pulled_ = 0;
};

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
  EXPECT_LT(second.sent_bytes, second.total_bytes - 700000 * 4 + 1000000);
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
  FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
    if (call == "create" && ++creations == 2) {  // the first opens the attempt
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
  FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
    if (call == "create" && ++creations == 2) {  // the push is about to commit
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
  EXPECT_THAT(Pull(url(), copy("new")), FailsWith(StatusCode::kNotFound, "there is no snapshot"));
  flip(largest, 1000);
}

// Counts what is fetched while it lives.
class Requests {
 public:
  Requests() {
    FlakyObjects::decide() = [this](std::string_view call, const std::string&) {
      ++(call == "get" ? gets_ : others_);
      return Fault::kNone;
    };
  }
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests() { FlakyObjects::decide() = nullptr; }
  int gets() const { return gets_; }
  int all() const { return gets_ + others_; }

 private:
  std::atomic<int> gets_{0}, others_{0};
};

TEST_F(RemoteTest, FewRequestsAreNeeded) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  {
    const Requests requests;
    MustPush();
    EXPECT_EQ(requests.all(), 3);  // a list, the newest state, the body of its snapshot
  }
  VARVE_ASSERT_OK(Save(2, State(1)).status());  // the same tensors
  const Requests requests;
  EXPECT_LT(MustPush().sent_bytes, 30000);
  // The same three, one that puts all that is new, one that adds the snapshot, and a list.
  EXPECT_EQ(requests.all(), 3 + 1 + 2);
}

// Small files that travel together come back together. A collector reads no more snapshots than it
// needs to know what each file is for.
TEST_F(RemoteTest, PullsAndCollectionsNeedFewRequests) {
  Pusher pusher(OpenPlace());
  uint64_t small_files = 0;
  for (uint64_t step = 1; step <= 8; ++step) {
    VARVE_ASSERT_OK(Save(step, State(1)).status());  // the same tensors
    const auto report = pusher.Push(path(), {});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    if (step > 1) small_files += report->sent_files;
  }
  EXPECT_GE(small_files, 14);
  {
    const Requests requests;
    const auto pulled = Pull(url(), copy(), {.read_data = true});
    ASSERT_TRUE(pulled.ok()) << pulled.status().ToString();
    EXPECT_EQ(pulled->num_steps, 8);
    // Each push has made one pack, the first of which has files above 1 MiB beside it.
    EXPECT_LE(requests.gets(), 1 + 8 + 2);
  }
  const Requests requests;
  VARVE_ASSERT_OK(ReclaimRemote(url()).status());
  EXPECT_LE(requests.gets(), 2);
  EXPECT_LE(requests.all(), 9);
}

TEST_F(RemoteTest, WhoPushesAgainNeedsFewerRequests) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  Pusher pusher(OpenPlace());
  VARVE_ASSERT_OK(pusher.Push(path(), {}).status());
  const auto push = [&](bool is_new) {
    const Requests requests;
    const auto report = pusher.Push(path(), {});
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report.ok() && report->is_new, is_new);
    return requests.all();
  };
  EXPECT_EQ(push(false), 2);  // a list, the newest state
  for (uint64_t step = 2; step <= 5; ++step) {
    VARVE_ASSERT_OK(Save(step, State(1)).status());  // the same tensors
    EXPECT_EQ(push(true), 3);  // one puts what is new, one adds the snapshot, a list
  }
  // Others have pushed, collected and pushed meanwhile, and what is remembered is out of date.
  VARVE_ASSERT_OK(Save(6, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(ReclaimRemote(url(), {.keep_last = 1}).status());
  EXPECT_LE(push(false), 7);
  VARVE_ASSERT_OK(Save(7, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(Save(8, State(1)).status());
  EXPECT_LE(push(true), 6);
  EXPECT_THAT(Newest().open, IsEmpty());
  const auto pulled = Pull(url(), copy(), {.read_data = true});
  ASSERT_TRUE(pulled.ok()) << pulled.status().ToString();
  EXPECT_EQ(pulled->num_steps, 8);
}

// A small push opens no attempt. A collector that has listed its blob makes it start again.
TEST_F(RemoteTest, ASmallPushIsSafeFromACollector) {
  for (const std::string mistake : {"", "no fence", "fence ignored"}) {
    const fs::path store = copy("other" + mistake);
    fs::remove_all(place());
    VARVE_ASSERT_OK(Store::Create(store).status());
    VARVE_ASSERT_OK(SaveIn(store, 1));
    VARVE_ASSERT_OK(Push(store, url()).status());
    {
      const auto opened = Store::Open(store);
      ASSERT_TRUE(opened.ok());
      VARVE_ASSERT_OK((*opened)->SetMetrics({"main", 1}, {{"loss", 0.5}}));
    }
    int collections = 0;
    const auto collect = [&] {
      if (collections++ > 0) return;
      EXPECT_THAT(Newest().open, IsEmpty());
      const auto report = Reclaim(OpenPlace().get(), {}, {.makes_no_fence = mistake == "no fence"});
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_EQ(report->removed_blobs, 1);
    };
    Pusher pusher(OpenPlace(), {.ignores_fence = mistake == "fence ignored", .in_commit = collect});
    VARVE_ASSERT_OK(pusher.Push(store, {}).status());
    EXPECT_EQ(collections, mistake.empty() ? 2 : 1);
    const auto pulled = Pull(url(), copy("pulled" + mistake), {.read_data = true});
    if (mistake.empty()) {
      VARVE_EXPECT_OK(pulled.status());
    } else {
      EXPECT_THAT(pulled, FailsWith(StatusCode::kCorruption, "missing"));
    }
  }
}

// A collector removes also what is not whole yet, because a small push opens no attempt.
TEST_F(RemoteTest, ASmallPushWhoseBlobIsRemovedBeforeItIsWholeStartsAgain) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(store_->SetMetrics({"main", 1}, {{"loss", 0.5}}));
  int puts = 0;
  FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
    return call == "put" && puts++ == 0 ? Fault::kGone : Fault::kNone;
  };
  const PushReport report = MustPush();
  FlakyObjects::decide() = nullptr;
  EXPECT_TRUE(report.is_new);
  EXPECT_EQ(puts, 2);
  EXPECT_THAT(Newest().open, IsEmpty());
  ExpectSnapshotHolds(2, {1});
}

// Beats show that a push is alive, also one that has put nothing for long. A collector that waits
// for less than a few beats is refused.
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
    const Heartbeat alive(objects.get(), 1, kInterval);
    const auto report = Reclaim(objects.get(), {.wait_for_pushes = kBeatsMissed * kInterval});
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
    // it wants to watch, and the push goes on.
    if (call != "list" || ++lists != 3) return Fault::kNone;
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    alive.emplace(objects.get(), 1, std::chrono::milliseconds(100));
    return Fault::kNone;
  };
  const auto report =
      Reclaim(OpenPlace().get(), {.wait_for_pushes = std::chrono::milliseconds(1400)});
  FlakyObjects::decide() = nullptr;
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(Newest().IsOpen(1));
  alive.reset();
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

TEST_F(RemoteTest, ASnapshotIsReadWhereItLies) {
  for (uint64_t step = 1; step <= 40; ++step) {
    VARVE_ASSERT_OK(Save(step, State(step)).status());
    if (step == 20 || step == 40) MustPush();
  }
  const Requests requests;
  const auto store = OpenRemote(url());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_LE(requests.all(), 20);
  EXPECT_EQ((*store)->ListCheckpoints("main")->size(), 40);
  ExpectHolds(**store, 3, State(3));
  ExpectHolds(**store, 40, State(40));
  const auto check = (*store)->Check({.read_data = true});
  ASSERT_TRUE(check.ok()) << check.status().ToString();
  EXPECT_THAT(check->errors, IsEmpty());
  EXPECT_EQ(check->num_steps, 40);
  EXPECT_THAT((*store)->Begin(41), FailsWith(StatusCode::kFailedPrecondition, "for reading only"));
  const auto earlier = OpenRemote(url(), {.snapshot = 1});
  ASSERT_TRUE(earlier.ok()) << earlier.status().ToString();
  EXPECT_EQ((*earlier)->ListCheckpoints("main")->size(), 20);
  EXPECT_THAT(OpenRemote(url(), {.snapshot = 9}), FailsWith(StatusCode::kNotFound, "snapshot 9"));
}

TEST_F(RemoteTest, WhatWasReadIsKeptInTheCache) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  const auto read = [&](uint64_t cache_bytes) {
    const Requests requests;
    const auto store =
        OpenRemote(url(), {.cache_folder = copy("cache"), .cache_bytes = cache_bytes});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    if (store.ok()) ExpectHolds(**store, 1, State(1));
    return requests.gets();
  };
  const auto bytes_in_cache = [&] {
    uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(copy("cache"))) bytes += entry.file_size();
    return bytes;
  };
  constexpr uint64_t kEnough = uint64_t{1} << 30;
  EXPECT_GT(read(kEnough), 3);
  const uint64_t whole = bytes_in_cache();
  EXPECT_GT(whole, 700000 * 4);
  EXPECT_EQ(read(kEnough), 1);  // the body of the snapshot
  // A damaged block is fetched again.
  int damaged = 0;
  for (const auto& entry : fs::directory_iterator(copy("cache"))) {
    std::fstream(entry.path(), std::ios::in | std::ios::out) << "x";  // over the first byte
    if (++damaged == 3) break;
  }
  EXPECT_GT(read(kEnough), 1);
  EXPECT_EQ(read(kEnough), 1);
  // A full cache loses what was not used for longest.
  read(whole / 2);
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  MustPush();
  read(whole / 2);
  EXPECT_LE(bytes_in_cache(), whole / 2 + (256 << 10));
}

TEST_F(RemoteTest, AMissingBlobIsNamedWhereItIsRead) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  const auto store = OpenRemote(url());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  for (const auto& entry : fs::directory_iterator(place() / "blobs")) fs::remove(entry.path());
  const auto reader = (*store)->OpenCheckpoint("main", 1);
  std::vector<std::byte> out(700000 * 4);
  const Status status = reader.ok() ? (*reader)->Read("frozen", out) : reader.status();
  EXPECT_THAT(status, FailsWith(StatusCode::kCorruption, "is missing"));
  fs::remove_all(place());
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

}  // namespace varve::internal
