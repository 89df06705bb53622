// SPDX-License-Identifier: Apache-2.0
//
// Shards of global tensors in one store: saved as ranks hold them, read as anybody wants them.
#include <array>
#include <random>
#include <type_traits>
#include <utility>

#include "tests/store/store_fixture.h"
#include "tests/support/shard_reference.h"

namespace varve::internal::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// A layout that is gone before the read does not compile, and nothing else makes a request.
template <typename Layout>
concept IsTaken = requires(Layout&& layout, std::span<std::byte> out) {
  ReadRequest::Region("w", std::forward<Layout>(layout), out);
  ReadRequest::Shard("w", 0, out, std::forward<Layout>(layout));
};
static_assert(IsTaken<const ShardLayout&> && IsTaken<ShardLayout&>);
static_assert(!IsTaken<ShardLayout> && !IsTaken<const ShardLayout>);
static_assert(!std::is_aggregate_v<ReadRequest> && !std::is_default_constructible_v<ReadRequest>);

class ShardsTest : public StoreTest {
 protected:
  // Saves `tensor` in these shards, which are cut out of it. Padding gets 0xAA.
  Status SaveShards(uint64_t step, const TestTensor& tensor,
                    const std::vector<ShardLayout>& layouts) {
    std::vector<std::vector<std::byte>> shards;
    VARVE_ASSIGN_OR_RETURN(auto writer, store_->Begin(step));
    for (const ShardLayout& layout : layouts) {
      shards.push_back(CutShard(tensor.bytes, ElementBytes(tensor), layout, std::byte{0xAA}));
      VARVE_RETURN_IF_ERROR(PutShard(writer.get(), tensor, layout, shards.back(),
                                     static_cast<uint32_t>(shards.size() - 1)));
    }
    return writer->Commit().status();
  }

  static Status PutShard(CheckpointWriter* writer, const TestTensor& tensor,
                         const ShardLayout& layout, const std::vector<std::byte>& bytes,
                         uint32_t number) {
    const std::vector<int64_t> shape = layout.LocalShape();
    return writer->Put({.name = tensor.name,
                        .dtype = tensor.dtype,
                        .shape = shape,
                        .data = bytes.data(),
                        .shard = number,
                        .layout = &layout});
  }

  static size_t ElementBytes(const TestTensor& tensor) {
    return static_cast<size_t>(DTypeBits(tensor.dtype)) / 8;
  }

  Status ReadRegion(const CheckpointReader& reader, const TestTensor& tensor,
                    const ShardLayout& region, std::vector<std::byte>* out) {
    out->assign(static_cast<size_t>(region.NumLocal()) * ElementBytes(tensor), std::byte{0x55});
    return reader.ReadMany(std::array{ReadRequest::Region(tensor.name, region, *out)});
  }

  // Reading this region gives what cutting it out of the tensor does.
  void ExpectRegion(const CheckpointReader& reader, const TestTensor& tensor,
                    const ShardLayout& region, std::byte padding = std::byte{0}) {
    std::vector<std::byte> out;
    VARVE_ASSERT_OK(ReadRegion(reader, tensor, region, &out));
    EXPECT_TRUE(out == CutShard(tensor.bytes, ElementBytes(tensor), region, padding))
        << ToString(region);
  }

  std::unique_ptr<CheckpointReader> OpenStep(uint64_t step) {
    return store_->OpenCheckpoint("main", step).value();
  }
};

// Splits one axis evenly. The last parts may be shorter or empty.
std::vector<ShardLayout> SplitAxis(const std::vector<int64_t>& shape, size_t axis, int64_t parts) {
  std::vector<ShardLayout> layouts;
  const int64_t each = (shape[axis] + parts - 1) / parts;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = std::min(i * each, shape[axis]);
    layouts.push_back(ShardLayout::Whole(shape));
    layouts.back().axes[axis] = {{begin, std::min(begin + each, shape[axis]) - begin}};
  }
  return layouts;
}

// Equal flat slices of each, padded at the end.
std::vector<ShardLayout> SplitFlat(const std::vector<ShardLayout>& layouts, int64_t parts) {
  std::vector<ShardLayout> slices;
  for (const ShardLayout& layout : layouts) {
    const int64_t each = (layout.NumLocal() + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i) {
      slices.push_back(layout);
      slices.back().flat = Range{i * each, (i + 1) * each};
    }
  }
  return slices;
}

