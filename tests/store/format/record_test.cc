// SPDX-License-Identifier: Apache-2.0
#include "store/format/record.h"

#include "store/db/reference_counts.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

TensorRecord SomeTensor() {
  TensorRecord record;
  record.save_id = 9;
  record.dtype = DType::kBF16;
  record.elements_per_chunk = 262144;
  record.shape = {3, 300000};
  record.content = {1, 2};
  record.lists = {{9, 0}};
  record.derived_from = "master.x";
  record.alias_of = "y";
  record.role = TensorRole::kBuffer;
  return record;
}

TEST(TensorRecordTest, RoundTrip) {
  const TensorRecord in = SomeTensor();
  const TensorRecord out = DecodeTensorRecord(EncodeTensorRecord(in)).value();
  EXPECT_EQ(out.save_id, in.save_id);
  EXPECT_EQ(out.shape, in.shape);
  EXPECT_EQ(out.lists, in.lists);
  EXPECT_EQ(out.content, in.content);
  EXPECT_EQ(out.derived_from, in.derived_from);
  EXPECT_EQ(out.alias_of, in.alias_of);
  EXPECT_EQ(out.role, in.role);
  EXPECT_EQ(out.NumChunks(), 4u);
  EXPECT_EQ(out.ChunkBytes(3), 2u * (900000 - 3 * 262144));
}

TEST(TensorRecordTest, NothingIsLeftOfTheRecordBefore) {
  TensorRecord sharded = SomeTensor();
  sharded.layout = ShardLayout::Whole({3, 300000});
  TensorRecord plain;
  plain.dtype = DType::kF32;
  plain.elements_per_chunk = 262144;
  plain.shape = {8};
  plain.lists = {{4, 7}};
  TensorRecord out;
  for (const TensorRecord& in : {sharded, plain, sharded}) {
    VARVE_ASSERT_OK(DecodeTensorRecord(EncodeTensorRecord(in), &out));
    EXPECT_EQ(EncodeTensorRecord(out), EncodeTensorRecord(in));
  }
}

TEST(TensorRecordTest, IsSmall) {
  TensorRecord record = SomeTensor();
  record.derived_from.clear();
  record.alias_of.clear();
  EXPECT_LE(EncodeTensorRecord(record).size(), 160u);
}

TEST(TensorRecordTest, RefusesWhatCannotBe) {
  const auto refused = [](const TensorRecord& record, const char* text) {
    EXPECT_THAT(DecodeTensorRecord(EncodeTensorRecord(record)),
                FailsWith(StatusCode::kCorruption, text));
  };
  TensorRecord record = SomeTensor();
  record.dtype = static_cast<DType>(77);
  refused(record, "dtype is 77");
  record = SomeTensor();
  record.shape = {-1, 5};
  refused(record, "-1");
  record.shape = {INT64_MAX, INT64_MAX};
  refused(record, "2^63");
  record = SomeTensor();
  record.elements_per_chunk = 0;
  refused(record, "elements a chunk");
  record.elements_per_chunk = UINT32_MAX;
  refused(record, "elements a chunk");
  record = SomeTensor();
  record.lists.clear();
  refused(record, "0 lists for 4 chunks, expected 1");
  EXPECT_THAT(DecodeTensorRecord(""), FailsWith(StatusCode::kCorruption, "flatbuffer"));
}

