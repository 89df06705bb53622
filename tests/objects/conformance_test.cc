// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "base/coding.h"
#include "base/random_number.h"
#include "base/util.h"
#include "objects/url.h"
#include "tests/objects/add_engines.h"
#include "tests/support/status_checks.h"
#include "tests/support/temp_folder.h"
#include "varve/stop.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr size_t kMiB = size_t{1} << 20;

// An engine and a place that nobody has used before.
struct TestedEngine {
  std::string name;
  std::function<std::string()> new_place;
};

void PrintTo(const TestedEngine& engine, std::ostream* out) { *out << engine.name; }

// A folder always. VARVE_TEST_OBJECTS names the URLs of servers for the others, one a word
// (tests/objects/ceph_test.py).
std::vector<TestedEngine> TestedEngines() {
  AddTestedEngines();
  std::vector<TestedEngine> engines;
  engines.push_back({"file", [] {
                       static const testing::TempFolder folder;
                       static std::atomic<int> count{0};
                       return "file://" + (folder.path() / std::to_string(++count)).string();
                     }});
  const char* urls = std::getenv("VARVE_TEST_OBJECTS");
  std::istringstream words(urls == nullptr ? "" : urls);
  for (std::string word; words >> word;) {
    const auto url = ObjectsUrl::Parse(word);
    if (!url.ok()) std::abort();
    engines.push_back({url->scheme, [url = *url] {
                         const size_t mark = std::min(url.text.find('?'), url.text.size());
                         return url.text.substr(0, mark) + "/" + std::to_string(RandomNumber()) +
                                url.text.substr(mark);
                       }});
  }
  return engines;
}

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i + 8 <= size; i += 8) StoreLittle(random(), bytes.data() + i);
  for (size_t i = size / 8 * 8; i < size; ++i) bytes[i] = static_cast<std::byte>(random());
  return bytes;
}

class ObjectsTest : public ::testing::TestWithParam<TestedEngine> {
 protected:
  void SetUp() override {
    url_ = GetParam().new_place();
    objects_ = Open();
  }

  std::unique_ptr<Objects> Open() const {
    auto objects = OpenObjects(url_, {.list_page = 10});
    EXPECT_TRUE(objects.ok()) << objects.status().ToString();
    return objects.ok() ? *std::move(objects) : nullptr;
  }
  Status Put(const std::string& name, std::span<const std::byte> bytes) {
    return objects_->PutBlob(name, MemorySource(bytes));
  }
  // Returns all bytes of a blob, read in blocks.
  std::vector<std::byte> Get(const std::string& name, size_t block_bytes = 3 * kMiB) {
    std::vector<std::byte> bytes, block(block_bytes);
    while (true) {
      const auto size = objects_->GetBlob(name, bytes.size(), block);
      EXPECT_TRUE(size.ok()) << size.status().ToString();
      if (!size.ok() || !size->has_value() || **size == 0) return bytes;
      bytes.insert(bytes.end(), block.begin(), block.begin() + static_cast<ptrdiff_t>(**size));
    }
  }
  bool HasBlob(const std::string& name) {
    std::byte byte{};
    const auto size = objects_->GetBlob(name, 0, {&byte, 1});
    EXPECT_TRUE(size.ok()) << size.status().ToString();
    return size.ok() && size->has_value();
  }
  std::map<std::string, uint64_t> Blobs(bool is_whole = true) {
    std::map<std::string, uint64_t> blobs;
    VARVE_EXPECT_OK(objects_->ListBlobs([&](const BlobInfo& blob) {
      if (blob.is_whole == is_whole) blobs[blob.name] = blob.bytes;
      return Status::Ok();
    }));
    return blobs;
  }
  std::vector<std::string> List(const std::string& prefix, const std::string& after = "",
                                size_t limit = 1000) {
    auto names = objects_->ListRecords(prefix, after, limit);
    EXPECT_TRUE(names.ok()) << names.status().ToString();
    return names.ok() ? *names : std::vector<std::string>();
  }

  std::string url_;
  std::unique_ptr<Objects> objects_;
};

INSTANTIATE_TEST_SUITE_P(Engines, ObjectsTest, ::testing::ValuesIn(TestedEngines()),
                         [](const auto& engine) { return engine.param.name; });

