// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

namespace varve::internal::cli {
namespace {

using ::testing::HasSubstr;

// Serves U8 vectors and matrices from memory, and counts what it is asked for.
class MemoryReader : public CheckpointReader {
 public:
  std::map<std::string, std::vector<std::byte>, std::less<>> tensors;
  int64_t row_bytes = 1;  // of two-dimensional tensors
  mutable std::vector<size_t> batch_bytes;

  Status ReadMany(std::span<const ReadRequest> requests) const override {
    size_t total = 0;
    for (const ReadRequest& request : requests) {
      total += request.out().size();
      const auto found = tensors.find(request.name());
      if (found == tensors.end()) return Status::NotFound("no " + std::string(request.name()));
      CopySlice(found->second, request);
    }
    batch_bytes.push_back(total);
    return Status::Ok();
  }

  const CheckpointInfo& info() const override { return info_; }
  Result<std::vector<TensorInfo>> List() const override { return std::vector<TensorInfo>(); }
  Result<std::vector<TensorInfo>> ListShards() const override { return List(); }
  Result<TensorInfo> Find(std::string_view, uint32_t) const override {
    return Status::NotFound("unused");
  }
  Status Read(std::string_view, std::span<std::byte>) const override { return Status::Ok(); }
  Status ReadSlice(std::string_view, std::span<const Range>, std::span<std::byte>) const override {
    return Status::Ok();
  }
  Result<std::vector<std::string>> ListBytes() const override { return std::vector<std::string>(); }
  Result<std::vector<std::byte>> ReadBytes(std::string_view) const override {
    return std::vector<std::byte>();
  }
  Result<std::optional<TrainerProgress>> ReadTrainerProgress() const override {
    return std::optional<TrainerProgress>();
  }
  Result<std::optional<Topology>> ReadTopology() const override {
    return std::optional<Topology>();
  }

 private:
  void CopySlice(const std::vector<std::byte>& data, const ReadRequest& request) const {
    std::byte* out = request.out().data();
    const std::span<const Range> slice = request.slice();
    if (slice.empty()) {
      std::memcpy(out, data.data(), request.out().size());
      return;
    }
    const Range columns = slice.size() == 2 ? slice[1] : Range{0, 1};
    const int64_t stride = slice.size() == 2 ? row_bytes : 1;
    for (int64_t row = slice[0].begin; row < slice[0].end; ++row) {
      const auto width = static_cast<size_t>(columns.end - columns.begin);
      std::memcpy(out, data.data() + row * stride + columns.begin, width);
      out += width;
    }
  }

  CheckpointInfo info_;
};

std::vector<std::byte> Numbered(size_t size) {
  std::vector<std::byte> data(size);
  for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  return data;
}

TensorInfo Info(std::string name, std::vector<int64_t> shape) {
  TensorInfo info;
  info.name = std::move(name);
  info.dtype = DType::kU8;
  info.shape = std::move(shape);
  return info;
}

class TensorStreamTest : public ::testing::Test {
 protected:
  MemoryReader reader_;
  std::vector<std::byte> received_;
  TensorStream stream_{reader_, [this](std::span<const std::byte> bytes) {
                         received_.insert(received_.end(), bytes.begin(), bytes.end());
                         return Status::Ok();
                       }};
};

TEST_F(TensorStreamTest, ReadsSmallTensorsTogether) {
  reader_.tensors = {{"a", Numbered(10)}, {"b", Numbered(20)}, {"scalar", Numbered(1)}};
  ASSERT_TRUE(stream_.Add(Info("b", {20})).ok());
  ASSERT_TRUE(stream_.Add(Info("scalar", {})).ok());
  ASSERT_TRUE(stream_.Add(Info("empty", {0, 5})).ok());
  ASSERT_TRUE(stream_.Add(Info("a", {10})).ok());
  ASSERT_TRUE(stream_.Finish().ok());
  EXPECT_EQ(reader_.batch_bytes, std::vector<size_t>{31});
  std::vector<std::byte> expected = Numbered(20);
  expected.push_back(Numbered(1)[0]);
  const std::vector<std::byte> a = Numbered(10);
  expected.insert(expected.end(), a.begin(), a.end());
  EXPECT_EQ(received_, expected);
}

TEST_F(TensorStreamTest, ReadsALargeTensorInPieces) {
  constexpr int64_t kBytes = (int64_t{150} << 20) + 7;
  reader_.tensors = {{"a", Numbered(kBytes)}};
  ASSERT_TRUE(stream_.Add(Info("a", {kBytes})).ok());
  ASSERT_TRUE(stream_.Finish().ok());
  EXPECT_GE(reader_.batch_bytes.size(), 3u);
  for (const size_t bytes : reader_.batch_bytes) EXPECT_LE(bytes, size_t{64} << 20);
  EXPECT_EQ(received_, reader_.tensors["a"]);
}

TEST_F(TensorStreamTest, PutsTextBetweenTensors) {
  reader_.tensors = {{"a", Numbered(10)}, {"b", Numbered(20)}};
  ASSERT_TRUE(stream_.AddText("head").ok());
  ASSERT_TRUE(stream_.Add(Info("a", {10})).ok());
  ASSERT_TRUE(stream_.AddText("").ok());
  ASSERT_TRUE(stream_.AddText("middle").ok());
  ASSERT_TRUE(stream_.Add(Info("b", {20})).ok());
  ASSERT_TRUE(stream_.Finish().ok());
  EXPECT_EQ(reader_.batch_bytes, std::vector<size_t>{30});
  ASSERT_TRUE(stream_.AddText("end").ok());
  ASSERT_TRUE(stream_.Finish().ok());
  std::vector<std::byte> expected;
  const auto expect = [&expected](std::span<const std::byte> bytes) {
    expected.insert(expected.end(), bytes.begin(), bytes.end());
  };
  expect(std::as_bytes(std::span("head", 4)));
  expect(Numbered(10));
  expect(std::as_bytes(std::span("middle", 6)));
  expect(Numbered(20));
  expect(std::as_bytes(std::span("end", 3)));
  EXPECT_EQ(received_, expected);
}

TEST_F(TensorStreamTest, ReadsASlice) {
  reader_.tensors = {{"a", Numbered(30)}};
  reader_.row_bytes = 5;
  const Range slice[] = {{1, 3}, {2, 4}};
  ASSERT_TRUE(stream_.Add(Info("a", {6, 5}), slice).ok());
  ASSERT_TRUE(stream_.Finish().ok());
  const std::vector<std::byte> all = Numbered(30);
  EXPECT_EQ(received_, (std::vector<std::byte>{all[7], all[8], all[12], all[13]}));
}

TEST_F(TensorStreamTest, PassesErrorsOn) {
  ASSERT_TRUE(stream_.Add(Info("gone", {3})).ok());
  EXPECT_EQ(stream_.Finish().code(), StatusCode::kNotFound);
}

TEST_F(TensorStreamTest, RefusesPartsOfBytes) {
  TensorInfo four = Info("a", {4});
  four.dtype = DType::kF4;
  const Range slice[] = {{0, 3}};
  EXPECT_THAT(stream_.Add(four, slice).message(), HasSubstr("must fill whole bytes"));
}

}  // namespace
}  // namespace varve::internal::cli
