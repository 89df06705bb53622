// SPDX-License-Identifier: Apache-2.0
#include "store/remote/table_fetcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "base/digest.h"
#include "base/util.h"
#include "tests/store/remote/remote_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string Noise(uint64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

class TableFetcherTest : public RemoteTest {
 protected:
  void SetUp() override {
    RemoteTest::SetUp();
    objects_ = OpenPlace();
    fs::create_directories(there());
  }
  fs::path there() const { return folder_.path() / "there"; }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(there())) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  std::string Text(const std::string& name) const {
    return *ReadSmallFile(there() / name, 100 * kMiB);
  }
  // A blob of its own for each.
  BodyTable Put(const std::string& name, const std::string& text) {
    VARVE_EXPECT_OK(objects_->PutBlob("b" + name, MemorySource(AsBytes(text))));
    return {name, name, {"b" + name, 0, text.size(), ComputeDigest(0, AsBytes(text))}};
  }
  Status Fetch(const std::vector<const BodyTable*>& tables) {
    fetched_ = 0;
    return TableFetcher(objects_.get(), there(), [this](uint64_t bytes) { fetched_ += bytes; })
        .Fetch(tables, 4);
  }

  std::unique_ptr<Objects> objects_;
  std::atomic<uint64_t> fetched_{0};
};

TEST_F(TableFetcherTest, LargeFilesComeInPartsAndSmallOnesTogether) {
  const std::string one = Noise(17 * kMiB + 5, 1), two = Noise(16 * kMiB, 2);
  const std::string pack = Noise(9000, 3);
  const BodyTable large = Put("1.sst", one), other = Put("2.sst", two);
  const BodyTable packed = Put("3.sst", pack);
  const auto part = [&](const std::string& name, uint64_t offset, uint64_t bytes) {
    const std::string text = pack.substr(offset, bytes);
    return BodyTable{name, name, {"b3.sst", offset, bytes, ComputeDigest(0, AsBytes(text))}};
  };
  const BodyTable first = part("4.sst", 0, 4000), second = part("5.sst", 5000, 4000);
  const Requests requests;
  VARVE_ASSERT_OK(Fetch({&second, &large, &other, &first}));
  EXPECT_EQ(requests.gets(), 3 + 2 + 1);
  EXPECT_EQ(Text("1.sst"), one);
  EXPECT_EQ(Text("2.sst"), two);
  EXPECT_EQ(Text("4.sst"), pack.substr(0, 4000));
  EXPECT_EQ(Text("5.sst"), pack.substr(5000, 4000));
  EXPECT_EQ(fetched_, one.size() + two.size() + 8000);
  EXPECT_THAT(Names(), ElementsAre("1.sst", "2.sst", "4.sst", "5.sst"));
}

// The digest takes the parts in their order, so those behind a part that fails wait for it.
TEST_F(TableFetcherTest, WhoWaitsForAPartThatFailsIsToldWhy) {
  const BodyTable large = Put("1.sst", Noise(40 * kMiB, 1));
  std::atomic<int> gets{0};
  FlakyObjects::decide() = [&](std::string_view call, const std::string&) {
    if (call != "get" || gets++ > 0) return Fault::kNone;
    while (gets < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Fault::kFailed;
  };
  EXPECT_THAT(Fetch({&large}), FailsWith(StatusCode::kIOError, "refused"));
  EXPECT_EQ(gets, 4);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(TableFetcherTest, WhatIsNotWhatWasPushedGetsNoName) {
  const std::string text = Noise(17 * kMiB, 1);
  BodyTable large = Put("1.sst", text), small = Put("2.sst", text.substr(0, 1000));
  ++large.where.digest.lo;
  ++small.where.digest.lo;
  for (const BodyTable* table : {&large, &small}) {
    EXPECT_THAT(Fetch({table}), FailsWith(StatusCode::kCorruption, "not what was pushed"));
    EXPECT_THAT(Names(), IsEmpty());
  }
  large.where.bytes = uint64_t{1} << 60;  // a plan of all its parts would not fit into memory
  EXPECT_THAT(Fetch({&large}), FailsWith(StatusCode::kCorruption, "b1.sst is too short"));
  large.where.blob = "absent";
  EXPECT_THAT(Fetch({&large}), FailsWith(StatusCode::kCorruption, "1.sst, is missing"));
  EXPECT_THAT(Names(), IsEmpty());
}

}  // namespace
}  // namespace varve::internal::testing