TEST_P(ObjectsTest, OfAllWhoCreateARecordOneWins) {
  constexpr int kThreads = 8, kRounds = 60;
  std::atomic<int> arrived{0};
  std::vector<std::vector<CreateOutcome>> outcomes(kThreads);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const auto objects = Open();
      for (int round = 0; round < kRounds; ++round) {
        ++arrived;
        while (arrived < kThreads * (round + 1)) std::this_thread::yield();
        const auto outcome =
            objects->CreateRecord("race-" + std::to_string(round), std::to_string(thread));
        EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
        outcomes[static_cast<size_t>(thread)].push_back(outcome.ok() ? *outcome
                                                                     : CreateOutcome::kUnknown);
      }
    });
  }
  threads.clear();
  for (size_t round = 0; round < kRounds; ++round) {
    std::vector<std::string> winners;
    for (size_t thread = 0; thread < kThreads; ++thread) {
      EXPECT_NE(outcomes[thread][round], CreateOutcome::kUnknown);
      if (outcomes[thread][round] == CreateOutcome::kOk) winners.push_back(std::to_string(thread));
    }
    const auto record = objects_->ReadRecord("race-" + std::to_string(round));
    ASSERT_TRUE(record.ok() && record->has_value());
    EXPECT_THAT(winners, ElementsAre(**record)) << "round " << round;
  }
}

TEST_P(ObjectsTest, ARecordIsCreatedOnceAndNeverChanges) {
  const std::string large(kMaxRecordBytes, 'x');
  for (const auto& [name, bytes] : std::map<std::string, std::string>{
           {"empty", ""}, {"large", large}, {"zeros", std::string(3, '\0')}}) {
    EXPECT_EQ(*objects_->ReadRecord(name), std::nullopt);
    EXPECT_EQ(*objects_->CreateRecord(name, bytes), CreateOutcome::kOk);
    EXPECT_EQ(*objects_->CreateRecord(name, "other"), CreateOutcome::kExists);
    EXPECT_EQ(*objects_->CreateRecord(name, bytes), CreateOutcome::kExists);
    EXPECT_EQ(*objects_->ReadRecord(name), bytes);
  }
  EXPECT_EQ(objects_->CreateRecord("larger", large + "x").status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_THAT(List(""), ElementsAre("empty", "large", "zeros"));
}

TEST_P(ObjectsTest, RecordsCanBeRemoved) {
  EXPECT_EQ(*objects_->CreateRecord("a", "1"), CreateOutcome::kOk);
  VARVE_EXPECT_OK(objects_->RemoveRecord("a"));
  VARVE_EXPECT_OK(objects_->RemoveRecord("a"));
  EXPECT_EQ(*objects_->ReadRecord("a"), std::nullopt);
  EXPECT_THAT(List(""), IsEmpty());
  EXPECT_EQ(*objects_->CreateRecord("a", "2"), CreateOutcome::kOk);
  EXPECT_EQ(*objects_->ReadRecord("a"), "2");
}

TEST_P(ObjectsTest, RecordsAreListedInOrderAndInPages) {
  EXPECT_THAT(List(""), IsEmpty());
  std::vector<std::string> names;
  for (int i = 0; i < 25; ++i) names.push_back("a-" + std::to_string(100 + i));
  std::vector<std::string> shuffled = names;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(1));
  for (const std::string& name : shuffled) {
    EXPECT_EQ(*objects_->CreateRecord(name, name), CreateOutcome::kOk);
  }
  EXPECT_EQ(*objects_->CreateRecord("a", "x"), CreateOutcome::kOk);
  EXPECT_EQ(*objects_->CreateRecord("b-100", "x"), CreateOutcome::kOk);

  EXPECT_EQ(List("a-"), names);
  EXPECT_THAT(List(""), SizeIs(27));
  EXPECT_THAT(List("b"), ElementsAre("b-100"));
  EXPECT_THAT(List("c"), IsEmpty());
  EXPECT_THAT(List("a-", "a-1225"), ElementsAre("a-123", "a-124"));  // need not exist
  EXPECT_THAT(List("a-", "a-124"), IsEmpty());
  EXPECT_THAT(List("b", "a-124"), ElementsAre("b-100"));
  std::vector<std::string> paged;
  for (std::string after;;) {
    const auto page = List("a-", after, 7);
    if (page.empty()) break;
    EXPECT_LE(page.size(), 7);
    paged.insert(paged.end(), page.begin(), page.end());
    after = page.back();
  }
  EXPECT_EQ(paged, names);
  EXPECT_THAT(List("a-", "", 0), IsEmpty());
}

