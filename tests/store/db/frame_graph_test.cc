// SPDX-License-Identifier: Apache-2.0
//
// Frames as any bytes on disk may name each other. Only their headers are read here.
#include "store/db/frame_graph.h"

#include "codec/frame_header.h"
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

class FrameGraphTest : public InternalsTest {
 protected:
  void SetUp() override {
    InternalsTest::SetUp();
    expect_damage_ = true;  // frames that no list names
  }

  static Digest DigestOf(ChunkAddress address) { return {address.ordinal, address.save_id}; }
  static FrameSource SourceOf(ChunkAddress address) { return {address, DigestOf(address)}; }

  // A replay of a weight if there are three sources, a delta if there is one.
  static FrameInfo Frame(ChunkAddress address, const std::vector<FrameSource>& sources) {
    FrameInfo info;
    info.predictor = sources.empty() ? Predictor::kKeyframe : Predictor::kDelta;
    if (sources.size() == 3) {
      info.version = 3;
      info.predictor = Predictor::kReplay;
      info.replay = FrameReplay{.target = ReplayTarget::kWeight, .recipe = {}};
    }
    info.dtype = DType::kF32;
    info.raw_bytes = 4096;
    info.digest = DigestOf(address);
    info.depth = sources.empty() ? 1 : 2;
    info.path_bytes = 1000000;
    for (const FrameSource& source : sources) info.AddSource(source);
    return info;
  }
  void Put(ChunkAddress address, const FrameInfo& info) {
    std::string frame(HeaderBytes(info) + 10, '\0');
    WriteHeader(info, std::as_writable_bytes(std::span(frame)));
    frames_.emplace_back(keys::Chunk(address), std::move(frame));
  }
  void Put(ChunkAddress address, const std::vector<ChunkAddress>& sources) {
    std::vector<FrameSource> named;
    for (const ChunkAddress source : sources) named.push_back(SourceOf(source));
    Put(address, Frame(address, named));
  }
  // Commits what was put.
  void Commit() {
    CommitBatch batch;
    std::ranges::sort(frames_);
    for (auto& [key, frame] : frames_) batch.Put(Family::kChunks, key, std::move(frame));
    if (!frames_.empty()) VARVE_ASSERT_OK(batch.Commit(database(), impl()->incoming(), {}));
    frames_.clear();
  }
  Result<FrameGraph> Fetch(ChunkAddress address) {
    Commit();
    return FrameGraph::Fetch(*database(), address, nullptr);
  }

  std::vector<std::pair<std::string, std::string>> frames_;
};

TEST_F(FrameGraphTest, ASharedSourceIsThereOnce) {
  Put({1, 0}, std::vector<ChunkAddress>());
  Put({1, 1}, {{1, 0}});
  Put({1, 2}, {{1, 0}, {1, 1}, {1, 0}});
  const Result<FrameGraph> graph = Fetch({1, 2});
  VARVE_ASSERT_OK(graph.status());
  EXPECT_EQ(graph->FramesOf({1, 2}).size(), 3u);
  EXPECT_EQ(graph->FramesOf({1, 1}).size(), 2u);
  EXPECT_EQ(graph->BasesOf({1, 2}), (std::vector<ChunkAddress>{{1, 2}, {1, 0}}));
}

TEST_F(FrameGraphTest, SeveralChunksShareFrames) {
  Put({1, 0}, std::vector<ChunkAddress>());
  Put({1, 1}, {{1, 0}});
  Put({1, 2}, {{1, 0}});
  Commit();
  const FrameSource wanted[] = {SourceOf({1, 1}), SourceOf({1, 2}), SourceOf({1, 0})};
  const auto graph = FrameGraph::Fetch(*database(), wanted, nullptr);
  VARVE_ASSERT_OK(graph.status());
  EXPECT_EQ(graph->FramesOf({1, 1}).size(), 2u);
  EXPECT_EQ(graph->InfoOf({1, 0}).predictor, Predictor::kKeyframe);
  const FrameSource other[] = {SourceOf({1, 1}), {{1, 0}, DigestOf({9, 9})}};
  EXPECT_THAT(FrameGraph::Fetch(*database(), other, nullptr),
              FailsWith(StatusCode::kCorruption, "frame 1/0 is expected to have digest"));
}

// Whoever reads the frame for itself would get other bytes than whoever predicts from it.
TEST_F(FrameGraphTest, AHeaderWithAnotherDigestThanTheUsersIsDamage) {
  Put({1, 0}, std::vector<ChunkAddress>());
  Put({1, 1}, Frame({1, 1}, {{{1, 0}, DigestOf({9, 9})}}));
  EXPECT_THAT(Fetch({1, 1}),
              FailsWith(StatusCode::kCorruption, "frame 1/0 says that it holds digest"));
}

