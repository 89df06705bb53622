// SPDX-License-Identifier: Apache-2.0
//
// What ranks tell each other about their replicas. Whatever goes wrong, all of them have the same
// outcome and can go on together.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/forwarding_ranks.h"
#include "tests/trainer_hooks/state_fixture.h"
#include "trainer_hooks/group/replicas.h"

namespace varve::internal::testing {
namespace {

// A group in which one rank gets something else than was sent.
class DamagedRanks : public ForwardingRanks {
 public:
  // The gathering number `nth` from now on, counted from 0.
  DamagedRanks(RankGroup* ranks, int nth) : ForwardingRanks(ranks), nth_(nth) {}

  Result<std::vector<std::vector<std::byte>>> AllGather(std::span<const std::byte> mine) override {
    auto all = ForwardingRanks::AllGather(mine);
    if (all.ok() && nth_-- == 0) (*all)[0].pop_back();
    return all;
  }

 private:
  int nth_;
};

TestTrainer Trainer() {
  TestTrainer trainer;
  trainer.Add({.name = "w", .shape = {40, 3}}, 1);
  trainer.Add({.name = "b", .shape = {3}}, 1);
  return trainer;
}

// `work(rank, group)` on threads.
void OnRanks(int size, const std::function<void(int, RankGroup*)>& work) {
  auto groups = ThreadRanks(size, std::chrono::seconds(60));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { work(rank, groups[static_cast<size_t>(rank)].get()); });
  }
}

// Each of them saves something, and all of it is saved.
void ExpectPlan(ReplicaKeeper* keeper, const TestTrainer& trainer) {
  const auto part = keeper->Plan(trainer.state);
  ASSERT_TRUE(part.ok()) << part.status().ToString();
  EXPECT_EQ(part->size(), 1u);
}

TEST(ReplicaKeeperTest, AListThatOneRankCannotReadFailsOnAllRanks) {
  OnRanks(2, [](int rank, RankGroup* group) {
    // The first gathering is of digests, the second of lists.
    DamagedRanks damaged(group, rank == 1 ? 1 : -1);
    ReplicaKeeper keeper(&damaged, {}, nullptr, 1);
    const TestTrainer trainer = Trainer();
    EXPECT_THAT(keeper.Plan(trainer.state),
                FailsWith(StatusCode::kCorruption, "rank 1: what rank 0 has sent: the list"));
    VARVE_ASSERT_OK(group->Barrier());  // both are here, not one of them in another call
    ExpectPlan(&keeper, trainer);       // nothing of the failure is left
  });
}

TEST(ReplicaKeeperTest, RulesThatDifferFailOnAllRanks) {
  std::vector<std::string> errors(3);
  OnRanks(3, [&](int rank, RankGroup* group) {
    const ReplicaPolicy rule = rank == 1 ? ReplicaPolicy::kTakeLowest : ReplicaPolicy::kMustBeEqual;
    ReplicaKeeper keeper(group, {{"w*", rule}}, nullptr, 1);
    const TestTrainer trainer = Trainer();
    const auto part = keeper.Plan(trainer.state);
    EXPECT_THAT(part, FailsWith(StatusCode::kInvalidArgument,
                                "tensor w: the rule for its replicas is kMustBeEqual on ranks 0, 2 "
                                "and kTakeLowest on rank 1"));
    errors[static_cast<size_t>(rank)] = part.status().ToString();
    VARVE_ASSERT_OK(group->Barrier());
  });
  EXPECT_THAT(errors, ::testing::Each(errors[0]));
}

// The names of what a rank saves of a state.
std::vector<std::string> NamesOf(const std::vector<StateTensor>& part) {
  std::vector<std::string> names;
  for (const StateTensor& tensor : part) names.push_back(tensor.name);
  return names;
}

// They stay even if they were not in the list in between, because a trainer may save its optimizer
// seldom.
TEST(ReplicaKeeperTest, TensorsStayWithTheRankThatSavedThemBefore) {
  OnRanks(2, [](int, RankGroup* group) {
    ReplicaKeeper keeper(group, {}, nullptr, 1);
    TestTrainer few, more;
    for (int64_t i = 0; i < 6; ++i) {
      few.Add({.name = "t" + std::to_string(i), .shape = {40 + i}}, 1);
      more.Add({.name = "t" + std::to_string(i), .shape = {40 + i}}, 1);
    }
    more.Add({.name = "large", .shape = {48}}, 1);
    more.Add({.name = "s", .shape = {3}}, 1);
    const auto first = keeper.Plan(few.state);
    VARVE_ASSERT_OK(first.status());
    const auto second = keeper.Plan(more.state);
    VARVE_ASSERT_OK(second.status());
    EXPECT_THAT(NamesOf(*second), ::testing::IsSupersetOf(NamesOf(*first)));
    TestTrainer one;
    one.Add({.name = "other", .shape = {9}}, 1);
    VARVE_ASSERT_OK(keeper.Plan(one.state).status());
    const auto again = keeper.Plan(more.state);
    VARVE_ASSERT_OK(again.status());
    EXPECT_EQ(NamesOf(*again), NamesOf(*second));
  });
}

}  // namespace
}  // namespace varve::internal::testing