TEST_P(ObjectsTest, BlobsAreReadInRanges) {
  const auto bytes = RandomBytes(3 * kMiB + 5, 1);
  VARVE_ASSERT_OK(Put("b", bytes));
  EXPECT_EQ(Get("b"), bytes);
  for (const auto& [offset, size] : std::vector<std::pair<size_t, size_t>>{
           {0, 1}, {1, 1000}, {kMiB - 1, 2}, {3 * kMiB, 5}, {7, 3 * kMiB - 2}}) {
    std::vector<std::byte> part(size);
    EXPECT_EQ(*objects_->GetBlob("b", offset, part), size);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + ptrdiff_t(offset)));
  }
  std::vector<std::byte> part(100);
  EXPECT_EQ(*objects_->GetBlob("b", bytes.size() - 3, part), 3);
  EXPECT_EQ(*objects_->GetBlob("b", bytes.size(), part), 0);
  EXPECT_EQ(*objects_->GetBlob("b", bytes.size() + kMiB, part), 0);
  EXPECT_EQ(*objects_->GetBlob("b", 5, {}), 0);
  EXPECT_EQ(*objects_->GetBlob("absent", 0, part), std::nullopt);
}

TEST_P(ObjectsTest, ABlobMayBeEmptyAndPutAgain) {
  VARVE_ASSERT_OK(Put("empty", {}));
  EXPECT_TRUE(HasBlob("empty"));
  EXPECT_THAT(Get("empty"), IsEmpty());
  const auto bytes = RandomBytes(1000, 1);
  VARVE_ASSERT_OK(Put("b", bytes));
  VARVE_ASSERT_OK(Put("b", bytes));
  EXPECT_EQ(Get("b"), bytes);
  EXPECT_THAT(Blobs(),
              UnorderedElementsAre(::testing::Pair("b", 1000), ::testing::Pair("empty", 0)));
}

TEST_P(ObjectsTest, BigBlobsArePutAndReadInPieces) {
  const auto bytes = RandomBytes(70 * kMiB + 3, 2);
  VARVE_ASSERT_OK(Put("big", bytes));
  EXPECT_TRUE(Get("big", 16 * kMiB + 1) == bytes);
  EXPECT_THAT(Blobs(), UnorderedElementsAre(::testing::Pair("big", bytes.size())));
  EXPECT_THAT(Blobs(/*is_whole=*/false), IsEmpty());
  VARVE_ASSERT_OK(objects_->RemoveBlob("big"));
  EXPECT_FALSE(HasBlob("big"));
  EXPECT_THAT(Blobs(), IsEmpty());
}

TEST_P(ObjectsTest, BlobsAreListedAndRemoved) {
  EXPECT_THAT(Blobs(), IsEmpty());
  for (int i = 0; i < 25; ++i) VARVE_ASSERT_OK(Put("b" + std::to_string(i), RandomBytes(10, 1)));
  EXPECT_THAT(Blobs(), SizeIs(25));
  VARVE_EXPECT_OK(objects_->RemoveBlob("b7"));
  VARVE_EXPECT_OK(objects_->RemoveBlob("b7"));
  EXPECT_THAT(Blobs(), SizeIs(24));
  EXPECT_FALSE(HasBlob("b7"));
  EXPECT_TRUE(HasBlob("b8"));
  const Status ended =
      objects_->ListBlobs([](const BlobInfo&) { return Status::NotFound("enough"); });
  EXPECT_EQ(ended.message(), "enough");
}

TEST_P(ObjectsTest, BlobsAndRecordsHaveNamesOfTheirOwn) {
  VARVE_ASSERT_OK(Put("x", RandomBytes(10, 1)));
  EXPECT_EQ(*objects_->ReadRecord("x"), std::nullopt);
  EXPECT_EQ(*objects_->CreateRecord("x", "record"), CreateOutcome::kOk);
  VARVE_EXPECT_OK(objects_->RemoveBlob("x"));
  EXPECT_EQ(*objects_->ReadRecord("x"), "record");
}

TEST_P(ObjectsTest, NamesAreChecked) {
  const std::string longest(kMaxObjectName, 'n');
  for (const std::string& name : {longest, std::string("A.b_c-9"), std::string("0")}) {
    VARVE_EXPECT_OK(Put(name, RandomBytes(10, 1)));
    EXPECT_TRUE(HasBlob(name));
    EXPECT_EQ(*objects_->CreateRecord(name, name), CreateOutcome::kOk);
    EXPECT_EQ(*objects_->ReadRecord(name), name);
  }
  for (const std::string& name :
       {longest + "n", std::string(), std::string(".."), std::string("a/b"), std::string("a b"),
        std::string("-a"), std::string("a\0b", 3), std::string("\xc3\xa9")}) {
    const Status status = Put(name, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), HasSubstr("cannot be the name of a blob"));
    EXPECT_EQ(objects_->CreateRecord(name, "").status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(objects_->RemoveRecord(name).code(), StatusCode::kInvalidArgument);
  }
}

