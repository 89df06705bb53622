// SPDX-License-Identifier: Apache-2.0
//
// Items that stand for variables of the trainer: a save reads them, a load fills them.
#include "trainer_hooks/state/item_variables.h"

#include <stdexcept>

#include "tests/trainer_hooks/state_fixture.h"
#include "varve/async_checkpointer.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Position {
  int32_t file = 0;
  int32_t line = 0;
  bool operator==(const Position&) const = default;
};

// A trainer whose items are all variables.
struct Trainer {
  explicit Trainer(int n = 0)
      : weights(8, static_cast<float>(n)),
        position{n, n + 1},
        seen(n),
        text(static_cast<size_t>(n), 'x'),
        rates(static_cast<size_t>(n), 0.5) {
    state.tensors = {{{.name = "w", .shape = {8}}, weights.data()}};
    state.items = {ItemOf("position", &position), ItemOf("seen", &seen, 0), ItemOf("text", &text),
                   ItemOf("rates", &rates)};
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void ExpectIs(int n) const {
    EXPECT_EQ(position, (Position{n, n + 1}));
    EXPECT_EQ(seen, n);
    EXPECT_EQ(text, std::string(static_cast<size_t>(n), 'x'));
    EXPECT_EQ(rates, std::vector<double>(static_cast<size_t>(n), 0.5));
  }

  std::vector<float> weights;
  Position position;
  int64_t seen;
  std::string text;
  std::vector<double> rates;
  TrainingState state;
};

// Counts what is asked of it.
class ProbeVariable : public ItemVariable {
 public:
  Result<std::vector<std::byte>> Read() const override {
    ++reads;
    if (throws) throw std::runtime_error("no bytes today");
    if (!status.ok()) return status;
    return std::vector<std::byte>(size);
  }
  Status Check(std::span<const std::byte>) const override { return Status::Ok(); }
  void Set(std::span<const std::byte>) override { ++sets; }

  mutable int reads = 0;
  int sets = 0;
  size_t size = 1;
  bool throws = false;
  Status status;
};

class ItemVariablesTest : public StateTest {
 protected:
  // A checkpointer takes the place of the store that the fixture holds open.
  std::unique_ptr<AsyncCheckpointer> Open() {
    store_.reset();
    return AsyncCheckpointer::Open(path()).value();
  }
  Result<LoadReport> LoadInto(uint64_t step, TrainingState* into, const LoadOptions& options = {}) {
    if (store_ == nullptr) Reopen();
    VARVE_ASSIGN_OR_RETURN(const auto reader, store_->OpenCheckpoint("main", step));
    return LoadState(*reader, options, into);
  }
};

TEST_F(ItemVariablesTest, ASaveReadsThemAndALoadFillsThem) {
  {
    const auto checkpointer = Open();
    Trainer trainer(3);
    VARVE_ASSERT_OK(checkpointer->BeginSave(1, trainer.state).status());
    trainer.seen = 99;  // after the call has returned
    trainer.text = "other";
    VARVE_ASSERT_OK(checkpointer->Wait());
    Trainer restored(5);
    VARVE_ASSERT_OK(checkpointer->Restore("1", {}, &restored.state).status());
    restored.ExpectIs(3);
    // They still stand for their variables, so the next save reads them again.
    restored.seen = 4;
    VARVE_ASSERT_OK(checkpointer->Save(2, restored.state).status());
    VARVE_ASSERT_OK(checkpointer->Close());
  }
  Trainer last(7);
  VARVE_ASSERT_OK(LoadInto(2, &last.state).status());
  EXPECT_EQ(last.seen, 4);
  ASSERT_EQ(last.state.items.size(), 4u);
  for (const StateItem& item : last.state.items) {
    EXPECT_NE(item.variable, nullptr);
    EXPECT_THAT(item.value, IsEmpty());
  }
}

TEST_F(ItemVariablesTest, OtherItemsComeAsBytes) {
  {
    const auto checkpointer = Open();
    Trainer trainer(2);
    trainer.state.items.push_back({"config", std::nullopt, {std::byte{7}}});
    trainer.state.items.push_back({"seen", 1, {std::byte{8}}});
    VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
    VARVE_ASSERT_OK(checkpointer->Close());
  }
  Trainer into(5);
  into.state.items.push_back({"mine", std::nullopt, {std::byte{1}}});
  VARVE_ASSERT_OK(LoadInto(1, &into.state).status());
  into.ExpectIs(2);
  // "seen" of rank 1 belongs to that rank, which has a variable of its own for it.
  ASSERT_EQ(into.state.items.size(), 5u);
  EXPECT_EQ(into.state.items[4].name, "config");
  EXPECT_THAT(into.state.items[4].value, ElementsAre(std::byte{7}));
}

TEST_F(ItemVariablesTest, BytesThatDoNotFitAreRefusedBeforeAnythingChanges) {
  TrainingState saved;
  saved.items = {{"position", std::nullopt, std::vector<std::byte>(7)},
                 {"seen", 0, std::vector<std::byte>(8)},
                 {"text", std::nullopt, std::vector<std::byte>(2)},
                 {"rates", std::nullopt, std::vector<std::byte>(12)}};
  SaveState(1, saved);
  Trainer into(5);
  into.state.tensors[0].name = "v";
  EXPECT_EQ(LoadInto(1, &into.state).status().message(),
            "step 1 of run main does not fit:\n"
            "tensor v: missing in the checkpoint, expected F32 [8]\n"
            "item position: has 7 bytes, expected 8\n"
            "item rates: has 12 bytes, expected a multiple of 8");
  into.ExpectIs(5);
}

TEST_F(ItemVariablesTest, StrictnessDecidesAboutMissingOnes) {
  Trainer saved(3);
  TrainingState without = saved.state;
  without.items.clear();
  SaveState(1, without);
  Trainer into(5);
  for (const Strictness strictness :
       {Strictness::kRaiseAll, Strictness::kLogUnexpected, Strictness::kAssumeOkUnexpected}) {
    EXPECT_THAT(LoadInto(1, &into.state, {.strictness = strictness}),
                FailsWith(StatusCode::kInvalidArgument, "item seen of rank 0: missing"));
  }
  const auto report = LoadInto(1, &into.state, {.strictness = Strictness::kIgnoreAll});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->missing,
              ElementsAre("item position", "item seen of rank 0", "item text", "item rates"));
  into.ExpectIs(5);
  EXPECT_EQ(into.state.items.size(), 4u);
}

