// SPDX-License-Identifier: Apache-2.0
//
// Stores as files (tests/golden): what the code of one day wrote must be read and written on by all
// later code. A change of the format adds one here. VARVE_WRITE_GOLDEN=1 makes the newest anew.
//   store         format version 1 as it was first
//   store_planes  saves know the planes of their frames
//   store_roles   tensors know their role, and whose storage they shared
//   store_shards  "zeros" lies in three shards: two pieces with padding, and a flat one
//   store_rans    planes are stored with rANS, which FORMAT says
//   store_sealed  the manifest and all tables have tags, of the key below
//   store_replays frames replay a step of an optimizer, which FORMAT says
#include <cmath>
#include <cstdlib>

#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = VARVE_GOLDEN_STORES;
constexpr const char* kNewest = "store_replays";
const std::string kKey = "the key of the golden store";

// Every kind of chunk: stored as keyframe and as delta, derived, constant, inline, raw.
std::vector<TestTensor> GoldenStep(int step) {
  // Integer arithmetic only: the same values with any library's distributions.
  TestTensor master = RandomTensor("master.w", DType::kF32, {16, 300}, 1);
  for (size_t i = 0; i < 4800; ++i) {
    const float value =
        static_cast<float>((i * 7919) % 4801) * 1e-4f + static_cast<float>(step) * 1e-6f;
    std::memcpy(&master.bytes[4 * i], &value, 4);
  }
  TestTensor model{"model.w", DType::kBF16, {16, 300}, {}, "master.w"};
  for (size_t i = 0; i < 4800; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &master.bytes[4 * i], 4);
    const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    const auto* bytes = reinterpret_cast<const std::byte*>(&rounded);
    model.bytes.insert(model.bytes.end(), bytes, bytes + 2);
  }
  TestTensor zeros{"zeros", DType::kF64, {200}, std::vector<std::byte>(1600), {}};
  TestTensor scalar{"größe", DType::kI64, {}, std::vector<std::byte>(8, std::byte{0x2a}), {}};
  TestTensor noise = RandomTensor("noise", DType::kU8, {1500}, 99);
  return {master, model, zeros, scalar, noise};
}

// What an optimizer makes of a parameter in that many steps. The compiler may not contract.
std::vector<TestTensor> GoldenAdam(int steps) {
  constexpr size_t kElements = 3000;
  constexpr float kRate = 1e-3f, kBeta1 = 0.9f, kBeta2 = 0.99f;
  std::vector<TestTensor> tensors;
  for (const char* const name : {"adam.m", "adam.v", "adam.w"}) {
    tensors.push_back({name, DType::kF32, {kElements}, std::vector<std::byte>(4 * kElements), {}});
  }
  for (size_t i = 0; i < kElements; ++i) {
    float m = 0, v = 0, w = static_cast<float>((i * 7919) % 3001) * 1e-4f;
    for (int s = 1; s <= steps; ++s) {
      const float g = static_cast<float>((i * 31 + static_cast<size_t>(s) * 1013) % 2003) * 1e-5f;
      m = kBeta1 * m + (1 - kBeta1) * g;
      v = kBeta2 * v + (1 - kBeta2) * g * g;
      const auto size = static_cast<float>(double{kRate} / (1 - std::pow(double{kBeta1}, s)));
      const auto root = static_cast<float>(std::sqrt(1 - std::pow(double{kBeta2}, s)));
      w -= size * (m / (std::sqrt(v) / root + 1e-8f));
    }
    std::memcpy(&tensors[0].bytes[4 * i], &m, 4);
    std::memcpy(&tensors[1].bytes[4 * i], &v, 4);
    std::memcpy(&tensors[2].bytes[4 * i], &w, 4);
  }
  return tensors;
}

