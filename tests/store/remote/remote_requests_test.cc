// SPDX-License-Identifier: Apache-2.0
//
// How many requests pushes, pulls, collections and reads of a snapshot need, and that so few are
// safe.
#include <fstream>

#include "store/remote/pusher.h"
#include "store/remote/reclaim_remote.h"
#include "tests/store/remote/remote_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

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
  // The same three, one that puts all that is new, one that adds the snapshot, a list, and a note.
  EXPECT_EQ(requests.all(), 3 + 1 + 3);
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
    EXPECT_EQ(push(true), 4);  // one puts what is new, one adds the snapshot, a list, a note
  }
  // Others have pushed, collected and pushed meanwhile, and what is remembered is out of date.
  VARVE_ASSERT_OK(Save(6, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(ReclaimRemote(url(), {.keep_last = 1}).status());
  EXPECT_LE(push(false), 7);
  VARVE_ASSERT_OK(Save(7, State(1)).status());
  MustPush();
  VARVE_ASSERT_OK(Save(8, State(1)).status());
  EXPECT_LE(push(true), 7);
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

TEST_F(RemoteTest, ASnapshotThatIsRemovedWhileItIsReadIsNotDamaged) {
  const auto read = [](const Store& store, uint64_t step) -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint("main", step));
    std::vector<std::byte> out(size_t{4} * 400'000);
    return reader->Read("w", out);
  };
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  MustPush();
  const auto store = OpenRemote(url());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  VARVE_ASSERT_OK(DropSteps({1}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  MustPush();
  VARVE_ASSERT_OK(ReclaimRemote(url(), {.keep_last = 1}).status());
  EXPECT_THAT(read(**store, 1), FailsWith(StatusCode::kIOError, "snapshot 1 was removed"));
  // A snapshot that is still there must have its blobs.
  const auto newest = OpenRemote(url());
  ASSERT_TRUE(newest.ok()) << newest.status().ToString();
  const std::string body = Newest().snapshots.back().body.blob;
  for (const std::string& blob : Blobs()) {
    if (blob != body) VARVE_ASSERT_OK(OpenPlace()->RemoveBlob(blob));
  }
  EXPECT_THAT(read(**newest, 2), FailsWith(StatusCode::kCorruption, "missing"));
}

// Frames that lie beside each other are fetched together, and the frames of a chain level by level.
TEST_F(RemoteTest, OneTensorComesInFewRequests) {
  const auto save = [&](uint64_t step) {
    const std::vector<TestTensor> state = {NormalTensor("w", {2'000'000}, step),
                                           RandomTensor("frozen", DType::kF32, {3'000'000}, 1)};
    VARVE_ASSERT_OK(Save(step, state).status());
  };
  for (uint64_t step = 1; step <= 3; ++step) save(step);
  MustPush();
  for (const std::string name : {"w", "frozen"}) {
    const auto store = OpenRemote(url());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto reader = (*store)->OpenCheckpoint("main", 3);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    std::vector<std::byte> out(size_t{4} * (name == "w" ? 2'000'000 : 3'000'000));
    const Requests requests;
    VARVE_ASSERT_OK((*reader)->Read(name, out));
    // 8 or 12 chunks. Each step has a table of its own, so a chain of w takes one request for each
    // step. A table is opened at its first read.
    EXPECT_LE(requests.gets(), name == "w" ? 3 + 3 : 2 + 1) << name;
  }
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
  std::vector<std::byte> out(size_t{700000} * 4);
  const Status status = reader.ok() ? (*reader)->Read("frozen", out) : reader.status();
  EXPECT_THAT(status, FailsWith(StatusCode::kCorruption, "is missing"));
  fs::remove_all(place());
}

}  // namespace
}  // namespace varve::internal::testing
