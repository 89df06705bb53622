// SPDX-License-Identifier: Apache-2.0
#include "tests/support/step_content.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "codec/predict/rounded_copy.h"
#include "tests/codec/predict/optimizer.h"

namespace varve::internal::testing {
namespace {

constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr std::string_view kItemName = "loader/state";

enum class Kind { kRandom, kConstant, kFloatLike, kDrifting, kTied, kScalar, kEmpty, kNumKinds };

Kind KindOf(int tensor) { return static_cast<Kind>(tensor % static_cast<int>(Kind::kNumKinds)); }

// Fills `out` with the stream of `key`. The same key gives the same bytes at any length.
void FillRandom(uint64_t key, std::byte* out, size_t size) {
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t word = Mix(key, at);
    std::memcpy(out + at, &word, std::min<size_t>(8, size - at));
  }
}

// The newest content number at which this block changed.
uint64_t BlockVersion(const ContentPlan& plan, int tensor, size_t block, uint64_t content) {
  const uint64_t phase = Mix(plan.seed, static_cast<uint64_t>(tensor), block) % plan.period;
  if (content < phase) return 0;
  return content - (content - phase) % plan.period;
}

// Two-byte floats near one: the high byte says little, the low byte is noise.
void MakeFloatLike(std::byte* out, size_t size) {
  for (size_t i = 1; i < size; i += 2) out[i] = std::byte{0x3f} ^ (out[i] & std::byte{0x01});
}

// Makes four-byte values that differ between contents only in the lowest byte. Deltas are made for
// that.
void MakeDrifting(uint64_t key, uint64_t version, std::byte* out, size_t size) {
  FillRandom(key, out, size);
  for (size_t i = 0; i < size; i += 4) out[i] ^= static_cast<std::byte>(Mix(version, i) & 3);
}

void FillBlock(const ContentPlan& plan, int tensor, size_t block, uint64_t content, std::byte* out,
               size_t size) {
  const uint64_t version = BlockVersion(plan, tensor, block, content);
  const uint64_t place = Mix(plan.seed, static_cast<uint64_t>(tensor), block);
  switch (KindOf(tensor)) {
    case Kind::kConstant:
      std::memset(out, static_cast<int>(version & 0xff), size);
      return;
    case Kind::kDrifting:
      MakeDrifting(place, version, out, size);
      return;
    default:
      FillRandom(Mix(place, version), out, size);
      if (KindOf(tensor) == Kind::kFloatLike) MakeFloatLike(out, size);
  }
}

DType DTypeOf(int tensor) {
  switch (KindOf(tensor)) {
    case Kind::kFloatLike:
      return DType::kBF16;
    case Kind::kDrifting:
      return DType::kF32;
    case Kind::kScalar:
      return DType::kI64;
    default:
      return DType::kU8;
  }
}

// A tied tensor has the size and bytes of tensor 0.
uint64_t BytesOf(const ContentPlan& plan, int tensor) {
  switch (KindOf(tensor)) {
    case Kind::kScalar:
      return 8;
    case Kind::kEmpty:
      return 0;
    case Kind::kTied:
      return BytesOf(plan, 0);
    default:
      return 8 * (1 + Mix(plan.seed, static_cast<uint64_t>(tensor)) % (plan.max_tensor_bytes / 8));
  }
}

std::vector<int64_t> ShapeOf(int tensor, uint64_t bytes) {
  if (KindOf(tensor) == Kind::kScalar) return {};
  const int64_t elements = static_cast<int64_t>(bytes) * 8 / DTypeBits(DTypeOf(tensor));
  return elements % 2 == 0 ? std::vector<int64_t>{2, elements / 2} : std::vector<int64_t>{elements};
}

MadeTensor MakeTensor(const ContentPlan& plan, int tensor, uint64_t content) {
  const uint64_t bytes = BytesOf(plan, tensor);
  MadeTensor made{.name = "layer " + std::to_string(tensor) + "/gewöhnlich",
                  .dtype = DTypeOf(tensor),
                  .shape = ShapeOf(tensor, bytes),
                  .bytes = std::vector<std::byte>(bytes)};
  const int source = KindOf(tensor) == Kind::kTied ? 0 : tensor;
  for (size_t at = 0; at < bytes; at += kBlockBytes) {
    FillBlock(plan, source, at / kBlockBytes, content, made.bytes.data() + at,
              std::min<size_t>(kBlockBytes, bytes - at));
  }
  return made;
}

constexpr const char* kMaster = "trained/master";
constexpr const char* kMoment = "trained/exp_avg";
constexpr const char* kSquare = "trained/exp_avg_sq";

MadeTensor MakeTrainedTensor(const char* name, const std::vector<float>& values) {
  return {.name = name,
          .dtype = DType::kF32,
          .shape = {static_cast<int64_t>(values.size())},
          .bytes = ToBytes(values)};
}

void AddTrained(const ContentPlan& plan, uint64_t content, std::vector<MadeTensor>* tensors) {
  constexpr size_t kTrainedElements = 1500;
  Optimizer optimizer;
  OptimizerState state = {std::vector<float>(kTrainedElements),
                          std::vector<float>(kTrainedElements),
                          Weights(kTrainedElements, plan.seed)};
  for (uint64_t number = 1; number <= content; ++number) {
    optimizer.step.number = number;
    state = optimizer.Next(state, /*is_bf16=*/false, Mix(plan.seed, number));
  }
  MadeTensor master = MakeTrainedTensor(kMaster, state.weight);
  MadeTensor copy{.name = "trained/copy",
                  .dtype = DType::kBF16,
                  .shape = master.shape,
                  .bytes = std::vector<std::byte>(master.bytes.size() / 2),
                  .derived_from = kMaster};
  MakeRoundedCopy(copy.dtype, master.bytes, copy.bytes);
  tensors->push_back(std::move(copy));
  tensors->push_back(std::move(master));
  tensors->push_back(MakeTrainedTensor(kMoment, state.moment));
  tensors->push_back(MakeTrainedTensor(kSquare, state.square));
}

// The optimizer's step from the content before.
std::shared_ptr<const OptimizerStep> HintOf(uint64_t content) {
  const AdamStep step = Optimizer().step;
  auto hint = std::make_shared<OptimizerStep>();
  hint->groups = {{.learning_rate = step.learning_rate,
                   .beta1 = step.beta1,
                   .beta2 = step.beta2,
                   .eps = step.eps,
                   .weight_decay = step.weight_decay}};
  hint->parameters = {{kMaster, kMoment, kSquare}};
  hint->number = content;
  hint->gradient_scale = step.gradient_scale;
  return hint;
}

std::vector<std::byte> MakeItem(const ContentPlan& plan, uint64_t content) {
  std::vector<std::byte> item(1 + Mix(plan.seed, content) % 3000);
  FillRandom(Mix(plan.seed, content, 1), item.data(), item.size());
  return item;
}

Status Different(const std::string& what, uint64_t content) {
  return Status::Corruption(what + " is not that of content " + std::to_string(content));
}

Status CompareInfo(const std::vector<TensorInfo>& found, const std::vector<MadeTensor>& expected,
                   uint64_t content) {
  if (found.size() != expected.size()) return Different("the number of tensors", content);
  for (const MadeTensor& made : expected) {
    const bool there = std::any_of(found.begin(), found.end(), [&](const TensorInfo& info) {
      return info.name == made.name && info.dtype == made.dtype && info.shape == made.shape &&
             info.logical_bytes == made.bytes.size() && info.derived_from == made.derived_from;
    });
    if (!there) return Different("the listing of tensor '" + made.name + "'", content);
  }
  return Status::Ok();
}

Status CompareBytes(const CheckpointReader& reader, const std::vector<MadeTensor>& expected,
                    uint64_t content) {
  std::vector<std::vector<std::byte>> found;
  std::vector<ReadRequest> requests;
  for (const MadeTensor& made : expected) {
    found.emplace_back(made.bytes.size());
    requests.push_back(ReadRequest::Tensor(made.name, found.back()));
  }
  VARVE_RETURN_IF_ERROR(reader.ReadMany(requests));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (found[i] != expected[i].bytes) {
      return Different("the data of tensor '" + expected[i].name + "'", content);
    }
  }
  return Status::Ok();
}

}  // namespace

