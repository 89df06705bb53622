// SPDX-License-Identifier: Apache-2.0
//
// One tensor that the ranks of a group hold in parts: proven whole before the commit, read by any
// other number of ranks.
#include <array>
#include <thread>

#include "store/group/group_store.h"
#include "store/ops/history.h"
#include "tests/store/store_fixture.h"
#include "tests/support/shard_reference.h"
#include "varve/group.h"

namespace varve::internal::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kFloatBytes = 4;

// Columns in equal parts. The last one has padding behind it.
std::vector<ShardLayout> Columns(const std::vector<int64_t>& shape, int64_t parts) {
  std::vector<ShardLayout> layouts;
  const int64_t each = (shape[1] + parts - 1) / parts;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t length = std::max<int64_t>(0, std::min(each, shape[1] - i * each));
    layouts.push_back(ShardLayout::Whole(shape));
    layouts.back().axes[1] = {{length > 0 ? i * each : 0, length},
                              {.length = each - length, .is_padding = true}};
  }
  return layouts;
}

class GroupShardsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    const auto check = Store::OpenForReading(root())->get()->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, IsEmpty());
  }
  std::filesystem::path root() const { return folder_.path() / "root"; }

  // Each rank saves the part of `tensors[rank]` that its layout says.
  std::vector<Status> Save(uint64_t step, const std::vector<const TestTensor*>& tensors,
                           const std::vector<ShardLayout>& layouts) {
    const auto num_ranks = static_cast<uint32_t>(layouts.size());
    const uint64_t epoch = Group::StartEpoch(root(), num_ranks).value();
    std::vector<Status> statuses(num_ranks);
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        statuses[rank] =
            SaveRank({.rank = rank, .epoch = epoch}, step, *tensors[rank], layouts[rank]);
      });
    }
    threads.clear();
    return statuses;
  }

  Status SaveRank(const JoinOptions& rank, uint64_t step, const TestTensor& tensor,
                  const ShardLayout& layout) {
    VARVE_ASSIGN_OR_RETURN(const auto store, Group::Join(root(), rank));
    return SavePart(store.get(), step, tensor, layout);
  }

  static Status SavePart(Store* store, uint64_t step, const TestTensor& tensor,
                         const ShardLayout& layout) {
    const std::vector<std::byte> part =
        CutShard(tensor.bytes, kFloatBytes, layout, std::byte{0xAA});
    const std::vector<int64_t> shape = layout.LocalShape();
    VARVE_ASSIGN_OR_RETURN(const auto writer, store->Begin(step));
    VARVE_RETURN_IF_ERROR(
        writer->Put({.name = tensor.name, .shape = shape, .data = part.data(), .layout = &layout}));
    return writer->Commit().status();
  }

  std::vector<Status> SaveAll(uint64_t step, const TestTensor& tensor,
                              const std::vector<ShardLayout>& layouts) {
    return Save(step, std::vector<const TestTensor*>(layouts.size(), &tensor), layouts);
  }

  TempFolder folder_;
};

MATCHER(IsOk, "") {
  *result_listener << arg.ToString();
  return arg.ok();
}

TEST_F(GroupShardsTest, AnyNumberOfRanksReadsItsOwnParts) {
  const TestTensor tensor = NormalTensor("w", {60, 101}, 1);
  EXPECT_THAT(SaveAll(1, tensor, Columns(tensor.shape, 4)), Each(IsOk()));
  const auto store = Store::OpenForReading(root()).value();
  const auto reader = store->OpenCheckpoint("main", 1).value();
  ASSERT_THAT(reader->List().value(), SizeIs(1));
  EXPECT_EQ(reader->List().value()[0].num_shards, 4u);
  EXPECT_EQ(reader->Find("w")->shape, tensor.shape);
  std::vector<std::byte> all(tensor.bytes.size());
  VARVE_ASSERT_OK(reader->Read("w", all));
  EXPECT_TRUE(all == tensor.bytes);
  for (const int64_t parts : {3, 4}) {
    for (const ShardLayout& region : Columns(tensor.shape, parts)) {
      std::vector<std::byte> out(static_cast<size_t>(region.NumLocal()) * kFloatBytes);
      VARVE_ASSERT_OK(reader->ReadMany(std::array{ReadRequest::Region("w", region, out)}));
      // Padding comes back where the geometry is that of the save.
      const std::byte padding{parts == 4 ? uint8_t{0xAA} : uint8_t{0}};
      EXPECT_TRUE(out == CutShard(tensor.bytes, kFloatBytes, region, padding)) << ToString(region);
    }
  }
}