TEST_F(ItemVariablesTest, VariablesOfRanksStayWhenTheNumberOfRanksHasChanged) {
  Trainer saved(3);
  {
    const auto checkpointer = Open();
    saved.state.topology = Topology{.dp = 2, .world_size = 2};
    VARVE_ASSERT_OK(checkpointer->Save(1, saved.state).status());
    VARVE_ASSERT_OK(checkpointer->Close());
  }
  Trainer into(5);
  into.state.topology = Topology{.dp = 3, .world_size = 3};
  EXPECT_THAT(LoadInto(1, &into.state),
              FailsWith(StatusCode::kInvalidArgument, "item seen of rank 0"));
  into.ExpectIs(5);
  VARVE_ASSERT_OK(LoadInto(1, &into.state, {.rank_states = RankStates::kDrop}).status());
  EXPECT_EQ(into.seen, 5);
  EXPECT_EQ(into.text, "xxx");
}

TEST_F(ItemVariablesTest, ALoadWithoutTrainerStateLeavesThem) {
  {
    const auto checkpointer = Open();
    VARVE_ASSERT_OK(checkpointer->Save(1, Trainer(3).state).status());
    VARVE_ASSERT_OK(checkpointer->Close());
  }
  Trainer into(5);
  VARVE_ASSERT_OK(LoadInto(1, &into.state, {.trainer_state = false}).status());
  into.ExpectIs(5);
}

TEST_F(ItemVariablesTest, AVariableThatCannotBeReadFailsTheSaveByName) {
  const auto checkpointer = Open();
  const auto probe = std::make_shared<ProbeVariable>();
  Trainer trainer(1);
  trainer.state.items.push_back({.name = "probe", .rank = 2, .variable = probe});
  probe->status = Status::IOError("gone");
  EXPECT_THAT(checkpointer->BeginSave(1, trainer.state),
              FailsWith(StatusCode::kIOError, "item probe of rank 2: gone"));
  probe->status = {};
  probe->throws = true;
  EXPECT_THAT(checkpointer->BeginSave(1, trainer.state),
              FailsWith(StatusCode::kUnavailable, "no bytes today"));
  probe->throws = false;
  probe->size = (64 << 20) + 1;
  EXPECT_THAT(checkpointer->BeginSave(1, trainer.state),
              FailsWith(StatusCode::kInvalidArgument, "item probe has 67108865 bytes"));
  probe->size = 1;
  VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
  VARVE_EXPECT_OK(checkpointer->Close());
}

TEST_F(ItemVariablesTest, OnlyASaveReadsThem) {
  const auto checkpointer = Open();
  const auto probe = std::make_shared<ProbeVariable>();
  Trainer trainer(1);
  trainer.state.items.push_back({.name = "probe", .variable = probe});
  VARVE_ASSERT_OK(checkpointer->Prewarm(trainer.state));
  EXPECT_EQ(probe->reads, 0);
  VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
  EXPECT_EQ(probe->reads, 1);
  VARVE_ASSERT_OK(checkpointer->Restore("1", {}, &trainer.state).status());
  EXPECT_EQ(probe->reads, 1);
  EXPECT_EQ(probe->sets, 1);
  VARVE_EXPECT_OK(checkpointer->Close());
}

}  // namespace
}  // namespace varve::internal::testing