TEST_F(ShardsTest, AnyCutIsReadAsAnyOther) {
  const TestTensor tensor = NormalTensor("w", {211, 13, 97}, 1);  // a chunk and a bit
  const std::vector<std::vector<ShardLayout>> cuts = {
      {ShardLayout::Whole(tensor.shape)},
      SplitAxis(tensor.shape, 0, 4),
      SplitAxis(tensor.shape, 1, 5),
      SplitAxis(tensor.shape, 2, 40),
      SplitFlat({ShardLayout::Whole(tensor.shape)}, 7),
      SplitFlat(SplitAxis(tensor.shape, 2, 2), 3)};
  for (size_t step = 0; step < cuts.size(); ++step) {
    VARVE_ASSERT_OK(SaveShards(step, tensor, cuts[step]));
  }
  for (size_t step = 0; step < cuts.size(); ++step) {
    const auto reader = OpenStep(step);
    for (const auto& cut : cuts) {
      for (const ShardLayout& region : cut) {
        const bool same = &cut == &cuts[step];
        ExpectRegion(*reader, tensor, region, same ? std::byte{0xAA} : std::byte{0});
      }
    }
  }
}

TEST_F(ShardsTest, TheGlobalTensorIsListedFoundAndReadByItsName) {
  const TestTensor tensor = NormalTensor("w", {10, 6}, 1);
  VARVE_ASSERT_OK(SaveShards(1, tensor, SplitAxis(tensor.shape, 1, 4)));
  const auto reader = OpenStep(1);
  const std::vector<TensorInfo> list = reader->List().value();
  ASSERT_THAT(list, SizeIs(1));
  EXPECT_EQ(list[0].shard, kAllShards);
  EXPECT_EQ(list[0].num_shards, 4u);
  EXPECT_EQ(list[0].shape, tensor.shape);
  EXPECT_EQ(list[0].logical_bytes, tensor.bytes.size());
  EXPECT_THAT(reader->ListShards().value(), SizeIs(4));
  EXPECT_EQ(reader->Find("w")->shape, tensor.shape);
  EXPECT_EQ(reader->Find("w", 2)->shape, (std::vector<int64_t>{10, 2}));
  EXPECT_EQ(ToString(*reader->Find("w", 2)->layout), "[:, 4:6] of [10, 6]");
  std::vector<std::byte> all(tensor.bytes.size());
  VARVE_ASSERT_OK(reader->Read("w", all));
  EXPECT_TRUE(all == tensor.bytes);
  const Range slice[] = {{3, 8}, {1, 5}};
  ShardLayout box = ShardLayout::Whole(tensor.shape);
  box.axes = {{{3, 5}}, {{1, 4}}};
  std::vector<std::byte> some(size_t{5} * 4 * 4);
  VARVE_ASSERT_OK(reader->ReadSlice("w", slice, some));
  EXPECT_TRUE(some == CutShard(tensor.bytes, 4, box, {}));
}

TEST_F(ShardsTest, ATensorSavedWholeIsReadByRegionsToo) {
  const TestTensor tensor = RandomTensor("w", DType::kBF16, {33, 5}, 3);
  VARVE_ASSERT_OK(Save(1, {tensor}).status());
  for (const ShardLayout& region : SplitFlat(SplitAxis(tensor.shape, 0, 3), 4)) {
    ExpectRegion(*OpenStep(1), tensor, region);
  }
}

TEST_F(ShardsTest, PaddingComesBackWhereTheGeometryIsTheSameAndIsFilledElsewhere) {
  const TestTensor tensor = NormalTensor("wte", {11, 3}, 1);
  std::vector<ShardLayout> padded = SplitAxis(tensor.shape, 0, 3);
  padded[2].axes[0].push_back({.length = 1, .is_padding = true});
  padded.push_back(ShardLayout::Whole(tensor.shape));
  padded[3].axes[0] = {{.length = 4, .is_padding = true}};  // a rank with nothing but padding
  VARVE_ASSERT_OK(SaveShards(1, tensor, padded));
  const auto reader = OpenStep(1);
  for (const ShardLayout& region : padded) ExpectRegion(*reader, tensor, region, std::byte{0xAA});
  ShardLayout other = ShardLayout::Whole(tensor.shape);
  other.axes[0].push_back({.length = 5, .is_padding = true});
  ExpectRegion(*reader, tensor, other);
  std::vector<std::byte> out(size_t{16} * 3 * 4);
  const std::vector<std::byte> ones(4, std::byte{1});
  VARVE_ASSERT_OK(reader->ReadMany(std::array{ReadRequest::Region("wte", other, out, ones)}));
  EXPECT_TRUE(out == CutShard(tensor.bytes, 4, other, std::byte{1}));
}

