// SPDX-License-Identifier: Apache-2.0
//
// Saves of many small tensors, which go through the pipeline together.
#include <malloc.h>
#include <rocksdb/perf_context.h>

#include <algorithm>
#include <cstdlib>

#include "store/save/save_session.h"
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

using ::testing::IsEmpty;

// VARVE_FULL_SIZE=1 is set by scripts/must_show.
bool IsFullSize() { return std::getenv("VARVE_FULL_SIZE") != nullptr; }

// Returns, in turn, a tensor for each way in which a chunk is kept: literal, constant, stored,
// equal to another of the save, without elements, and of several chunks beside small ones.
TestTensor TensorOf(size_t i) {
  const std::string name = "t" + std::to_string(i * 7919 % 10007);
  const auto seed = static_cast<uint64_t>(i);
  switch (i % 6) {
    case 0:
      return RandomTensor(name, DType::kU8, {40}, seed);
    case 1:
      return {name, DType::kF32, {100}, std::vector<std::byte>(400), ""};
    case 2:
      return RandomTensor(name, DType::kF32, {100}, seed);
    case 3:
      return RandomTensor(name, DType::kF32, {100}, i / 12);
    case 4:
      return {name, DType::kF32, {0, 3}, {}, ""};
    default:
      return RandomTensor(name, DType::kBF16, {i % 100 == 5 ? 300000 : 1000}, seed);
  }
}

class ManyTensorsTest : public InternalsTest {
 protected:
  static std::vector<TestTensor> Tensors(size_t n) {
    std::vector<TestTensor> tensors;
    for (size_t i = 0; i < n; ++i) tensors.push_back(TensorOf(i));
    return tensors;
  }
};

TEST_F(ManyTensorsTest, OfAllKindsAreShared) {
  std::vector<TestTensor> tensors = Tensors(1500);
  for (const int num_threads : {1, 4}) {
    const auto step = static_cast<uint64_t>(num_threads) * 10;
    const SaveOptions options{.run = "run" + std::to_string(num_threads),
                              .num_threads = num_threads};
    VARVE_ASSERT_OK(Save(step, tensors, options).status());
    ExpectHolds(*store_, step, tensors, options.run);
    const uint64_t num_lists = CountKeys(Family::kLists);
    const auto again = Save(step + 1, tensors, options);
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(again->new_bytes, 0u);
    EXPECT_EQ(CountKeys(Family::kLists), num_lists);
    // To bytes that no run has had.
    tensors[2].bytes[7] ^= static_cast<std::byte>(num_threads);
    tensors[755].bytes[0] ^= static_cast<std::byte>(num_threads);
    const auto changed = Save(step + 2, tensors, options);
    ASSERT_TRUE(changed.ok()) << changed.status().ToString();
    EXPECT_EQ(changed->new_bytes, 400u + 2000u);
    EXPECT_EQ(CountKeys(Family::kLists), num_lists + 2);
    ExpectHolds(*store_, step + 2, tensors, options.run);
  }
}

TEST_F(ManyTensorsTest, InAnyOrderAndWithHolesAreComparedWithTheirParents) {
  std::vector<TestTensor> tensors = Tensors(900);
  VARVE_ASSERT_OK(Save(1, tensors).status());
  std::mt19937 random(3);
  std::shuffle(tensors.begin(), tensors.end(), random);
  tensors.resize(500);
  tensors.push_back(RandomTensor("new", DType::kU8, {5000}, 1));
  const auto report = Save(2, tensors);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->new_bytes, 5000u);
  ExpectHolds(2, tensors);
  // Replaces a step that names the first tensors.
  tensors.erase(tensors.begin(), tensors.begin() + 100);
  VARVE_ASSERT_OK(Save(2, tensors, {.on_existing = OnExisting::kReplace}).status());
  ExpectHolds(2, tensors);
  EXPECT_EQ(store_->OpenCheckpoint("main", 2).value()->List()->size(), 401u);
}