// Fails, or asks the call to end, once the first bytes have been read.
class StoppingSource : public BlobSource {
 public:
  StoppingSource(uint64_t size, std::atomic<bool>* stop) : size_(size), stop_(stop) {}
  uint64_t size() const override { return size_; }
  Status Read(uint64_t offset, std::span<std::byte>) const override {
    if (stop_ != nullptr) *stop_ = true;
    return stop_ != nullptr || offset == 0 ? Status::Ok() : Status::Corruption("damaged source");
  }

 private:
  const uint64_t size_;
  std::atomic<bool>* const stop_;
};

TEST_P(ObjectsTest, APutThatIsStoppedOrFailsLeavesNoBlob) {
  std::atomic<bool> stop{false};
  {
    const StopScope scope(&stop);
    const Status status = objects_->PutBlob("stopped", StoppingSource(70 * kMiB, &stop));
    EXPECT_EQ(status.code(), StatusCode::kAborted) << status.ToString();
    EXPECT_EQ(objects_->CreateRecord("stopped", "").status().code(), StatusCode::kAborted);
    EXPECT_EQ(objects_->ReadRecord("stopped").status().code(), StatusCode::kAborted);
  }
  const Status status = objects_->PutBlob("failed", StoppingSource(70 * kMiB, nullptr));
  EXPECT_EQ(status.message(), "damaged source");
  EXPECT_FALSE(HasBlob("stopped"));
  EXPECT_FALSE(HasBlob("failed"));
  EXPECT_THAT(Blobs(), IsEmpty());
  // What is left of them can be found and removed.
  for (const auto& [name, bytes] : Blobs(/*is_whole=*/false)) {
    EXPECT_THAT(name, ::testing::AnyOf("stopped", "failed"));
    VARVE_EXPECT_OK(objects_->RemoveBlob(name));
  }
  EXPECT_THAT(Blobs(/*is_whole=*/false), IsEmpty());
  VARVE_EXPECT_OK(Put("stopped", RandomBytes(10, 1)));
}

// Says, when all of it may have been sent, that it may not become a blob.
class RefusedSource : public MemorySource {
 public:
  using MemorySource::MemorySource;
  Status Check() const override {
    ++num_checks;
    return Status::Corruption("refused source");
  }
  mutable std::atomic<int> num_checks{0};
};

TEST_P(ObjectsTest, ASourceThatIsRefusedLeavesNoBlob) {
  const auto bytes = RandomBytes(70 * kMiB, 3);
  for (const size_t size : {size_t{10}, bytes.size()}) {
    const RefusedSource source{std::span(bytes).first(size)};
    EXPECT_EQ(objects_->PutBlob("refused", source).message(), "refused source");
    EXPECT_EQ(source.num_checks, 1);
    EXPECT_FALSE(HasBlob("refused"));
    EXPECT_THAT(Blobs(), IsEmpty());
    VARVE_EXPECT_OK(objects_->RemoveBlob("refused"));  // what is left of it
    EXPECT_THAT(Blobs(/*is_whole=*/false), IsEmpty());
  }
}

TEST_P(ObjectsTest, ManyThreadsShareOneObject) {
  std::vector<std::jthread> threads;
  for (uint64_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < 4; ++i) {
        const std::string name = "b" + std::to_string(thread * 4 + i);
        const auto bytes = RandomBytes(300000 + i, thread * 4 + i);
        VARVE_EXPECT_OK(Put(name, bytes));
        EXPECT_TRUE(Get(name) == bytes);
      }
    });
  }
  threads.clear();
  EXPECT_THAT(Blobs(), SizeIs(32));
}

TEST_P(ObjectsTest, DebrisOfRecordsIsNoRecord) {
  EXPECT_EQ(*objects_->CreateRecord("a", "1"), CreateOutcome::kOk);
  VARVE_EXPECT_OK(objects_->RemoveDebris());
  EXPECT_EQ(*objects_->ReadRecord("a"), "1");
}

}  // namespace

}  // namespace varve::internal
