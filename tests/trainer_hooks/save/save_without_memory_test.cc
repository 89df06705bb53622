// SPDX-License-Identifier: Apache-2.0
//
// Saves for which a stager has no memory.
#include "tests/support/scarce_memory.h"
#include "tests/trainer_hooks/test_state.h"

namespace varve::internal::testing {
namespace {

class SaveWithoutMemoryTest : public StoreTest {};

// TSan would take what TBB hands over between threads of one save for races.
TEST_F(SaveWithoutMemoryTest, FailsAndTheNextOneIsWhole) {
  store_.reset();
  auto ckpt = *AsyncCheckpointer::Open(
      path(), {.store = {.num_threads = kUnderTsan ? 1 : 3}, .failure_is_fatal = false});
  // Its columns lie one behind the other, so each chunk of 1 MiB is gathered.
  constexpr int64_t kRows = 900, kColumns = 1000;
  std::vector<float> by_row(kRows * kColumns), by_column(by_row.size());
  for (size_t i = 0; i < by_row.size(); ++i) {
    by_row[i] = static_cast<float>(i);
    by_column[i % kColumns * kRows + i / kColumns] = by_row[i];
  }
  TrainingState state;
  state.tensors.push_back({{.name = "w", .dtype = DType::kF32, .shape = {kRows, kColumns}},
                           by_column.data(),
                           kHost,
                           {1, kRows}});
  VARVE_ASSERT_OK(ckpt->Prewarm(state));
  {
    const ScarceMemory memory(512 << 10);
    VARVE_ASSERT_OK(ckpt->BeginSave(1, state).status());
    VARVE_ASSERT_OK(ckpt->AwaitStaged());
    ckpt->Wait().IgnoreError();
    EXPECT_THAT(ckpt->last_stats()->status,
                FailsWith(StatusCode::kUnavailable, "no memory to gather a chunk"));
  }
  VARVE_ASSERT_OK(ckpt->Save(2, state).status());
  VARVE_ASSERT_OK(ckpt->Wait());
  std::vector<float> read(by_row.size());
  VARVE_ASSERT_OK(ckpt->store().OpenCheckpoint("main", 2).value()->Read(
      "w", std::as_writable_bytes(std::span(read))));
  EXPECT_EQ(read, by_row);
  ckpt->Close().IgnoreError();  // the error of step 1
}

TEST_F(SaveWithoutMemoryTest, ABeginIsAnErrorAndNoException) {
  store_.reset();
  auto ckpt = *AsyncCheckpointer::Open(path());
  TrainingState state;
  state.items.push_back({"large", std::nullopt, std::vector<std::byte>(4 << 20)});
  VARVE_ASSERT_OK(ckpt->Prewarm(state));
  {
    const ScarceMemory scarce(2 << 20);
    EXPECT_THAT(ckpt->BeginSave(1, state), FailsWith(StatusCode::kUnavailable, "saving step 1: "));
  }
  VARVE_EXPECT_OK(ckpt->Save(2, state).status());
  VARVE_EXPECT_OK(ckpt->Close());
}

// A target that is placed element by element is read into memory of its own.
TEST_F(SaveWithoutMemoryTest, ALoadIsAnErrorAndNoException) {
  const TestTensor tensor = NormalTensor("w", {900, 1000}, 1);
  VARVE_ASSERT_OK(Save(1, {tensor}).status());
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  std::vector<float> memory(size_t{900} * 1000);
  TrainingState into;
  into.tensors.push_back(
      {{.name = "w", .dtype = DType::kF32, .shape = {900, 1000}}, memory.data(), kHost, {1, 900}});
  {
    const ScarceMemory scarce(2 << 20);
    EXPECT_THAT(LoadState(*reader, {}, &into),
                FailsWith(StatusCode::kUnavailable, "loading step 1 of run main: "));
  }
  VARVE_EXPECT_OK(LoadState(*reader, {}, &into).status());
  float value = 0;
  std::memcpy(&value, &tensor.bytes[size_t{4} * 1000], sizeof value);  // row 1, column 0
  EXPECT_EQ(memory[1], value);
}

}  // namespace
}  // namespace varve::internal::testing
