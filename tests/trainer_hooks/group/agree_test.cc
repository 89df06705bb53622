// SPDX-License-Identifier: Apache-2.0
//
// What other ranks send is not trusted: an outcome that cannot be read is an error, and a damaged
// list of tensors is refused before anything is planned from it.
#include "trainer_hooks/group/agree.h"

#include <cstring>

#include "base/util.h"
#include "tests/store/store_fixture.h"
#include "tests/trainer_hooks/holding.h"
#include "trainer_hooks/group/exchange_plan.h"
#include "trainer_hooks/group/replica_plan.h"
#include "trainer_hooks/group/verdict.h"

namespace varve::internal::testing {
namespace {

// Rank 0 of two. The other rank sends what the test tells it to.
class ScriptedRanks : public RankGroup {
 public:
  explicit ScriptedRanks(std::string sent) : sent_(std::move(sent)) {}

  int rank() const override { return 0; }
  int size() const override { return 2; }
  Result<std::vector<std::vector<std::byte>>> AllGather(std::span<const std::byte> mine) override {
    const auto sent = AsBytes(sent_);
    return std::vector<std::vector<std::byte>>{{mine.begin(), mine.end()},
                                               {sent.begin(), sent.end()}};
  }
  Status Barrier() override { return Unexpected(); }
  Result<std::vector<std::byte>> Broadcast(std::span<const std::byte>, int) override {
    return Unexpected();
  }
  Result<std::vector<int64_t>> AllReduce(std::span<const int64_t>, Reduction) override {
    return Unexpected();
  }
  Result<std::vector<std::vector<std::byte>>> AllToAll(
      std::span<const std::span<const std::byte>>) override {
    return Unexpected();
  }
  Result<std::unique_ptr<RankGroup>> Split(int) override { return Unexpected(); }

 private:
  static Status Unexpected() { return Status::FailedPrecondition("an unexpected call"); }
  const std::string sent_;
};

Status AgreeWith(const std::string& sent) {
  ScriptedRanks ranks(sent);
  return Agree(&ranks, Status::Ok());
}

TEST(AgreeTest, AnOutcomeThatCannotBeReadIsAnError) {
  VARVE_EXPECT_OK(AgreeWith(std::string(1, '\0')));
  EXPECT_THAT(AgreeWith("\1no such step"),
              FailsWith(StatusCode::kNotFound, "rank 1: no such step"));
  for (const std::string& sent : {std::string(), std::string("\x7fwhat"), std::string("\xff")}) {
    EXPECT_THAT(AgreeWith(sent),
                FailsWith(StatusCode::kUnavailable, "rank 1: its outcome cannot be read"));
  }
}

TEST(AgreeTest, TheLowestRankIsNamed) {
  ScriptedRanks ranks("\1theirs");
  EXPECT_THAT(Agree(&ranks, Status::IOError("mine")),
              FailsWith(StatusCode::kIOError, "rank 0: mine"));
}

// A list with everything that a list can have.
std::vector<HeldTensor> AList() {
  ShardLayout padded = ShardLayout::Whole({12, 5});
  padded.axes[0] = {
      {.begin = 8, .length = 4}, {.begin = 0, .length = 2}, {.length = 3, .is_padding = true}};
  ShardLayout flat = ShardLayout::Whole({12, 5});
  flat.flat = Range{7, 31};
  return {Holding(padded, {.name = "w", .derived_from = "m", .can_cut = true}),
          Holding(flat, {.name = "m", .policy = ReplicaPolicy::kTakeLowest}),
          Holding(ShardLayout::Whole({7}),
                  {.name = "t", .dtype = DType::kBF16, .alias_of = "w", .had = Range{2, 5}})};
}

std::vector<TensorInfo> StoredTensors() {
  std::vector<TensorInfo> stored;
  for (const std::string name : {"m", "w"}) stored.push_back({{.name = name, .shape = {12, 5}}});
  stored.insert(stored.begin() + 1, {{.name = "t", .dtype = DType::kBF16, .shape = {7}}});
  return stored;
}

// Does what a rank does with the list of another.
void UseList(const std::vector<std::byte>& bytes) {
  const Result<std::vector<HeldTensor>> list = DecodeHeld(bytes);
  if (!list.ok()) return;
  EXPECT_EQ(EncodeHeld(*list), bytes);
  const std::vector<std::vector<HeldTensor>> lists = {AList(), *list};
  PlanReplicas(lists);
  const std::vector<TensorInfo> stored = StoredTensors();
  if (CheckWanted(stored, *list).ok()) PlanExchange(stored, lists, 1 << 20);
}

// The digest that ranks compare is made without the list.
TEST(HeldTensorTest, TheDigestOfAStateIsThatOfItsList) {
  std::vector<float> data(3000);
  TrainingState state;
  for (int i = 0; i < 2000; ++i) {
    state.tensors.push_back({{.name = "layers." + std::to_string(i) + ".weight",
                              .shape = {1 + i % 7},
                              .derived_from = i % 3 == 0 ? "m" : ""},
                             data.data() + i / 2});
  }
  state.tensors[5].layout = ShardLayout::Whole({1 + 5 % 7});
  const std::vector<ReplicaRule> rules = {{"layers.1*", ReplicaPolicy::kTakeLowest}};
  const std::vector<std::byte> list = EncodeHeld(state, rules);
  EXPECT_GT(list.size(), 3u * 65536);
  EXPECT_EQ(DigestHeld(state, rules), ComputeDigest(0, list));
  EXPECT_NE(DigestHeld(state, {}), DigestHeld(state, rules));
}

TEST(HeldTensorTest, AListComesBack) {
  const std::vector<HeldTensor> list = AList();
  const std::vector<std::byte> bytes = EncodeHeld(list);
  EXPECT_EQ(DecodeHeld(bytes).value(), list);
  EXPECT_EQ(DecodeHeld(EncodeHeld(std::vector<HeldTensor>())).value().size(), 0u);
}

TEST(HeldTensorTest, DamagedListsAreRefusedOrPlanned) {
  const std::vector<std::byte> whole = EncodeHeld(AList());
  UseList(whole);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(
        DecodeHeld(std::span(whole).first(size)),
        FailsWith(StatusCode::kCorruption, "is damaged: " + std::to_string(size) + " bytes"));
  }
  std::vector<std::byte> longer = whole;
  longer.emplace_back();
  EXPECT_FALSE(DecodeHeld(longer).ok());
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x02, 0x10, 0x7f, 0x80, 0xff}) {
      std::vector<std::byte> damaged = whole;
      damaged[at] ^= static_cast<std::byte>(flip);
      UseList(damaged);
    }
  }
}