uint64_t Mix(uint64_t a, uint64_t b, uint64_t c) {
  // Two rounds of splitmix64 over a combination that keeps the order of the inputs.
  uint64_t x = a * 0x9e3779b97f4a7c15u + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u + c * 0xd6e8feb86659fd93u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

ContentPlan ParsePlan(const std::string& text) {
  ContentPlan plan;
  char* rest = nullptr;
  plan.max_tensor_bytes = std::strtoull(text.c_str(), &rest, 10);
  plan.has_trained = std::string_view(rest) == "+trained";
  return plan;
}

std::vector<MadeTensor> MakeContent(const ContentPlan& plan, uint64_t content) {
  std::vector<MadeTensor> tensors;
  for (int i = 0; i < plan.num_tensors; ++i) tensors.push_back(MakeTensor(plan, i, content));
  if (plan.has_trained) AddTrained(plan, content, &tensors);
  return tensors;
}

Result<SaveReport> SaveContent(Store* store, const ContentPlan& plan, uint64_t step,
                               uint64_t content, const SaveOptions& options) {
  const std::vector<MadeTensor> tensors = MakeContent(plan, content);
  SaveOptions hinted = options;
  if (plan.has_trained) hinted.optimizer_step = HintOf(content);
  VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step, hinted));
  for (const MadeTensor& made : tensors) {
    VARVE_RETURN_IF_ERROR(writer->Put({.name = made.name,
                                       .dtype = made.dtype,
                                       .shape = made.shape,
                                       .data = made.bytes.data(),
                                       .derived_from = made.derived_from}));
  }
  VARVE_RETURN_IF_ERROR(writer->PutBytes(kItemName, MakeItem(plan, content)));
  TrainerProgress state;
  state.global_step = static_cast<int64_t>(content);
  VARVE_RETURN_IF_ERROR(writer->SetTrainerProgress(state));
  return writer->Commit();
}

Result<uint64_t> ReadContentNumber(const CheckpointReader& reader) {
  VARVE_ASSIGN_OR_RETURN(const auto state, reader.ReadTrainerProgress());
  if (!state) return Status::Corruption("the checkpoint has no trainer state");
  return static_cast<uint64_t>(state->global_step);
}

Status VerifyContent(const CheckpointReader& reader, const ContentPlan& plan) {
  VARVE_ASSIGN_OR_RETURN(const uint64_t content, ReadContentNumber(reader));
  const std::vector<MadeTensor> expected = MakeContent(plan, content);
  VARVE_ASSIGN_OR_RETURN(const std::vector<TensorInfo> found, reader.List());
  VARVE_RETURN_IF_ERROR(CompareInfo(found, expected, content));
  VARVE_RETURN_IF_ERROR(CompareBytes(reader, expected, content));
  VARVE_ASSIGN_OR_RETURN(const auto item, reader.ReadBytes(kItemName));
  if (item != MakeItem(plan, content)) return Different("the opaque item", content);
  return Status::Ok();
}

}  // namespace varve::internal::testing