TEST_F(ShardsTest, ReplicasAreStoredOnceAndMustBeEqual) {
  const TestTensor tensor = NormalTensor("w", {400, 300}, 1);
  const std::vector<ShardLayout> twice(2, ShardLayout::Whole(tensor.shape));
  VARVE_ASSERT_OK(SaveShards(1, tensor, twice));
  EXPECT_EQ(GetStats().unique_bytes, tensor.bytes.size());
  std::vector<std::byte> all(tensor.bytes.size());
  VARVE_ASSERT_OK(OpenStep(1)->Read("w", all));
  EXPECT_TRUE(all == tensor.bytes);

  TestTensor other = tensor;
  other.bytes.back() ^= std::byte{1};
  auto writer = store_->Begin(2).value();
  VARVE_ASSERT_OK(PutShard(writer.get(), tensor, twice[0], tensor.bytes, 0));
  VARVE_ASSERT_OK(PutShard(writer.get(), other, twice[0], other.bytes, 7));
  EXPECT_THAT(writer->Commit(), FailsWith(StatusCode::kInvalidArgument,
                                          "tensor w: shard 0 and shard 7 are replicas"));
}

TEST_F(ShardsTest, WhatIsNotWholeIsNotCommitted) {
  const TestTensor tensor = NormalTensor("w", {40, 30}, 1);
  std::vector<ShardLayout> layouts = SplitAxis(tensor.shape, 0, 4);
  layouts.erase(layouts.begin() + 2);
  EXPECT_THAT(SaveShards(1, tensor, layouts),
              FailsWith(StatusCode::kInvalidArgument, "hold 900 of the 1200 elements"));
  EXPECT_THAT(store_->ListRuns().value(), IsEmpty());
}

TEST_F(ShardsTest, ShardsOfOneTensorAgree) {
  const TestTensor f32 = NormalTensor("w", {4}, 1), bf16 = RandomTensor("w", DType::kBF16, {4}, 1);
  const auto halves = SplitAxis(f32.shape, 0, 2);
  auto writer = store_->Begin(1).value();
  VARVE_ASSERT_OK(PutShard(writer.get(), f32, halves[0], f32.bytes, 0));
  VARVE_ASSERT_OK(PutShard(writer.get(), bf16, halves[1], bf16.bytes, 1));
  EXPECT_THAT(writer->Commit(),
              FailsWith(StatusCode::kInvalidArgument, "shard 0 as F32, shard 1 as BF16"));
  writer = store_->Begin(1).value();
  VARVE_ASSERT_OK(PutShard(writer.get(), f32, halves[0], f32.bytes, 0));
  TensorView plain = f32.view();
  plain.shard = 1;
  VARVE_ASSERT_OK(writer->Put(plain));
  EXPECT_THAT(writer->Commit(), FailsWith(StatusCode::kInvalidArgument,
                                          "shard 0 with one, shard 1 without a layout"));
}

TEST_F(ShardsTest, PutSaysWhatIsWrongWithALayout) {
  const TestTensor tensor = NormalTensor("w", {4, 4}, 1);
  auto writer = store_->Begin(1).value();
  ShardLayout layout = ShardLayout::Whole({4, 4});
  layout.axes[0] = {{0, 3}};
  TensorView view = tensor.view();
  view.layout = &layout;
  EXPECT_THAT(writer->Put(view), FailsWith(StatusCode::kInvalidArgument,
                                           "the shape is [4, 4], that of its layout [0:3, :] of "
                                           "[4, 4] is [3, 4]; give the shape that the layout has"));
  layout.axes[0] = {{0, 5}};
  EXPECT_THAT(writer->Put(view), FailsWith(StatusCode::kInvalidArgument, "axis 0"));
  view.layout = nullptr;
  view.shard = kAllShards;
  EXPECT_THAT(writer->Put(view),
              FailsWith(StatusCode::kInvalidArgument, "is reserved; use a smaller number"));
}