std::shared_ptr<OptimizerStep> GoldenHint(int step) {
  auto hint = std::make_shared<OptimizerStep>();
  hint->groups = {{.learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f}};
  hint->parameters = {{"adam.w", "adam.m", "adam.v"}};
  hint->number = static_cast<uint64_t>(step);
  return hint;
}

// The layouts of "zeros", whose shape is [200].
std::vector<ShardLayout> GoldenShards() {
  ShardLayout first = ShardLayout::Whole({200}), second = first, flat = first;
  first.axes[0] = {{150, 10}, {0, 90}, {.length = 3, .is_padding = true}};
  second.axes[0] = {{90, 60}};
  flat.axes[0] = {{100, 100}};
  flat.flat = Range{60, 105};
  return {first, second, flat};
}

void PutGolden(CheckpointWriter* writer, const TestTensor& tensor) {
  TensorView view = tensor.view();
  view.role = tensor.name == "master.w" ? TensorRole::kOptimizer : TensorRole::kParameter;
  if (tensor.name == "noise") view.alias_of = "zeros";  // a hint that is wrong, and harmless
  if (tensor.name != "zeros") {
    VARVE_ASSERT_OK(writer->Put(view));
    return;
  }
  for (const ShardLayout& layout : GoldenShards()) {
    const std::vector<int64_t> shape = layout.LocalShape();
    view.shape = shape;
    view.layout = &layout;
    VARVE_ASSERT_OK(writer->Put(view));
    ++view.shard;
  }
}

void WriteGolden(const fs::path& path) {
  fs::remove_all(path);
  {
    auto store = Store::Create(path, {.digest_seed = 0x1234567890abcdef,
                                      .store = {.entropy = Entropy::kRans}})
                     .value();
    for (const int step : {1, 2, 3}) {
      const SaveOptions options{.optimizer_step = GoldenHint(step)};
      auto writer = store->Begin(static_cast<uint64_t>(step), options).value();
      const auto tensors = GoldenStep(step);
      for (const TestTensor& tensor : tensors) PutGolden(writer.get(), tensor);
      const auto adam = GoldenAdam(step);
      for (const TestTensor& tensor : adam) PutGolden(writer.get(), tensor);
      TrainerProgress state;
      state.global_step = step;
      state.lr_scheduler["lr"] = 0.5;
      VARVE_ASSERT_OK(writer->SetTrainerProgress(state));
      VARVE_ASSERT_OK(writer->SetTopology({.tp = 2, .world_size = 2}));
      VARVE_ASSERT_OK(writer->PutBytes("item", std::as_bytes(std::span("bytes", 5))));
      VARVE_ASSERT_OK(writer->SetMetric("loss", 1.0 / step));
      if (step == 2) VARVE_ASSERT_OK(writer->AddTag("middle"));
      VARVE_ASSERT_OK(writer->Commit().status());
    }
    VARVE_ASSERT_OK(store->Drop(std::vector<CheckpointId>{{"main", 1}}).status());
  }
  fs::remove(path / "RESERVE");
  fs::remove_all(path / "incoming");
  for (const auto& entry : fs::directory_iterator(path / "db")) {
    const std::string name = entry.path().filename();
    if (name == "LOCK" || name.rfind("OPTIONS", 0) == 0) fs::remove(entry.path());
  }
}

