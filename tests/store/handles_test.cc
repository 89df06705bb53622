// SPDX-License-Identifier: Apache-2.0
//
// Several writers on one handle, several handles on one store, and readers of what moves on.
#include "tests/store/internals.h"

namespace varve::testing {
namespace {

namespace fs = std::filesystem;
using HandlesTest = InternalsTest;

std::span<const std::byte> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// A POSIX lock does not keep this process from taking it twice, and RocksDB knows a folder by its name.
TEST_F(HandlesTest, SecondWriterByAnotherNameIsLockedOut) {
  const fs::path link = folder_.path() / "link";
  fs::create_symlink(path(), link);
  for (const fs::path& other : {link, folder_.path() / "." / "store", path() / "db" / ".."}) {
    EXPECT_THAT(Store::Open(other), FailsWith(StatusCode::kLocked, "in this process")) << other;
  }
  VARVE_ASSERT_OK(Save(1, {RandomTensor("t", DType::kU8, {1000}, 1)}).status());
}

TEST_F(HandlesTest, ReaderOfAReplacedOrDroppedStepSeesNoOtherItems) {
  const auto save = [&](std::string_view item, OnExisting existing) {
    auto writer = store_->Begin(1, {.on_existing = existing}).value();
    VARVE_ASSERT_OK(writer->PutBytes(item, Bytes(item)));
    VARVE_ASSERT_OK(writer->Commit().status());
  };
  save("first", OnExisting::kError);
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  EXPECT_THAT(reader->ListBytes().value(), ::testing::ElementsAre("first"));
  save("second", OnExisting::kReplace);
  EXPECT_THAT(reader->ListBytes(), FailsWith(StatusCode::kNotFound, "replaced"));
  EXPECT_THAT(reader->ReadBytes("second"), FailsWith(StatusCode::kNotFound, "replaced"));
  EXPECT_THAT(reader->ReadTrainerState(), FailsWith(StatusCode::kNotFound, "replaced"));
  EXPECT_THAT(reader->List(), FailsWith(StatusCode::kNotFound, "replaced"));
  const auto second = store_->OpenCheckpoint("main", 1).value();
  VARVE_ASSERT_OK(DropSteps({1}));
  EXPECT_THAT(second->ListBytes(), FailsWith(StatusCode::kNotFound, "dropped"));
  EXPECT_THAT(second->ReadTopology(), FailsWith(StatusCode::kNotFound, "dropped"));
  EXPECT_THAT(second->List(), FailsWith(StatusCode::kNotFound, "dropped"));
}

TEST_F(HandlesTest, AStepThatAnotherSaveComparesWithIsNotReplaced) {
  const TestTensor a = RandomTensor("t", DType::kU8, {100000}, 1);
  const TestTensor b = RandomTensor("t", DType::kU8, {100000}, 2);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  auto next = store_->Begin(2).value();  // compares with step 1
  VARVE_ASSERT_OK(next->Put(a.view()));
  EXPECT_THAT(Save(1, {b}, {.on_existing = OnExisting::kReplace}),
              FailsWith(StatusCode::kFailedPrecondition, "base of another save"));
  VARVE_ASSERT_OK(next->Commit().status());
  ExpectHolds(1, {a});
  ExpectHolds(2, {a});
}

TEST_F(HandlesTest, TwoReplacementsOfOneStepLeaveOneOfThem) {
  const TestTensor a = RandomTensor("t", DType::kU8, {100000}, 1);
  const TestTensor b = RandomTensor("t", DType::kU8, {100000}, 2);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  auto first = store_->Begin(1, {.on_existing = OnExisting::kReplace}).value();
  auto second = store_->Begin(1, {.on_existing = OnExisting::kReplace}).value();
  VARVE_ASSERT_OK(first->Put(b.view()));
  VARVE_ASSERT_OK(second->Put(a.view()));
  const auto one = first->Commit();
  const auto two = second->Commit();
  EXPECT_NE(one.ok(), two.ok());
  EXPECT_THAT(one.ok() ? two.status() : one.status(),
              FailsWith(StatusCode::kFailedPrecondition, "save in progress"));
  ExpectHolds(1, {one.ok() ? b : a});
}

TEST_F(HandlesTest, CommitTwiceIsRefused) {
  auto writer = store_->Begin(1).value();
  VARVE_ASSERT_OK(writer->Commit().status());
  EXPECT_THAT(writer->Commit(), FailsWith(StatusCode::kFailedPrecondition, "committed"));
  writer->Abandon();
  EXPECT_EQ(store_->LatestStep("main").value(), 1u);
}

TEST_F(HandlesTest, BirthsAreNeverGivenOutTwice) {
  std::set<uint64_t> births;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(births.insert(impl()->NewBirth().value()).second);
      store_->Begin(1).value()->Abandon();
    }
    Reopen();
  }
}

