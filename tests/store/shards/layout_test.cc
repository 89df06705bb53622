// SPDX-License-Identifier: Apache-2.0
//
// Where a tensor's chunks go: many lists, bounded chains, shards, copies that need no frame.
#include <sys/mman.h>

#include "codec/predict/rounded_copy.h"
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

using LayoutTest = InternalsTest;

// 4-bit elements make the smallest full chunks: 128 KiB. Untouched pages take no memory.
class ManyChunks {
 public:
  static constexpr size_t kChunk = 131072;
  static constexpr size_t kChunks = 4098;
  static constexpr size_t kBytes = kChunk * kChunks - 5;

  ManyChunks()
      : data_(static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  ManyChunks(const ManyChunks&) = delete;
  ManyChunks& operator=(const ManyChunks&) = delete;
  ~ManyChunks() { munmap(data_, kBytes); }

  std::byte* chunk(size_t i) { return data_ + i * kChunk; }
  TensorView view() const {
    return {.name = "many", .dtype = DType::kF4, .shape = shape_, .data = data_};
  }

 private:
  std::byte* const data_;
  const std::vector<int64_t> shape_ = {2 * static_cast<int64_t>(kBytes)};
};

TEST_F(LayoutTest, MoreChunksThanAListNames) {
  ManyChunks many;
  for (const size_t i : {0, 4095, 4096, 4097}) {
    std::fill_n(many.chunk(i), 100, static_cast<std::byte>(i + 1));
  }
  const auto save = [&](uint64_t step) {
    auto writer = store_->Begin(step).value();
    EXPECT_TRUE(writer->Put(many.view()).ok());
    return writer->Commit().value();
  };
  EXPECT_EQ(save(1).by_codec.size(), 1u);
  EXPECT_EQ(CountKeys(Family::kLists), 2u);
  const std::byte before = *many.chunk(4096);
  *many.chunk(4096) = std::byte{0x77};
  EXPECT_EQ(save(2).new_bytes, ManyChunks::kChunk);
  EXPECT_EQ(CountKeys(Family::kLists), 3u);  // the first list is shared
  const auto expect_around_the_cut = [&](uint64_t step, std::byte first) {
    const auto reader = store_->OpenCheckpoint("main", step).value();
    EXPECT_EQ(reader->Find("many")->num_chunks, ManyChunks::kChunks);
    const int64_t begin = int64_t{2} * 4095 * int64_t{ManyChunks::kChunk};
    const int64_t end = 2 * static_cast<int64_t>(ManyChunks::kBytes);
    std::vector<std::byte> out(static_cast<size_t>(end - begin) / 2);
    const std::vector<Range> slice = {{begin, end}};
    VARVE_ASSERT_OK(reader->ReadSlice("many", slice, out));
    std::vector<std::byte> expected(many.chunk(4095), many.chunk(4095) + out.size());
    expected[ManyChunks::kChunk] = first;
    EXPECT_TRUE(out == expected) << "step " << step;
  };
  expect_around_the_cut(1, before);
  expect_around_the_cut(2, std::byte{0x77});
  VARVE_ASSERT_OK(DropSteps({1}));
  EXPECT_EQ(CountKeys(Family::kLists), 2u);
  expect_around_the_cut(2, std::byte{0x77});
  VARVE_ASSERT_OK(DropSteps({2}));
  ExpectNoKeys();
}

class ChainTest : public InternalsTest, public ::testing::WithParamInterface<int> {};

TEST_P(ChainTest, StaysWithinItsDepth) {
  Reopen({.max_delta_depth = GetParam(), .max_path_ratio = 1e9});
  TestTensor t = NormalTensor("t", {262144}, 1);
  uint32_t deepest = 0;
  for (uint64_t step = 0; step < 12; ++step) {
    t = Drifted(t, step);
    VARVE_ASSERT_OK(Save(step, {t}).status());
    const auto record = DecodeTensorRecord(
        database()->Get(Family::kTensors, keys::Tensor({1, step}, "t", 0)).value().value());
    const auto refs = DecodeChunkList(
        database()->Get(Family::kLists, keys::List(record->lists[0])).value().value());
    const FrameSource chunk{(*refs)[0].address, (*refs)[0].digest};
    const FrameGraph graph = impl()->chunk_reader().FetchGraph({&chunk, 1}).value();
    const uint32_t depth = graph.InfoOf(chunk.address).depth;
    EXPECT_EQ(graph.BasesOf(chunk.address).size(), depth);
    deepest = std::max(deepest, depth);
  }
  EXPECT_EQ(deepest, static_cast<uint32_t>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Depths, ChainTest, ::testing::Values(1, 2, 5));

TEST_F(LayoutTest, ShardsOfATensorAreApart) {
  TestTensor a = NormalTensor("w", {70000}, 1), b = NormalTensor("w", {50, 3}, 2);
  auto writer = store_->Begin(1).value();
  for (const TestTensor* t : {&a, &b}) {
    TensorView view = t->view();
    view.shard = t == &a ? 0 : 700;
    VARVE_ASSERT_OK(writer->Put(view));
    EXPECT_THAT(writer->Put(view), FailsWith(StatusCode::kInvalidArgument, "twice"));
  }
  VARVE_ASSERT_OK(writer->Commit().status());
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  ASSERT_EQ(reader->List()->size(), 2u);
  EXPECT_EQ(reader->List().value()[1].shard, 700u);
  std::vector<std::byte> out_a(a.bytes.size()), out_b(b.bytes.size());
  const ReadRequest requests[] = {ReadRequest::Tensor("w", out_a),
                                  ReadRequest::Shard("w", 700, out_b)};
  VARVE_ASSERT_OK(reader->ReadMany(requests));
  EXPECT_TRUE(out_a == a.bytes);
  EXPECT_TRUE(out_b == b.bytes);
  EXPECT_THAT(reader->Find("w", 1), FailsWith(StatusCode::kNotFound, "shard 1"));
}

TEST_F(LayoutTest, ReadManyReportsTheFirstErrorAndChecksEverySize) {
  const TestTensor a = NormalTensor("a", {70000}, 1);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  std::vector<std::byte> out(a.bytes.size()), small(3);
  const ReadRequest missing[] = {ReadRequest::Tensor("a", out), ReadRequest::Tensor("b", small)};
  EXPECT_THAT(reader->ReadMany(missing), FailsWith(StatusCode::kNotFound, "no tensor b at step 1"));
  const ReadRequest wrong[] = {ReadRequest::Tensor("a", out), ReadRequest::Tensor("a", small)};
  EXPECT_THAT(reader->ReadMany(wrong), FailsWith(StatusCode::kInvalidArgument, "3 bytes"));
  VARVE_ASSERT_OK(reader->ReadMany({}));
}

// NaNs with payloads, infinities, zeros of both signs: what rounding treats apart.
TEST_F(LayoutTest, DerivedCopiesOfSpecialValues) {
  TestTensor master{"master", DType::kF32, {300000}, {}, {}};
  master.bytes.resize(1200000);
  constexpr uint32_t kSpecial[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7fffffff, 0xffbfffff,
                                   0x7f800001, 0x80000000, 0x00000001, 0x3f808000, 0x3f818000,
                                   0x477fefff, 0x477ff000, 0x33000000, 0x33000001};
  for (size_t i = 0; i < 300000; ++i) {
    std::memcpy(&master.bytes[4 * i], &kSpecial[i * 7 % std::size(kSpecial)], 4);
  }
  std::vector<TestTensor> tensors = {master};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    TestTensor copy{std::string(DTypeName(dtype)), dtype, master.shape, {}, "master"};
    copy.bytes.resize(master.bytes.size() / 2);
    MakeRoundedCopy(dtype, master.bytes, copy.bytes);
    tensors.push_back(std::move(copy));
  }
  EXPECT_EQ(Save(1, tensors).value().new_bytes, master.bytes.size());
  ExpectHolds(1, tensors);
  tensors.erase(tensors.begin());
  EXPECT_EQ(Save(2, tensors).value().new_bytes, 0u);
  VARVE_ASSERT_OK(DropSteps({1}));
  ExpectHolds(2, tensors);
}

TEST_F(LayoutTest, StridedOrDifferentlyShapedSourcesAreNoSources) {
  const TestTensor master = NormalTensor("master", {300, 300}, 1);
  TestTensor copy{"copy", DType::kBF16, {90000}, {}, "master"};
  copy.bytes.resize(master.bytes.size() / 2);
  MakeRoundedCopy(DType::kBF16, master.bytes, copy.bytes);
  TestTensor itself = NormalTensor("itself", {10000}, 3);
  itself.derived_from = "itself";
  VARVE_ASSERT_OK(Save(1, {master, copy, itself}).status());
  ExpectHolds(1, {master, copy, itself});
}

// Reads columns, wide and narrow, of raw and of encoded chunks, and of their rounded copies. Narrow
// ones of many chunks are woven together.
TEST_F(LayoutTest, ColumnsOfRawAndEncodedChunksAndTheirCopies) {
  std::vector<TestTensor> tensors = {NormalTensor("encoded", {700, 600}, 1),
                                     RandomTensor("raw", DType::kF32, {700, 600}, 2)};
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const TestTensor& master = tensors[i];
    TestTensor copy{master.name + ".copy", DType::kBF16, master.shape, {}, master.name};
    copy.bytes.resize(master.bytes.size() / 2);
    MakeRoundedCopy(DType::kBF16, master.bytes, copy.bytes);
    tensors.push_back(std::move(copy));
  }
  EXPECT_GT(Save(1, tensors).value().by_codec.size(), 1u);  // raw and another
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  for (const Range columns : {Range{7, 403}, Range{599, 600}, Range{0, 3}, Range{0, 600}}) {
    const std::vector<Range> slice = {{5, 690}, columns};
    const auto width = static_cast<size_t>(columns.end - columns.begin);
    std::vector<std::vector<std::byte>> read(tensors.size());
    std::vector<ReadRequest> requests;
    for (size_t i = 0; i < tensors.size(); ++i) {
      read[i].resize(685 * width * (tensors[i].dtype == DType::kF32 ? 4 : 2));
      requests.push_back(ReadRequest::Tensor(tensors[i].name, read[i], slice));
    }
    VARVE_ASSERT_OK(reader->ReadMany(requests));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const size_t element = tensors[i].dtype == DType::kF32 ? 4 : 2;
      std::vector<std::byte> expected;
      for (size_t row = 5; row < 690; ++row) {
        const auto first =
            tensors[i].bytes.begin() +
            static_cast<ptrdiff_t>((row * 600 + static_cast<size_t>(columns.begin)) * element);
        expected.insert(expected.end(), first, first + static_cast<ptrdiff_t>(width * element));
      }
      EXPECT_TRUE(read[i] == expected) << tensors[i].name << ", columns from " << columns.begin;
    }
  }
}