TEST_F(FrameGraphTest, AFrameThatIsLargerThanItsChunkIsDamage) {
  Put({1, 0}, std::vector<ChunkAddress>());
  frames_.back().second.resize(4096 + kMaxHeaderBytes);
  VARVE_EXPECT_OK(Fetch({1, 0}).status());
  Put({1, 1}, std::vector<ChunkAddress>());
  frames_.back().second.resize(4096 + kMaxHeaderBytes + 1);
  EXPECT_THAT(Fetch({1, 1}), FailsWith(StatusCode::kCorruption,
                                       "frame 1/1 has 4269 bytes, and its chunk has 4096"));
}

TEST_F(FrameGraphTest, SourcesThatCannotBeAreDamage) {
  Put({1, 0}, std::vector<ChunkAddress>());
  Put({1, 1}, {{1, 1}});
  EXPECT_THAT(Fetch({1, 1}), FailsWith(StatusCode::kCorruption, "no smaller address"));
  Put({1, 2}, {{2, 0}});
  EXPECT_THAT(Fetch({1, 2}), FailsWith(StatusCode::kCorruption, "no smaller address"));
  Put({1, 3}, {{1, 0}, {0, 7}, {1, 0}});
  EXPECT_THAT(Fetch({1, 3}), FailsWith(StatusCode::kNotFound, "0/7"));
  Put({1, 4}, Frame({1, 4}, {SourceOf({1, 0}), {{1, 0}, DigestOf({9, 9})}, SourceOf({1, 0})}));
  EXPECT_THAT(Fetch({1, 4}), FailsWith(StatusCode::kCorruption, "is expected to have digest"));
  FrameInfo large = Frame({1, 5}, {SourceOf({1, 0})});
  large.raw_bytes = 8192;
  Put({1, 5}, large);
  EXPECT_THAT(Fetch({1, 5}), FailsWith(StatusCode::kCorruption, "which needs it, 8192"));
}

TEST_F(FrameGraphTest, NoWayIsTooLong) {
  Put({1, 0}, std::vector<ChunkAddress>());
  for (uint32_t i = 1; i <= kMaxChain; ++i) Put({1, i}, {{1, i - 1}});
  VARVE_EXPECT_OK(Fetch({1, kMaxChain - 1}).status());
  EXPECT_THAT(Fetch({1, kMaxChain}), FailsWith(StatusCode::kCorruption, "more than 64 frames"));
}

// So what is hostile takes little memory.
TEST_F(FrameGraphTest, ManyChunksThatAreNeededAtOneTimeAreRefused) {
  constexpr uint32_t kNum = kMaxLiveChunks;
  for (uint32_t i = 0; i < kNum; ++i) Put({1, i}, std::vector<ChunkAddress>());
  Put({1, kNum}, {{1, 0}});
  for (uint32_t i = 1; i < kNum - 1; ++i) Put({1, kNum + i}, {{1, i}, {1, i}, {1, kNum + i - 1}});
  // The last of the first row is not needed, so there is room for the first of the second row.
  VARVE_EXPECT_OK(Fetch({1, 2 * kNum - 2}).status());
  Put({1, 2 * kNum - 1}, {{1, kNum - 1}, {1, kNum - 1}, {1, 2 * kNum - 2}});
  EXPECT_THAT(Fetch({1, 2 * kNum - 1}),
              FailsWith(StatusCode::kCorruption, "needs 33 decoded chunks at one time"));
}

// Each frame has sources of its own, so their number grows with the power of the depth.
TEST_F(FrameGraphTest, ATreeOfSourcesIsRefused) {
  uint32_t next = 0;
  std::vector<ChunkAddress> level;
  for (; next < 243; ++next) {
    Put({1, next}, std::vector<ChunkAddress>());
    level.push_back({1, next});
  }
  while (level.size() > 1) {
    std::vector<ChunkAddress> users;
    for (size_t i = 0; i < level.size(); i += 3) {
      Put({1, next}, {level[i], level[i + 1], level[i + 2]});
      users.push_back({1, next++});
    }
    level = users;
  }
  EXPECT_THAT(Fetch(level[0]), FailsWith(StatusCode::kCorruption, "needs more than 192 frames"));
  VARVE_EXPECT_OK(Fetch({1, 243 + 81 + 27}).status());  // which has 27 leaves
}

}  // namespace
}  // namespace varve::internal::testing