TEST(ChunkListTest, RoundTrip) {
  ChunkRef stored, constant, inlined, derived;
  stored.digest = {1, 2};
  stored.raw_bytes = 1 << 20;
  stored.stored_bytes = 700000;
  stored.predictor = Predictor::kDelta;
  stored.address = {5, 6};
  constant.kind = ChunkKind::kConstant;
  constant.raw_bytes = 400;
  constant.literal = "abcd";
  inlined.kind = ChunkKind::kInline;
  inlined.raw_bytes = 5;
  inlined.literal = "hello";
  derived = stored;
  derived.kind = ChunkKind::kDerived;
  const std::vector<ChunkRef> refs = {stored, constant, inlined, derived};
  EXPECT_EQ(DecodeChunkList(EncodeChunkList(refs)).value(), refs);
  inlined.raw_bytes = 6;
  EXPECT_THAT(DecodeChunkList(EncodeChunkList({inlined})),
              FailsWith(StatusCode::kCorruption, "literal of 5 bytes for a chunk of 6"));
  constant.raw_bytes = 401;
  EXPECT_THAT(DecodeChunkList(EncodeChunkList({constant})),
              FailsWith(StatusCode::kCorruption, "literal"));
  stored.raw_bytes = 0;
  EXPECT_THAT(DecodeChunkList(EncodeChunkList({stored})),
              FailsWith(StatusCode::kCorruption, "0 raw bytes"));
  EXPECT_THAT(DecodeChunkList(EncodeChunkList({})), FailsWith(StatusCode::kCorruption, "0 chunks"));
}

SaveRecord SomeSave() {
  SaveRecord record{.chunks = 3,
                    .lists = 1,
                    .stored_bytes = 900,
                    .raw_bytes = 3000,
                    .live_chunks = 2,
                    .live_lists = 1};
  record.live[1] = {2, 2000, 600};
  record.live_coders.emplace();
  (*record.live_coders)[0] = {6, 1500, 400};
  (*record.live_coders)[2] = {2, 500, 130};
  return record;
}

TEST(SaveRecordTest, RoundTrip) {
  SaveRecord record = SomeSave();
  EXPECT_EQ(DecodeSaveRecord(EncodeSaveRecord(record)).value(), record);
  record.live_coders.reset();
  EXPECT_EQ(DecodeSaveRecord(EncodeSaveRecord(record)).value(), record);
}

TEST(SaveRecordTest, RefusesWhatCannotBe) {
  const auto refused = [](const SaveRecord& record, const char* text) {
    EXPECT_THAT(DecodeSaveRecord(EncodeSaveRecord(record)),
                FailsWith(StatusCode::kCorruption, text));
  };
  SaveRecord record = SomeSave();
  record.live_chunks = 4;
  refused(record, "more live than stored");
  record = SomeSave();
  (*record.live_coders)[6] = {1, 0, 71};
  refused(record, "more bytes in live planes than in live frames");
  (*record.live_coders)[6] = {1, 1, 70};
  refused(record, "more bytes in live planes than in live frames");
}

SaveBlock SomeBlock() {
  SaveBlock block;
  block.edges = {{.ordinal = 5, .base = {3, 9}, .base_digest = {1, 2}, .base_raw_bytes = 800}};
  block.planes = {{.ordinal = 4, .coder = StreamCoder::kRaw, .num_planes = 1, .bytes = 800},
                  {.ordinal = 5, .coder = StreamCoder::kRaw, .num_planes = 3, .bytes = 615},
                  {.ordinal = 5, .coder = StreamCoder::kZstd, .num_planes = 1, .bytes = 70}};
  return block;
}

TEST(SaveBlockTest, RoundTrip) {
  const SaveBlock block = DecodeSaveBlock(EncodeSaveBlock(SomeBlock())).value();
  ASSERT_EQ(block.edges.size(), 1u);
  EXPECT_EQ(block.edges[0].base, (ChunkAddress{3, 9}));
  CoderTotals expected{};
  expected[0] = {3, 600, 615};
  expected[2] = {1, 200, 70};
  EXPECT_EQ(block.PlanesOf(5, 800), expected);
  EXPECT_EQ(block.PlanesOf(6, 800), CoderTotals{});
  EXPECT_TRUE(DecodeSaveBlock(EncodeSaveBlock({}))->planes.empty());
}

TEST(SaveBlockTest, AFrameMayHaveSeveralSources) {
  SaveBlock block = SomeBlock();
  const BaseEdge first = block.edges[0];
  block.edges.resize(kMaxSources, first);
  block.edges.push_back(first);
  ++block.edges.back().ordinal;
  const SaveBlock read = DecodeSaveBlock(EncodeSaveBlock(block)).value();
  EXPECT_EQ(read.EdgesOf(first.ordinal).size(), kMaxSources);
  EXPECT_EQ(read.EdgesOf(first.ordinal + 1).size(), 1u);
  EXPECT_TRUE(read.EdgesOf(first.ordinal + 2).empty());
}

