// SPDX-License-Identifier: Apache-2.0
//
// Places in an object store as files (tests/golden/remote...): what the code of one day has pushed
// must be read, pulled and pushed to by all later code. Each has the steps 1 to 3 of one tensor.
#include "tests/store/remote/remote_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

struct Golden {
  const char* name;
  bool has_notes;
};

class GoldenRemoteTest : public RemoteTest, public ::testing::WithParamInterface<Golden> {
 protected:
  void SetUp() override {
    RemoteTest::SetUp();
    fs::copy(fs::path(VARVE_GOLDEN_STORES) / GetParam().name, place(), fs::copy_options::recursive);
  }
  static void ExpectGolden(const Store& store, uint64_t last) {
    EXPECT_EQ(store.ListCheckpoints("main")->size(), last);
    for (uint64_t step = 1; step <= last; ++step) {
      const auto reader = store.OpenCheckpoint("main", step);
      ASSERT_TRUE(reader.ok()) << reader.status().ToString();
      EXPECT_EQ(Read(**reader), Values(step));
    }
  }
  static std::vector<float> Values(uint64_t step) {
    std::vector<float> values(1000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * step);
    return values;
  }
  static std::vector<float> Read(const CheckpointReader& reader) {
    std::vector<float> values(1000);
    VARVE_EXPECT_OK(reader.Read("w", std::as_writable_bytes(std::span(values))));
    return values;
  }
  std::vector<fs::path> Records(const std::string& start) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(place() / "records")) {
      if (entry.path().filename().string().starts_with(start)) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

TEST_P(GoldenRemoteTest, IsReadPulledAndPushedTo) {
  EXPECT_EQ(!Records("seen-").empty(), GetParam().has_notes);
  const auto store = OpenRemote(url());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ExpectGolden(**store, 3);
  VARVE_ASSERT_OK(Pull(url(), copy(), {.read_data = true}).status());
  {
    const auto pulled = Store::Open(copy());
    ASSERT_TRUE(pulled.ok()) << pulled.status().ToString();
    ExpectGolden(**pulled, 3);
    const auto writer = (*pulled)->Begin(4);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    const std::vector<float> values = Values(4);
    const int64_t shape[] = {1000};
    VARVE_ASSERT_OK(
        (*writer)->Put({.name = "w", .dtype = DType::kF32, .shape = shape, .data = values.data()}));
    VARVE_ASSERT_OK((*writer)->Commit().status());
  }
  const auto pushed = Push(copy(), url());
  ASSERT_TRUE(pushed.ok()) << pushed.status().ToString();
  EXPECT_EQ(pushed->snapshot, 4);
  const auto later = OpenRemote(url());
  ASSERT_TRUE(later.ok()) << later.status().ToString();
  ExpectGolden(**later, 4);
  VARVE_ASSERT_OK(ReclaimRemote(url()).status());
  EXPECT_EQ(Blobs(), NeededBlobs());
  EXPECT_EQ(ParseNoteName(Records("seen-").back().filename().string()), Newest().number);
}

TEST_P(GoldenRemoteTest, LostRecordsAreMissed) {
  const fs::path newest = Records("state-").back();
  fs::remove(newest);
  if (GetParam().has_notes) {
    EXPECT_THAT(OpenRemote(url()), FailsWith(StatusCode::kCorruption, newest.filename().string()));
  }
  fs::remove_all(place() / "records");
  EXPECT_THAT(OpenRemote(url()), FailsWith(StatusCode::kCorruption, "all records state-"));
  EXPECT_THAT(Push(path(), url()), FailsWith(StatusCode::kCorruption, "all records state-"));
}

INSTANTIATE_TEST_SUITE_P(All, GoldenRemoteTest,
                         ::testing::Values(Golden{"remote", false}, Golden{"remote_notes", true}),
                         [](const auto& golden) { return std::string(golden.param.name); });

}  // namespace
}  // namespace varve::internal::testing