// Steps 2 and 3 have the same elements, which differ from those of step 1 in two places. Step 3 is
// cut for other ranks.
TEST_F(GroupShardsTest, HistoryDoesNotDependOnHowTensorsAreCut) {
  const TestTensor before = NormalTensor("w", {60, 101}, 1);
  TestTensor after = before;
  for (const size_t element : {101 * 7 + 30, 101 * 50 + 40}) {  // both on rank 1
    const float value = 3;
    std::memcpy(&after.bytes[element * kFloatBytes], &value, kFloatBytes);
  }
  ASSERT_THAT(SaveAll(1, before, Columns(before.shape, 4)), Each(IsOk()));
  ASSERT_THAT(SaveAll(2, after, Columns(before.shape, 4)), Each(IsOk()));
  ASSERT_THAT(SaveAll(3, after, Columns(before.shape, 3)), Each(IsOk()));
  const auto store = Store::OpenForReading(root()).value();

  const CheckpointDiff same_cut = store->Diff({"main", 1}, {"main", 2}, {.values = true}).value();
  ASSERT_THAT(same_cut.changed, SizeIs(1));
  EXPECT_EQ(same_cut.changed[0].shard, 1u);
  EXPECT_FALSE(same_cut.changed[0].reshaped);
  EXPECT_EQ(same_cut.changed[0].values->changed_elements, 2u);
  EXPECT_THAT(same_cut.unchanged, IsEmpty());  // the tensor has changed
  const CheckpointDiff recut = store->Diff({"main", 2}, {"main", 3}).value();
  EXPECT_THAT(recut.unchanged, ElementsAre("w"));
  const CheckpointDiff both = store->Diff({"main", 1}, {"main", 3}, {.values = true}).value();
  ASSERT_THAT(both.changed, SizeIs(1));
  EXPECT_FALSE(both.changed[0].reshaped);
  EXPECT_EQ(both.changed[0].changed_bytes, before.bytes.size());  // it is one chunk
  EXPECT_EQ(both.changed[0].values->num_elements, 6060u);
  EXPECT_EQ(both.changed[0].values->changed_elements, 2u);
  EXPECT_EQ(both.changed[0].values->max_abs, same_cut.changed[0].values->max_abs);

  const std::vector<TensorChange> log = store->Log("main", "w").value();
  ASSERT_THAT(log, SizeIs(3));
  EXPECT_EQ(log[1].changed_chunks, 1u);
  EXPECT_EQ(log[2].changed_chunks, 3u);  // all are new to their members
  EXPECT_THAT(store->Log("main", "v"), FailsWith(StatusCode::kNotFound, "no tensor v"));
}

// Each step is dropped either when the next one is opened, or when it has just been opened itself.
TEST_F(GroupShardsTest, TheLogDoesNotMindStepsThatAreDroppedMeanwhile) {
  const std::vector<ShardLayout> layouts = Columns({60, 101}, 2);
  for (const uint64_t step : {1, 2, 3, 4}) {
    ASSERT_THAT(SaveAll(step, NormalTensor("w", {60, 101}, step / 2), layouts), Each(IsOk()));
  }
  const auto store = Store::OpenForReading(root()).value();
  const auto* group = static_cast<const GroupStore*>(store.get());
  const auto drop = [&](uint64_t step) {
    const CheckpointId id{"main", step};
    VARVE_EXPECT_OK(Store::Open(root()).value()->Drop({&id, 1}).status());
  };
  const auto log = LogTensor(*group, "main", "w", [&](uint64_t step) {
    if (step == 2) drop(1);
    auto reader = group->OpenShards({"main", step}, false);
    if (step == 3) drop(3);
    return reader;
  });
  VARVE_ASSERT_OK(log.status());
  ASSERT_THAT(*log, SizeIs(3));
  const uint64_t steps[] = {1, 2, 4};  // 3 was the same as 2
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*log)[i].step, steps[i]);
    EXPECT_EQ((*log)[i].changed_chunks, 2u);
  }
}