// Whatever the parts are, they add up.
TEST(SaveBlockTest, SharesOfAFrameAddUp) {
  SaveBlock block;
  for (uint8_t coder = 0; coder < 3; ++coder) {
    block.planes.push_back({.ordinal = 5,
                            .coder = static_cast<StreamCoder>(coder),
                            .num_planes = static_cast<uint8_t>(coder + 1),
                            .bytes = 10});
  }
  uint64_t raw_bytes = 0;
  for (const CodecTotals& part : block.PlanesOf(5, 1001)) raw_bytes += part.raw_bytes;
  EXPECT_EQ(raw_bytes, 1001u);
}

TEST(SaveBlockTest, RefusesWhatCannotBe) {
  const auto refused = [](const SaveBlock& block, const char* text) {
    EXPECT_THAT(DecodeSaveBlock(EncodeSaveBlock(block)), FailsWith(StatusCode::kCorruption, text));
  };
  SaveBlock block = SomeBlock();
  block.edges.push_back(block.edges[0]);
  --block.edges.back().ordinal;
  refused(block, "ordinals of deltas fall");
  block = SomeBlock();
  block.edges.resize(kMaxSources + 1, block.edges[0]);
  refused(block, "more than 3 sources");
  block = SomeBlock();
  std::swap(block.planes[1], block.planes[2]);
  refused(block, "planes are out of order");
  block = SomeBlock();
  block.planes[0].num_planes = 0;
  refused(block, "0 planes of coder 0");
  block = SomeBlock();
  block.planes[0].coder = static_cast<StreamCoder>(kNumStreamCoders);
  refused(block, "1 planes of coder 8");
  EXPECT_THAT(DecodeSaveBlock("x"), FailsWith(StatusCode::kCorruption, "flatbuffer"));
}

TEST(CountsTest, RoundTrip) {
  EXPECT_EQ(EncodeCounts({1, 1, 1}), "");
  EXPECT_EQ(DecodeCounts(EncodeCounts({0, 2, kDeadBit | 77, 1, 1})).value(),
            (std::vector<uint32_t>{0, 2, kDeadBit | 77}));
  EXPECT_THAT(DecodeCounts("12345"), FailsWith(StatusCode::kCorruption, "5 bytes"));
  EXPECT_THAT(DecodeCounts(std::string(16388, '\0')), FailsWith(StatusCode::kCorruption, "16388"));
}

// 2^20 tables were the most that a reader believed, and no writer asked.
TEST(StepRecordTest, WhatCanBeWrittenCanBeRead) {
  StepRecord in;
  for (uint32_t i = 0; i <= 1 << 20; ++i) {
    in.metrics.emplace_hint(in.metrics.end(), std::to_string(10'000'000 + i), 1);
  }
  const auto out = DecodeStepRecord(EncodeStepRecord(in));
  VARVE_ASSERT_OK(out.status());
  EXPECT_TRUE(out->metrics == in.metrics);
}

TEST(StepRecordTest, RoundTrip) {
  StepRecord in;
  in.save_id = 3;
  in.created_us = -5;
  in.parent = StepKey{1, 2};
  in.num_tensors = 4;
  in.logical_bytes = 5;
  in.metrics = {{"loss", 0.25}, {"nan", std::nan("")}};
  const StepRecord out = DecodeStepRecord(EncodeStepRecord(in)).value();
  EXPECT_EQ(out.parent, in.parent);
  EXPECT_EQ(out.created_us, in.created_us);
  EXPECT_EQ(out.metrics.at("loss"), 0.25);
  EXPECT_TRUE(std::isnan(out.metrics.at("nan")));
}

}  // namespace
}  // namespace varve::internal::testing