TEST_F(ShardsTest, ReadsSayWhatIsWrong) {
  const TestTensor tensor = NormalTensor("w", {8, 3}, 1);
  VARVE_ASSERT_OK(SaveShards(1, tensor, SplitAxis(tensor.shape, 0, 2)));
  const auto reader = OpenStep(1);
  std::vector<std::byte> out;
  EXPECT_THAT(ReadRegion(*reader, tensor, ShardLayout::Whole({8, 4}), &out),
              FailsWith(StatusCode::kInvalidArgument, "the region is [:, :] of [8, 4]"));
  const ShardLayout whole = ShardLayout::Whole({8, 3});
  out.resize(95);
  EXPECT_THAT(reader->ReadMany(std::array{ReadRequest::Region("w", whole, out)}),
              FailsWith(StatusCode::kInvalidArgument, "95 bytes, expected 96"));
}

TEST_F(ShardsTest, OfOneShardOnlyItsPartIsWritten) {
  const TestTensor tensor = NormalTensor("w", {8, 3}, 1);
  const auto halves = SplitAxis(tensor.shape, 0, 2);
  VARVE_ASSERT_OK(SaveShards(1, tensor, halves));
  std::vector<std::byte> out(tensor.bytes.size(), std::byte{9}), expected = out;
  std::copy(tensor.bytes.begin() + 48, tensor.bytes.end(), expected.begin() + 48);
  const ShardLayout whole = ShardLayout::Whole(tensor.shape);
  VARVE_ASSERT_OK(OpenStep(1)->ReadMany(std::array{ReadRequest::Shard("w", 1, out, whole)}));
  EXPECT_TRUE(out == expected);
}

TEST_F(ShardsTest, LayoutsSurviveReopenForkAndCopy) {
  const TestTensor tensor = NormalTensor("w", {9, 4}, 1);
  const auto layouts = SplitFlat(SplitAxis(tensor.shape, 0, 2), 3);
  VARVE_ASSERT_OK(SaveShards(1, tensor, layouts));
  VARVE_ASSERT_OK(store_->Fork("main", "other", 1).status());
  auto second = Store::Create(folder_.path() / "second").value();
  VARVE_ASSERT_OK(store_->CopyTo(second.get(), std::vector<CheckpointId>{{"main", 1}}).status());
  Reopen();
  for (const auto& reader :
       {store_->OpenCheckpoint("other", 1), second->OpenCheckpoint("main", 1)}) {
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    for (size_t i = 0; i < layouts.size(); ++i) {
      EXPECT_EQ((*reader)->Find("w", static_cast<uint32_t>(i))->layout, Canonical(layouts[i]));
    }
    ExpectRegion(**reader, tensor, ShardLayout::Whole(tensor.shape));
  }
  EXPECT_THAT(second->Check({.read_data = true})->errors, IsEmpty());
}

TEST_F(ShardsTest, SubByteElementsAreCutAtWholeBytesOnly) {
  const std::vector<std::byte> bytes(6);
  ShardLayout layout = ShardLayout::Whole({4, 6});
  const auto put = [&](const ShardLayout& cut) {
    const std::vector<int64_t> shape = cut.LocalShape();
    auto writer = store_->Begin(1).value();
    return writer->Put(
        {.name = "w", .dtype = DType::kF4, .shape = shape, .data = bytes.data(), .layout = &cut});
  };
  layout.axes[1] = {{0, 3}};  // columns of odd width
  EXPECT_THAT(put(layout),
              FailsWith(StatusCode::kInvalidArgument,
                        "tensor w: its layout [:, 0:3] of [4, 6] cuts it within a byte"));
  layout.axes[1] = {{1, 2}};  // of even width, at an odd place
  EXPECT_THAT(put(layout), FailsWith(StatusCode::kInvalidArgument, "cuts it within a byte"));
  layout.axes[1] = {{2, 2}};
  VARVE_EXPECT_OK(put(layout));
  layout = ShardLayout::Whole({4, 6});
  layout.flat = Range{3, 9};
  EXPECT_THAT(put(layout), FailsWith(StatusCode::kInvalidArgument, "cuts it within a byte"));
  layout.flat = Range{4, 10};
  VARVE_EXPECT_OK(put(layout));
}