class GoldenStoreTest : public StoreTest, public ::testing::WithParamInterface<const char*> {
 protected:
  static bool knows_planes() { return GetParam() != std::string_view("store"); }
  static bool is_newest() { return GetParam() == std::string_view(kNewest); }
  static bool is_sealed() { return GetParam() == std::string_view("store_sealed"); }
  static bool has_replays() { return is_newest(); }
  static bool has_rans() {
    return has_replays() || is_sealed() || GetParam() == std::string_view("store_rans");
  }
  static bool has_shards() { return has_rans() || GetParam() == std::string_view("store_shards"); }
  static bool knows_roles() {
    return has_shards() || GetParam() == std::string_view("store_roles");
  }
  void SetUp() override {
    if (is_newest() && std::getenv("VARVE_WRITE_GOLDEN") != nullptr) {
      WriteGolden(kGolden / GetParam());
    }
    fs::copy(kGolden / GetParam(), path(), fs::copy_options::recursive);
    if (is_sealed()) closing_options_.key = kKey;
  }
  static std::vector<TestTensor> Expected(int step) {
    std::vector<TestTensor> tensors = GoldenStep(step);
    if (!has_replays()) return tensors;
    for (TestTensor& tensor : GoldenAdam(step)) tensors.push_back(std::move(tensor));
    return tensors;
  }
  void ExpectGolden(const Store& store) {
    const auto steps = store.ListCheckpoints("main").value();
    ASSERT_EQ(steps.size(), 2u);
    for (const int step : {2, 3}) ExpectHolds(store, static_cast<uint64_t>(step), Expected(step));
    EXPECT_EQ(store.FindTag("main", "middle").value(), 2u);
    EXPECT_EQ(steps[1].metrics.at("loss"), 1.0 / 3);
    const auto reader = store.OpenCheckpoint("main", 3).value();
    const TensorInfo noise = reader->Find("noise").value();
    EXPECT_EQ(noise.role, knows_roles() ? TensorRole::kParameter : TensorRole::kOther);
    EXPECT_EQ(noise.alias_of, knows_roles() ? "zeros" : "");
    if (has_shards()) {
      for (uint32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(reader->Find("zeros", i)->layout, GoldenShards()[i]);
      }
    }
    EXPECT_EQ(reader->ReadTrainerProgress().value()->global_step, 3);
    EXPECT_EQ(reader->ReadTopology().value()->tp, 2u);
    EXPECT_EQ(reader->ReadBytes("item").value().size(), 5u);
    EXPECT_THAT(store.Check({.read_data = true}).value().errors, ::testing::IsEmpty());
  }
  uint64_t BytesOf(std::string_view coder) {
    for (const CoderUse& use : GetStats().by_coder) {
      if (use.coder == coder) return use.stored_bytes;
    }
    return 0;
  }
  uint64_t ReplayedBytes() {
    for (const CodecUse& use : GetStats().by_codec) {
      if (use.codec == "replay") return use.raw_bytes;
    }
    return 0;
  }
  // Stored bytes of frames whose planes are not known.
  uint64_t UnknownBytes() { return BytesOf("unknown"); }
};

TEST_P(GoldenStoreTest, IsReadAndWrittenOn) {
  ExpectGolden(*Store::OpenForReading(path(), closing_options_).value());
  closing_options_.entropy = Entropy::kRans;
  Reopen(closing_options_);
  ExpectGolden(*store_);
  EXPECT_EQ(store_->Check({})->num_sealed_files > 0, is_sealed());
  EXPECT_EQ(BytesOf("rans") > 0, has_rans());
  const uint64_t unknown = knows_planes() ? 0 : GetStats().stored_bytes;
  EXPECT_EQ(UnknownBytes(), unknown);
  EXPECT_EQ(ReplayedBytes() > 0, has_replays());
  VARVE_ASSERT_OK(Save(4, Expected(4), {.optimizer_step = GoldenHint(4)}).status());
  // A store without the feature gets no rANS.
  EXPECT_EQ(BytesOf("rans") > 0, has_rans());
  ExpectHolds(4, Expected(4));
  EXPECT_EQ(UnknownBytes(), unknown);
  VARVE_ASSERT_OK(DropSteps({2, 3}));
  ExpectHolds(4, Expected(4));
}

INSTANTIATE_TEST_SUITE_P(All, GoldenStoreTest,
                         ::testing::Values("store", "store_planes", "store_roles", "store_shards",
                                           "store_rans", "store_sealed", kNewest),
                         [](const auto& golden) { return std::string(golden.param); });

}  // namespace
}  // namespace varve::internal::testing