TEST_F(GroupShardsTest, CheckpointsCanBeCopiedIntoAPlainStore) {
  const TestTensor tensor = NormalTensor("w", {60, 101}, 1);
  ASSERT_THAT(SaveAll(1, tensor, Columns(tensor.shape, 4)), Each(IsOk()));
  ASSERT_THAT(SaveAll(2, tensor, Columns(tensor.shape, 4)), Each(IsOk()));
  const auto store = Store::OpenForReading(root()).value();
  const auto plain = Store::OpenOrCreate(folder_.path() / "plain").value();
  const std::vector<CheckpointId> ids = {{"main", 1}, {"main", 2}};
  const auto reports = store->CopyTo(plain.get(), ids);
  VARVE_ASSERT_OK(reports.status());
  EXPECT_EQ((*reports)[1].new_bytes, 0u);  // shared there, as here
  const auto reader = plain->OpenCheckpoint("main", 2).value();
  EXPECT_EQ(reader->Find("w")->num_shards, 4u);
  std::vector<std::byte> all(tensor.bytes.size());
  VARVE_ASSERT_OK(reader->Read("w", all));
  EXPECT_TRUE(all == tensor.bytes);
  EXPECT_THAT(plain->Check({.read_data = true})->errors, IsEmpty());
  EXPECT_THAT(plain->CopyTo(Store::Open(root())->get(), ids),
              FailsWith(StatusCode::kFailedPrecondition, "written by its ranks together"));
}

TEST_F(GroupShardsTest, ARankThatHoldsTooLittleFailsTheSaveOnAll) {
  const TestTensor tensor = NormalTensor("w", {60, 101}, 1);
  std::vector<ShardLayout> layouts = Columns(tensor.shape, 3);
  layouts[1].axes[1][0].length -= 1;
  for (const Status& status : SaveAll(1, tensor, layouts)) {
    EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument,
                                  "tensor w: its shards hold 6000 of the 6060 elements"));
  }
  const auto store = Store::OpenForReading(root()).value();
  EXPECT_THAT(store->OpenCheckpoint("main", 1), FailsWith(StatusCode::kNotFound, "step 1"));
}

TEST_F(GroupShardsTest, LayoutsAreProvenAgainOnlyWhenTheyChange) {
  const TestTensor tensor = NormalTensor("w", {60, 101}, 1);
  const std::vector<ShardLayout> whole = Columns(tensor.shape, 2);
  const uint64_t epoch = Group::StartEpoch(root(), 2).value();
  const auto coordinator = Group::Join(root(), {.rank = 0, .epoch = epoch}).value();
  const auto other = Group::Join(root(), {.rank = 1, .epoch = epoch}).value();
  const auto save = [&](uint64_t step, const ShardLayout& of_other) {
    std::jthread rank1([&] { SavePart(other.get(), step, tensor, of_other).IgnoreError(); });
    return SavePart(coordinator.get(), step, tensor, whole[0]);
  };
  const auto num_proofs = [&] {
    return static_cast<GroupStore*>(coordinator.get())->coverage()->num_proofs();
  };
  VARVE_EXPECT_OK(save(1, whole[1]));
  VARVE_EXPECT_OK(save(2, whole[1]));
  EXPECT_EQ(num_proofs(), 1u);
  ShardLayout gap = whole[1];
  gap.axes[1][0].length -= 1;
  EXPECT_THAT(save(3, gap), FailsWith(StatusCode::kInvalidArgument, "6000 of the 6060 elements"));
  VARVE_EXPECT_OK(save(4, whole[1]));
  EXPECT_EQ(num_proofs(), 2u);
}

TEST_F(GroupShardsTest, ReplicasThatDifferNameTheirRanks) {
  const TestTensor tensor = NormalTensor("w", {6, 10}, 1), other = NormalTensor("w", {6, 10}, 2);
  const std::vector<ShardLayout> replicas(3, ShardLayout::Whole(tensor.shape));
  EXPECT_THAT(SaveAll(1, tensor, replicas), Each(IsOk()));
  for (const Status& status : Save(2, {&tensor, &tensor, &other}, replicas)) {
    EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument,
                                  "that of rank 0 and that of rank 2 are replicas"));
  }
}

}  // namespace
}  // namespace varve::internal::testing
