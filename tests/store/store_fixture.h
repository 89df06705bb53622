// SPDX-License-Identifier: Apache-2.0
//
// A store in a folder of its own, opened for writing. Teardown closes it, opens it again and runs a
// full check, so that every test ends with one. One thread at a time unless a test says otherwise.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/store/test_tensor.h"
#include "tests/support/status_checks.h"
#include "tests/support/temp_folder.h"
#include "varve/varve.h"

namespace varve::internal::testing {

// The status of a Status or of a Result.
inline Status StatusOf(const Status& status) { return status; }
template <typename T>
Status StatusOf(const Result<T>& result) {
  return result.status();
}

// EXPECT_THAT(call, FailsWith(StatusCode::kNotFound, "step 3"));
MATCHER_P2(FailsWith, code, text, "") {
  const Status status = StatusOf(arg);
  *result_listener << status.ToString();
  return !status.ok() && status.code() == code && status.ToString().find(text) != std::string::npos;
}

// Of bytes that are all alike: for tests that need many of them.
inline TestTensor FilledTensor(std::string name, size_t bytes, std::byte value) {
  return {std::move(name),
          DType::kU8,
          {static_cast<int64_t>(bytes)},
          std::vector<std::byte>(bytes, value),
          {}};
}

inline TestTensor RandomTensor(std::string name, DType dtype, std::vector<int64_t> shape,
                               uint64_t seed) {
  TestTensor tensor{std::move(name), dtype, std::move(shape), {}, {}};
  tensor.bytes.resize(NumBytes(dtype, tensor.shape).value());
  std::mt19937_64 random(seed);
  for (std::byte& b : tensor.bytes) b = static_cast<std::byte>(random());
  return tensor;
}

// FP32 values as a trained tensor has them: normally distributed.
inline TestTensor NormalTensor(std::string name, std::vector<int64_t> shape, uint64_t seed) {
  TestTensor tensor{std::move(name), DType::kF32, std::move(shape), {}, {}};
  tensor.bytes.resize(NumBytes(tensor.dtype, tensor.shape).value());
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal(0, 0.02f);
  for (size_t i = 0; i + 4 <= tensor.bytes.size(); i += 4) {
    const float value = normal(random);
    std::memcpy(&tensor.bytes[i], &value, 4);
  }
  return tensor;
}

// Reads these tensors in one call, in which chunks that need each other are decoded together.
inline void ExpectReadsTogether(const CheckpointReader& reader,
                                const std::vector<TestTensor>& tensors) {
  std::vector<std::vector<std::byte>> out(tensors.size());
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < tensors.size(); ++i) {
    out[i].resize(tensors[i].bytes.size());
    requests.push_back(ReadRequest::Tensor(tensors[i].name, out[i]));
  }
  VARVE_ASSERT_OK(reader.ReadMany(requests));
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(SameBytes(out[i], tensors[i].bytes)) << tensors[i].name;
  }
}

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Reset({}); }

  void TearDown() override {
    if (expect_damage_ || HasFatalFailure()) return;
    Reopen(closing_options_);
    ASSERT_NE(store_, nullptr);
    const auto check = store_->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
    EXPECT_TRUE(std::filesystem::is_empty(path() / "incoming"));
    const StoreStats stats = GetStats();
    ExpectAddsUp(stats, stats.unique_bytes, stats.stored_bytes);
  }

  // Both tables of a report hold every byte of the frames once.
  template <typename Report>
  static void ExpectAddsUp(const Report& report, uint64_t raw_bytes, uint64_t stored_bytes) {
    const auto expect = [&](const auto& uses) {
      uint64_t raw = 0, stored = 0;
      for (const auto& use : uses) {
        raw += use.raw_bytes;
        stored += use.stored_bytes;
      }
      EXPECT_EQ(raw, raw_bytes);
      EXPECT_EQ(stored, stored_bytes);
    };
    expect(report.by_codec);
    expect(report.by_coder);
  }

  std::filesystem::path path() const { return folder_.path() / "store"; }

  // A new, empty store.
  void Reset(const CreateOptions& options) {
    store_.reset();
    std::filesystem::remove_all(path());
    auto store = Store::Create(path(), options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
  }

  void Reopen(const StoreOptions& options = {}) {
    store_.reset();
    auto store = Store::Open(path(), options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
  }

  Result<SaveReport> Save(uint64_t step, const std::vector<TestTensor>& tensors,
                          const SaveOptions& options = {}) {
    VARVE_ASSIGN_OR_RETURN(auto writer, store_->Begin(step, options));
    for (const TestTensor& tensor : tensors) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
    Result<SaveReport> report = writer->Commit();
    if (report.ok()) ExpectAddsUp(*report, report->new_bytes, report->stored_bytes);
    return report;
  }

  Status DropSteps(const std::vector<uint64_t>& steps, const DropOptions& options = {}) {
    std::vector<CheckpointId> ids;
    for (const uint64_t step : steps) ids.push_back({"main", step});
    return store_->Drop(ids, options).status();
  }

  // The tensors of a step are these, byte for byte, and no others.
  void ExpectHolds(const Store& store, uint64_t step, const std::vector<TestTensor>& tensors,
                   const std::string& run = "main") {
    const auto reader = store.OpenCheckpoint(run, step);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    const auto list = (*reader)->List();
    ASSERT_TRUE(list.ok()) << list.status().ToString();
    EXPECT_EQ(list->size(), tensors.size());
    for (const TestTensor& tensor : tensors) {
      const auto info = (*reader)->Find(tensor.name);
      ASSERT_TRUE(info.ok()) << info.status().ToString();
      EXPECT_EQ(info->dtype, tensor.dtype);
      EXPECT_EQ(info->shape, tensor.shape);
      std::vector<std::byte> out(info->logical_bytes);
      VARVE_ASSERT_OK((*reader)->Read(tensor.name, out));
      EXPECT_TRUE(SameBytes(out, tensor.bytes)) << tensor.name << " at step " << step;
    }
    ExpectReadsTogether(**reader, tensors);
  }
  void ExpectHolds(uint64_t step, const std::vector<TestTensor>& tensors) {
    ExpectHolds(*store_, step, tensors);
  }

  StoreStats GetStats() { return store_->Stats().value(); }

  // No step is left, so nothing may be.
  void ExpectEmpty() {
    const StoreStats stats = GetStats();
    EXPECT_EQ(stats.num_steps, 0u);
    EXPECT_EQ(stats.num_chunks, 0u);
    EXPECT_EQ(stats.stored_bytes, 0u);
    EXPECT_EQ(stats.pending_bytes, 0u);
  }

  TempFolder folder_;
  std::unique_ptr<Store> store_;
  bool expect_damage_ = false;    // set by tests that damage the store on purpose
  StoreOptions closing_options_;  // with which TearDown opens the store
};

}  // namespace varve::internal::testing