TEST_F(ShardsTest, SubByteElementsAreMovedByWholeBytesOnly) {
  const TestTensor tensor = RandomTensor("w", DType::kF4, {4, 4}, 1);
  VARVE_ASSERT_OK(Save(1, {tensor}).status());
  const auto reader = OpenStep(1);
  std::vector<std::byte> out(4);
  const Range odd[] = {{0, 4}, {1, 3}}, even[] = {{0, 4}, {2, 4}};
  EXPECT_THAT(reader->ReadSlice("w", odd, out),
              FailsWith(StatusCode::kInvalidArgument, "whole bytes"));
  VARVE_ASSERT_OK(reader->ReadSlice("w", even, out));
  for (size_t row = 0; row < 4; ++row) EXPECT_EQ(out[row], tensor.bytes[2 * row + 1]);
}

// Regions that no tensor here has, or that no buffer holds: an error each, and the buffer stays as
// it is.
TEST_F(ShardsTest, RegionsThatDoNotFitAreRefused) {
  const TestTensor tensor = RandomTensor("w", DType::kF64, {4, 3}, 1);
  std::vector<ShardLayout> halves(2, ShardLayout::Whole(tensor.shape));
  halves[0].axes[0] = {{0, 2}};
  halves[1].axes[0] = {{2, 2}};
  VARVE_ASSERT_OK(SaveShards(1, tensor, halves));
  const TestTensor plain = RandomTensor("plain", DType::kF64, {4, 3}, 2);
  const TestTensor nibbles = RandomTensor("nibbles", DType::kF4, {4, 6}, 3);
  VARVE_ASSERT_OK(Save(2, {plain, nibbles}).status());

  constexpr int64_t kHuge = int64_t{1} << 61;
  const auto padded = [](int64_t length) {  // 8 bytes of it overflow to the size of a buffer
    ShardLayout layout = ShardLayout::Whole(std::vector<int64_t>{4, 3});
    layout.axes[0] = {{.length = length, .is_padding = true}};
    layout.axes[1] = {{0, 1}};
    return layout;
  };
  const auto flat = [](Range range) {
    ShardLayout layout = ShardLayout::Whole(std::vector<int64_t>{4, 3});
    layout.flat = range;
    return layout;
  };
  ShardLayout one_axis = ShardLayout::Whole(std::vector<int64_t>{4, 3});
  one_axis.axes.pop_back();
  ShardLayout negative = ShardLayout::Whole(std::vector<int64_t>{4, 3});
  negative.axes[0] = {{-1, 2}};
  const std::vector<ShardLayout> hostile = {
      padded(kHuge),
      padded(kHuge - 1),
      padded(kHuge / 4),
      padded(kHuge / 8 * 2),
      padded(INT64_MAX),
      flat({0, kHuge}),
      flat({0, INT64_MAX}),
      flat({3, 2}),
      flat({-1, 2}),
      one_axis,
      negative,
      ShardLayout::Whole({}),
      ShardLayout::Whole(std::vector<int64_t>{12}),
      ShardLayout::Whole(std::vector<int64_t>{4, 2}),
      ShardLayout::Whole(std::vector<int64_t>{4, 4}),
      ShardLayout::Whole(std::vector<int64_t>{3, 4}),
      ShardLayout::Whole(std::vector<int64_t>{4, 3, 1}),
      ShardLayout::Whole(std::vector<int64_t>{0, INT64_MAX, 3}),
      ShardLayout::Whole(std::vector<int64_t>{kHuge, 8})};
  struct Target {
    uint64_t step;
    const char* name;
    uint32_t shard;
  };
  const std::vector<Target> targets = {{1, "w", kAllShards}, {1, "w", 0},
                                       {1, "w", 1},          {2, "plain", kAllShards},
                                       {2, "plain", 0},      {2, "nibbles", kAllShards},
                                       {2, "nibbles", 0}};
  for (const Target& target : targets) {
    const auto reader = store_->OpenCheckpoint("main", target.step).value();
    for (const ShardLayout& region : hostile) {
      for (const size_t bytes : {0, 8, 16, 96, 128}) {
        std::vector<std::byte> out(bytes, std::byte{0x55});
        const auto request = ReadRequest::Shard(target.name, target.shard, out, region);
        const Status status = reader->ReadMany({&request, 1});
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
            << target.name << ", shard " << target.shard << ", " << bytes
            << " bytes: " << status.ToString();
        EXPECT_EQ(std::count(out.begin(), out.end(), std::byte{0x55}), bytes);
      }
    }
  }
}

}  // namespace
}  // namespace varve::internal::testing
