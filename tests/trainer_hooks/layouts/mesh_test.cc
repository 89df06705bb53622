// SPDX-License-Identifier: Apache-2.0
//
// Compares placements with torch.chunk on lists of indices.
#include "tests/trainer_hooks/layouts/layout_cover.h"

namespace varve::internal {

namespace {

using testing::FailsWith;
using testing::PlacesOf;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;

// torch.chunk of a list. All pieces are as long as the first, but the last ones may be shorter or
// missing.
std::vector<int64_t> Chunk(const std::vector<int64_t>& indices, RankOf group) {
  const auto size = static_cast<int64_t>(indices.size());
  const int64_t each = (size + group.ranks - 1) / group.ranks;
  std::vector<int64_t> chunk;
  for (int64_t i = group.rank * each; i < std::min(size, (group.rank + 1) * each); ++i) {
    chunk.push_back(indices[static_cast<size_t>(i)]);
  }
  return chunk;
}

// The places in a global [rows, columns] of the local tensor's elements.
std::vector<int64_t> Reference(int64_t rows, int64_t columns,
                               const std::vector<Placement>& in_order_of_cuts) {
  std::vector<int64_t> axes[2];
  for (int64_t i = 0; i < rows; ++i) axes[0].push_back(i);
  for (int64_t i = 0; i < columns; ++i) axes[1].push_back(i);
  for (const Placement& placement : in_order_of_cuts) {
    if (!placement.shard_axis.has_value()) continue;
    axes[*placement.shard_axis] = Chunk(axes[*placement.shard_axis], placement.mesh);
  }
  std::vector<int64_t> places;
  for (const int64_t row : axes[0]) {
    for (const int64_t column : axes[1]) places.push_back(row * columns + column);
  }
  return places;
}

TEST(PlaceOnMeshTest, EachDimensionChunksWhatTheOnesBeforeHaveLeft) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{12, 10}, {7, 5}, {1, 3}, {5, 0}}) {
    std::vector<std::optional<size_t>> kinds{std::nullopt, 0, 1};
    for (const auto& first : kinds) {
      for (const auto& second : kinds) {
        for (int64_t rank = 0; rank < int64_t{3} * 4; ++rank) {
          const std::vector<Placement> placements{{.mesh = {rank / 4, 3}, .shard_axis = first},
                                                  {.mesh = {rank % 4, 4}, .shard_axis = second}};
          const auto layout = PlaceOnMesh(ShardLayout::Whole({rows, columns}), placements);
          ASSERT_TRUE(layout.ok()) << layout.status().ToString();
          EXPECT_EQ(PlacesOf(*layout), Reference(rows, columns, placements));
        }
      }
    }
  }
}

// FSDP2 on top of tensor parallelism: its dimension comes first, its cut last.
TEST(PlaceOnMeshTest, AStridedShardCutsLast) {
  std::vector<ShardLayout> layouts;
  for (int64_t rank = 0; rank < int64_t{2} * 3; ++rank) {
    const Placement fsdp{.mesh = {rank / 3, 2}, .shard_axis = 0, .is_strided = true};
    const Placement tp{.mesh = {rank % 3, 3}, .shard_axis = 0};
    const auto layout = PlaceOnMesh(ShardLayout::Whole({14, 2}), std::vector{fsdp, tp});
    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    EXPECT_EQ(PlacesOf(*layout), Reference(14, 2, {tp, fsdp}));
    layouts.push_back(*layout);
  }
  testing::ExpectCoversOnce(layouts);
  EXPECT_EQ(ToString(layouts[3]), "[3:5, :] of [14, 2]");
}

TEST(PlaceOnMeshTest, RefusesWhatCannotBe) {
  const ShardLayout whole = ShardLayout::Whole({4});
  EXPECT_THAT(PlaceOnMesh(whole, std::vector<Placement>{{}, {.mesh = {2, 2}}}),
              FailsWith(kInvalid, "placement 1: rank 2 of 2"));
  EXPECT_THAT(PlaceOnMesh(whole, std::vector<Placement>{{.is_strided = true}}),
              FailsWith(kInvalid, "placement 0 is strided"));
  EXPECT_FALSE(PlaceOnMesh(whole, std::vector<Placement>{{.shard_axis = 1}}).ok());
}

}  // namespace

}  // namespace varve::internal