// Sources and copies of them in one job, the copies put first.
TEST_F(ManyTensorsTest, RoundedCopiesAreDerived) {
  std::vector<TestTensor> tensors;
  for (size_t i = 0; i < 300; ++i) {
    const std::string name = "p" + std::to_string(i);
    const TestTensor master = NormalTensor("master." + name, {60}, i);
    TestTensor copy{name, DType::kBF16, {60}, std::vector<std::byte>(120), master.name};
    for (size_t at = 0; at < 60; ++at) {
      uint32_t bits = 0;
      std::memcpy(&bits, &master.bytes[4 * at], 4);
      const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      std::memcpy(&copy.bytes[2 * at], &rounded, 2);
    }
    tensors.insert(tensors.begin() + static_cast<ptrdiff_t>(i), copy);
    tensors.push_back(master);
  }
  const auto first = Save(1, tensors);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(first->new_bytes, 300u * 240u);
  ExpectHolds(1, tensors);
  EXPECT_EQ(Save(2, tensors)->new_bytes, 0u);
}

// A source that knows its tensor to be unchanged.
class KnownSource : public ChunkSource {
 public:
  explicit KnownSource(int* num_done) : num_done_(num_done) {}
  size_t num_chunks() const { return digests_.size(); }
  void LearnParent(std::vector<Digest>&& digests) override { digests_ = std::move(digests); }
  bool AreUnchanged() const override { return true; }
  std::optional<Digest> KnownDigest(uint64_t i) const override { return digests_[i]; }
  Result<std::span<const std::byte>> Read(uint64_t, std::vector<std::byte>*) override {
    return Status::NotFound("nobody has its bytes");
  }
  Status Learn(uint64_t, const Digest&) override { return Status::Ok(); }
  void Done(uint64_t) override { ++*num_done_; }

 private:
  std::vector<Digest> digests_;  // known when parents are, which are looked up for what is put
  int* const num_done_;
};

TEST_F(ManyTensorsTest, WhatASourceKnowsToBeUnchangedIsNotReadAgain) {
  const std::vector<TestTensor> tensors = Tensors(30);
  VARVE_ASSERT_OK(Save(1, tensors).status());
  const auto before = store_->OpenCheckpoint("main", 1).value()->List().value();
  int num_done = 0;
  uint64_t num_chunks = 0;
  const auto session = SaveSession::Begin(store_.get(), 2).value();
  std::vector<KnownSource*> sources;
  for (const TestTensor& t : tensors) {
    auto source = std::make_unique<KnownSource>(&num_done);
    sources.push_back(source.get());
    const auto spec = std::make_shared<TensorSpec>(TensorSpec{
        .name = t.name, .dtype = t.dtype, .shape = t.shape, .derived_from = t.derived_from});
    VARVE_ASSERT_OK(session->PutSource(spec, 0, std::move(source)));
  }
  session->ReadParents();
  for (const KnownSource* const source : sources) num_chunks += source->num_chunks();
  EXPECT_GT(num_chunks, 0u);
  const uint64_t num_lists = CountKeys(Family::kLists);
  EXPECT_EQ(session->Commit()->new_bytes, 0u);
  EXPECT_EQ(CountKeys(Family::kLists), num_lists);
  EXPECT_EQ(static_cast<uint64_t>(num_done), num_chunks);
  ExpectHolds(2, tensors);
  const auto after = store_->OpenCheckpoint("main", 2).value()->List().value();
  ASSERT_EQ(session->saved().size(), after.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].content, before[i].content);
    const Digest& content = session->saved()[i]->content;
    EXPECT_EQ((std::array<uint64_t, 2>{content.lo, content.hi}), after[i].content);
  }
  EXPECT_EQ(impl()->RequireStep({"main", 2})->second.root, session->root());
}