TEST_F(LayoutTest, NothingButAxesWithStrides) {
  const std::vector<int64_t> shape = {0, int64_t{1} << 40, int64_t{1} << 40}, strides = {1, 2, 3};
  auto writer = store_->Begin(1).value();
  VARVE_ASSERT_OK(writer->Put({.name = "empty",
                               .dtype = DType::kF32,
                               .shape = shape,
                               .data = nullptr,
                               .strides = strides}));
  VARVE_ASSERT_OK(writer->Commit().status());
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  EXPECT_EQ(reader->Find("empty")->shape, shape);
  VARVE_ASSERT_OK(reader->Read("empty", {}));
}

TEST_F(LayoutTest, AnUnchangedTensorCostsLittle) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 500; ++i) {
    tensors.push_back(RandomTensor("block." + std::to_string(i), DType::kU8, {300}, i));
  }
  VARVE_ASSERT_OK(Save(1, tensors).status());
  VARVE_ASSERT_OK(Save(2, tensors).status());
  uint64_t bytes = 0;
  VARVE_ASSERT_OK(database()->Scan(Family::kTensors, keys::Step({1, 2}),
                                   [&](std::string_view, std::string_view value) {
                                     bytes += value.size();
                                     return Status::Ok();
                                   }));
  EXPECT_LE(bytes, 160u * 500);
  EXPECT_EQ(CountKeys(Family::kLists), 500u);
  EXPECT_EQ(CountKeys(Family::kBirths), 2u);  // the save and the block of its chunks
}

}  // namespace
}  // namespace varve::internal::testing