TEST_F(HandlesTest, NewBirthsGoOnAfterABlockOfThem) {
  uint64_t last = impl()->NewBirth().value();
  for (int i = 0; i < 4200; ++i) {
    const uint64_t next = impl()->NewBirth().value();
    ASSERT_GT(next, last);
    last = next;
  }
}

TEST_F(HandlesTest, ParentMayBeAnyStepOfTheRun) {
  const TestTensor a = NormalTensor("t", {300000}, 1);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  VARVE_ASSERT_OK(Save(2, {NormalTensor("t", {300000}, 2)}).status());
  EXPECT_EQ(Save(3, {a}, {.parent = 1}).value().new_bytes, 0u);
  EXPECT_EQ(store_->OpenCheckpoint("main", 3).value()->info().parent, (CheckpointId{"main", 1}));
  EXPECT_THAT(store_->Begin(4, {.parent = 9}), FailsWith(StatusCode::kNotFound, "step 9 of run main"));
  EXPECT_THAT(store_->Begin(4, {.run = "new", .parent = 1}),
              FailsWith(StatusCode::kNotFound, "no run new"));
  VARVE_ASSERT_OK(DropSteps({1, 2, 3}));  // failed Begins hold no pins
}

TEST_F(HandlesTest, ErrorsOfPutLeaveTheWriterUsable) {
  const TestTensor t = RandomTensor("t", DType::kF32, {8}, 1);
  auto writer = store_->Begin(1).value();
  VARVE_ASSERT_OK(writer->Put(t.view()));
  const auto put = [&](auto change) {
    TensorView view = t.view();
    view.name = "other";
    change(&view);
    return writer->Put(view);
  };
  const std::vector<int64_t> negative = {-1}, huge = {INT64_MAX, 3}, two = {1, 1};
  const std::string long_name(1025, 'x');
  const auto invalid = [](const char* text) {
    return FailsWith(StatusCode::kInvalidArgument, text);
  };
  EXPECT_THAT(put([](TensorView* v) { v->name = "t"; }), invalid("twice"));
  EXPECT_THAT(put([](TensorView* v) { v->name = ""; }), invalid("name"));
  EXPECT_THAT(put([&](TensorView* v) { v->name = long_name; }), invalid("1024"));
  EXPECT_THAT(put([](TensorView* v) { v->name = std::string_view("a\0b", 3); }), invalid("NUL"));
  EXPECT_THAT(put([](TensorView* v) { v->name = "a\xc3"; }), invalid("UTF-8"));
  EXPECT_THAT(put([](TensorView* v) { v->data = nullptr; }), invalid("null"));
  EXPECT_THAT(put([&](TensorView* v) { v->shape = negative; }), invalid("other"));
  EXPECT_THAT(put([&](TensorView* v) { v->shape = huge; }), invalid("other"));
  EXPECT_THAT(put([&](TensorView* v) { v->strides = two; }), invalid("2 strides for 1 axes"));
  EXPECT_THAT(put([](TensorView* v) { v->dtype = static_cast<DType>(99); }), invalid("99"));
  EXPECT_THAT(writer->PutBytes("", {}), invalid("name"));
  VARVE_ASSERT_OK(writer->PutBytes("item", Bytes("1")));
  EXPECT_THAT(writer->PutBytes("item", Bytes("2")), invalid("twice"));
  EXPECT_THAT(writer->AddTag("latest"), invalid("latest"));
  EXPECT_EQ(writer->Commit().value().num_tensors, 1u);
  ExpectHolds(1, {t});
}

}  // namespace
}  // namespace varve::testing