// The digests are those of the parent, and its list does not fit the tensor.
TEST_F(ManyTensorsTest, AParentThatDoesNotFitIsNotTakenOver) {
  expect_damage_ = true;
  const TestTensor tensor = RandomTensor("w", DType::kU8, {5000}, 1);
  VARVE_ASSERT_OK(Save(1, {tensor}).status());
  std::vector<ChunkRef> refs = DecodeChunkList(Value(Family::kLists, keys::List({1, 0}))).value();
  refs[0].raw_bytes = 4000;
  Change(Family::kLists, keys::List({1, 0}), EncodeChunkList(refs));
  int num_done = 0;
  const auto session = SaveSession::Begin(store_.get(), 2).value();
  const auto spec = std::make_shared<TensorSpec>(
      TensorSpec{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  VARVE_ASSERT_OK(session->PutSource(spec, 0, std::make_unique<KnownSource>(&num_done)));
  session->ReadParents();
  VARVE_ASSERT_OK(session->Commit().status());  // the chunk itself is sound
  ExpectHolds(2, {tensor});
}

// Some of the lists of a save are enough to decide whether its record may be believed.
TEST_F(ManyTensorsTest, ASaveOfManyListsIsNotWalked) {
  const size_t n = 70000;  // more than are believed without a look
  std::vector<uint32_t> values(n);
  const auto writer = store_->Begin(1).value();
  const std::vector<int64_t> shape = {1};
  for (size_t i = 0; i < n; ++i) {
    values[i] = static_cast<uint32_t>(i);
    VARVE_ASSERT_OK(writer->Put({.name = "t" + std::to_string(i),
                                 .dtype = DType::kU32,
                                 .shape = shape,
                                 .data = reinterpret_cast<const std::byte*>(&values[i])}));
  }
  VARVE_ASSERT_OK(writer->Commit().status());
  ASSERT_EQ(CountKeys(Family::kLists), n);
  ReferenceCounts counts(database());
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kEnableCount);
  rocksdb::get_perf_context()->Reset();
  EXPECT_EQ(counts.ListCount({1, 69999}).value(), 1u);
  const uint64_t bytes = rocksdb::get_perf_context()->iter_read_bytes;
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
  EXPECT_LE(bytes, 50000u);  // the lists are some megabytes
}

// Allocated bytes, not those of the process: nobody else's memory counts.
TEST_F(ManyTensorsTest, ATensorTakesAFewHundredBytes) {
  const size_t n = IsFullSize() ? 1000000 : 20000;
  std::vector<std::byte> bytes(128 * n);
  std::mt19937_64 random(5);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  const std::vector<int64_t> shape = {32};
  const auto allocated = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  for (const uint64_t step : {1, 2}) {
    const uint64_t before = allocated();
    const auto writer = store_->Begin(step).value();
    for (size_t i = 0; i < n; ++i) {
      const std::string name = "blocks." + std::to_string(i) + ".mlp.weight";
      VARVE_ASSERT_OK(writer->Put(
          {.name = name, .dtype = DType::kF32, .shape = shape, .data = &bytes[128 * i]}));
    }
    const uint64_t put = allocated() - before;
    EXPECT_EQ(writer->Commit()->num_tensors, n);
    const uint64_t saved = allocated() - before;
    std::printf("%zu tensors: %.0f bytes each put, %.0f saved\n", n,
                static_cast<double>(put) / static_cast<double>(n),
                static_cast<double>(saved) / static_cast<double>(n));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LE(put, 300 * n);
    // A small save does not outweigh the caches that the first of a store fills.
    if (IsFullSize()) {
      EXPECT_LE(saved, 512 * n);
    }
#endif
  }
}

// The lists of both checkpoints, each tensor once.
TEST_F(ManyTensorsTest, ADiffHoldsATensorOnceACheckpoint) {
  const size_t n = 32000;  // almost fills lists that grow by doubling
  const std::vector<int64_t> shape = {1};
  std::vector<uint32_t> values(n);
  const auto save = [&](uint64_t step) {
    const auto writer = store_->Begin(step).value();
    for (size_t i = 0; i < n; ++i) {
      const std::string name = "blocks." + std::to_string(i) + ".mlp.weight";
      VARVE_ASSERT_OK(writer->Put({.name = name,
                                   .dtype = DType::kU32,
                                   .shape = shape,
                                   .data = reinterpret_cast<const std::byte*>(&values[i])}));
    }
    VARVE_ASSERT_OK(writer->Commit().status());
  };
  save(1);
  values[7] = 1;
  save(2);
  const auto allocated = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const uint64_t before = allocated();
  uint64_t most = before, num_seen = 0;
  const auto diff = store_->Diff({"main", 1}, {"main", 2}, {.include = [&](std::string_view) {
                                   if (++num_seen % 1000 == 0) most = std::max(most, allocated());
                                   return true;
                                 }});
  ASSERT_TRUE(diff.ok()) << diff.status().ToString();
  EXPECT_EQ(diff->changed.size(), 1u);
  EXPECT_EQ(diff->unchanged.size(), n - 1);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(most - before, 1000 * n);
#endif
}

}  // namespace
}  // namespace varve::internal::testing