TEST(HeldTensorTest, ThereIsOneWayToWriteAList) {
  std::vector<HeldTensor> list = AList();
  list[1].policy = static_cast<ReplicaPolicy>(4);
  EXPECT_FALSE(DecodeHeld(EncodeHeld(list)).ok());
  list = AList();
  list[1].role = static_cast<TensorRole>(kNumTensorRoles);
  EXPECT_FALSE(DecodeHeld(EncodeHeld(list)).ok());
  list = AList();
  list[2].dtype = static_cast<DType>(kNumDTypes);
  EXPECT_FALSE(DecodeHeld(EncodeHeld(list)).ok());
  list = AList();
  ShardLayout split = ShardLayout::Whole({7});  // which is not canonical
  split.axes[0] = {{.begin = 0, .length = 3}, {.begin = 3, .length = 4}};
  list[2] = Holding(split, list[2]);
  EXPECT_FALSE(DecodeHeld(EncodeHeld(list)).ok());
}

// These numbers are -1 in a list. Any other number below 0 says the same.
TEST(HeldTensorTest, ThereIsOneWayToWriteALayout) {
  static constexpr int64_t kOther = -2;
  const auto expect_refused = [](size_t tensor, size_t at) {
    std::vector<HeldTensor> list = AList();
    const ShardLayout layout = list[tensor].Layout();
    std::string bytes(list[tensor].layout);
    ASSERT_LE(at + sizeof kOther, bytes.size());
    std::memcpy(bytes.data() + at, &kOther, sizeof kOther);
    ASSERT_NE(bytes, list[tensor].layout);
    list[tensor].layout = bytes;
    EXPECT_EQ(list[tensor].Layout(), layout);
    EXPECT_FALSE(DecodeHeld(EncodeHeld(list)).ok()) << tensor;
  };
  expect_refused(0, 7 * sizeof kOther);  // where the padding of the first axis starts
  expect_refused(2, AList()[2].layout.size() - 2 * sizeof kOther);  // no flat range
}

TEST(CheckWantedTest, WhatIsNotStoredSoIsNamed) {
  const std::vector<TensorInfo> stored = StoredTensors();
  const std::vector<HeldTensor> list = AList();
  VARVE_EXPECT_OK(CheckWanted(stored, list));
  const auto wants = [&](const HeldTensor& tensor) {
    return CheckWanted(stored, std::vector{tensor});
  };
  EXPECT_THAT(wants(Holding(ShardLayout::Whole({7}), {.name = "x"})),
              FailsWith(StatusCode::kInvalidArgument, "tensor x"));
  EXPECT_THAT(wants(Holding(ShardLayout::Whole({7}), {.name = "t", .dtype = DType::kF32})),
              FailsWith(StatusCode::kInvalidArgument, "in the checkpoint it is BF16"));
  EXPECT_THAT(wants(Holding(ShardLayout::Whole({12, 6}), {.name = "m"})),
              FailsWith(StatusCode::kInvalidArgument, "of [12, 5]"));
  EXPECT_FALSE(wants(Holding(ShardLayout::Whole({12}), {.name = "m"})).ok());
}

TEST(VerdictTest, NotesAreAddedToWhatARankKnowsItself) {
  Verdict verdict;
  verdict.Expect();
  verdict.Give(Status::Ok(), {.warnings = {"replicas differ"}, .stall_seconds = 1});
  verdict.Give(Status::Ok(), {.warnings = {"too late"}});
  SaveStats stats{.stall_seconds = 2, .busy_wait_seconds = 3, .warnings = {"a damaged parent"}};
  verdict.AddNotesTo(&stats);
  EXPECT_THAT(stats.warnings, ::testing::ElementsAre("a damaged parent", "replicas differ"));
  EXPECT_EQ(stats.stall_seconds, 3);
  EXPECT_EQ(stats.busy_wait_seconds, 3);
}

}  // namespace
}  // namespace varve::internal::testing
