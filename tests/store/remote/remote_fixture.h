// SPDX-License-Identifier: Apache-2.0
//
// A store that is pushed to a place whose requests can be counted, and told to fail.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/remote/remote_log.h"
#include "tests/store/remote/flaky_objects.h"
#include "tests/store/store_fixture.h"
#include "varve/remote.h"

namespace varve::internal::testing {

class RemoteTest : public StoreTest {
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

  std::filesystem::path place() const { return folder_.path() / "remote"; }
  std::string url() const { return "flaky://x" + place().string(); }
  // Name of the newest beat of a push there, or empty.
  std::string NewestBeat() const {
    std::string newest;
    for (const auto& entry : std::filesystem::directory_iterator(place() / "records")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("beat-")) newest = std::max(newest, name);
    }
    return newest;
  }
  std::filesystem::path copy(const std::string& name = "copy") const {
    return folder_.path() / name;
  }
  static std::vector<TestTensor> State(uint64_t step) {
    return {NormalTensor("w", {400000}, step), RandomTensor("frozen", DType::kF32, {700000}, 1)};
  }
  static Status SaveIn(const std::filesystem::path& folder, uint64_t step) {
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
    const std::filesystem::path folder = copy("pulled" + std::to_string(++num_pulled_));
    const auto report = Pull(url(), folder, {.read_data = true, .snapshot = snapshot});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->num_steps, steps.size());
    ExpectStoreHolds(folder, steps);
  }
  void ExpectStoreHolds(const std::filesystem::path& folder, const std::vector<uint64_t>& steps) {
    const auto store = Store::OpenForReading(folder);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto check = (*store)->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
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

}  // namespace varve::internal::testing
