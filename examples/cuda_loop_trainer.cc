// SPDX-License-Identifier: Apache-2.0
#include "examples/cuda_loop_trainer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace cuda_example {
namespace {

constexpr int64_t kLayerElements = int64_t{64} << 20;  // of a tensor, at most: 256 MiB

}  // namespace

varve::Result<std::unique_ptr<Trainer>> Trainer::Create(uint64_t bytes, const Shares& shares,
                                                        cudaStream_t stream) {
  std::unique_ptr<Trainer> trainer(new Trainer(stream));
  VARVE_RETURN_IF_ERROR(trainer->Init(bytes, shares));
  return trainer;
}

varve::Result<float*> Trainer::AddTensor(const std::string& name, std::vector<int64_t> shape,
                                         varve::TensorRole role, float scale) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  const uint64_t bytes = static_cast<uint64_t>(elements) * sizeof(float);
  VARVE_ASSIGN_OR_RETURN(Memory memory, Allocate(bytes));
  auto* const data = reinterpret_cast<float*>(memory.get());
  memories_.push_back(std::move(memory));
  CUDA_OK(FillNoise(data, elements, memories_.size(), scale, stream_));
  if (name.empty()) return data;  // not of the state
  state_.tensors.push_back(
      {{.name = name, .shape = std::move(shape), .role = role}, data, /*device=*/0});
  bytes_ += bytes;
  return data;
}

varve::Result<Layer> Trainer::AddLayer(const std::string& name, const std::vector<int64_t>& shape) {
  using varve::TensorRole;
  Layer layer;
  layer.elements = 1;
  for (const int64_t size : shape) layer.elements *= size;
  VARVE_ASSIGN_OR_RETURN(layer.weight,
                         AddTensor("model." + name, shape, TensorRole::kParameter, 0.04f));
  VARVE_ASSIGN_OR_RETURN(layer.exp_avg,
                         AddTensor("exp_avg." + name, shape, TensorRole::kOptimizer, 1e-3f));
  VARVE_ASSIGN_OR_RETURN(layer.exp_avg_sq,
                         AddTensor("exp_avg_sq." + name, shape, TensorRole::kOptimizer, -1e-6f));
  return layer;
}

varve::Status Trainer::Init(uint64_t bytes, const Shares& shares) {
  constexpr int64_t kMatrix = int64_t{kSide} * kSide;
  for (float** matrix : {&inputs_, &weights_, &outputs_, &grads_}) {
    VARVE_ASSIGN_OR_RETURN(*matrix, AddTensor("", {kMatrix}, varve::TensorRole::kOther, 1));
  }
  VARVE_ASSIGN_OR_RETURN(float* const sink, AddTensor("", {2}, varve::TensorRole::kOther, 1));
  sink_ = reinterpret_cast<uint64_t*>(sink);
  VARVE_ASSIGN_OR_RETURN(begin_, MakeEvent());
  VARVE_ASSIGN_OR_RETURN(end_, MakeEvent());

  const auto elements = [&](double share) {  // FP32, a multiple of 4
    return static_cast<int64_t>(static_cast<double>(bytes) * share) / 16 * 4;
  };
  int64_t left = elements(shares.frozen);
  for (int i = 0; left > 0; ++i, left -= kLayerElements) {
    VARVE_RETURN_IF_ERROR(AddTensor("base.layers." + std::to_string(i),
                                    {std::min(left, kLayerElements)}, varve::TensorRole::kParameter,
                                    0.04f)
                              .status());
  }
  left = elements(shares.dense) / 3 / 4 * 4;  // with two moments each
  for (int i = 0; left > 0; ++i, left -= kLayerElements) {
    VARVE_ASSIGN_OR_RETURN(const Layer layer, AddLayer("layers." + std::to_string(i),
                                                       {std::min(left, kLayerElements)}));
    dense_.push_back(layer);
  }
  const int64_t rows = elements(shares.sparse) / 3 / kRowElements;
  if (rows > 0) {
    VARVE_ASSIGN_OR_RETURN(embedding_, AddLayer("embedding", {rows, kRowElements}));
  }
  return varve::Status::Ok();
}

varve::Result<double> Trainer::ReadPass() {
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    CUDA_OK(cudaEventRecord(begin_.get(), stream_));
    for (const varve::StateTensor& tensor : state_.tensors) {
      int64_t elements = 1;
      for (const int64_t size : tensor.shape) elements *= size;
      CUDA_OK(ReadOnce(tensor.data, elements * int64_t{sizeof(float)}, sink_, stream_));
    }
    CUDA_OK(cudaEventRecord(end_.get(), stream_));
    CUDA_OK(cudaEventSynchronize(end_.get()));
    VARVE_ASSIGN_OR_RETURN(const double seconds, SecondsBetween(begin_, end_));
    best = std::min(best, seconds);
  }
  return best;
}

varve::Status Trainer::EnqueueProducts(int pairs) {
  const float alpha = 1 / std::sqrt(static_cast<float>(kSide));
  for (int i = 0; i < pairs; ++i) {
    CUDA_OK(Multiply(inputs_, weights_, false, alpha, outputs_, stream_));
    CUDA_OK(Multiply(outputs_, weights_, true, alpha, grads_, stream_));
  }
  return varve::Status::Ok();
}

varve::Status Trainer::MakeStepsLast(double seconds) {
  constexpr int kPairs = 8;
  VARVE_RETURN_IF_ERROR(EnqueueProducts(kPairs));  // the first are slower
  CUDA_OK(cudaEventRecord(begin_.get(), stream_));
  VARVE_RETURN_IF_ERROR(EnqueueProducts(kPairs));
  CUDA_OK(cudaEventRecord(end_.get(), stream_));
  CUDA_OK(cudaEventSynchronize(end_.get()));
  VARVE_ASSIGN_OR_RETURN(const double pair, SecondsBetween(begin_, end_));
  products_ = std::max(1, static_cast<int>(std::ceil(seconds / (pair / kPairs))));
  return varve::Status::Ok();
}

varve::Status Trainer::ForwardAndBackward() { return EnqueueProducts(products_); }

varve::Status Trainer::OptimizerStep(int64_t step) {
  constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f;
  const auto t = static_cast<float>(step + 1);
  const AdamStep adam = {1e-3f, kBeta1, kBeta2, 1 - std::pow(kBeta1, t), 1 - std::pow(kBeta2, t)};
  for (const Layer& layer : dense_) CUDA_OK(AdamW(adam, grads_, layer, stream_));
  if (const int64_t rows = embedding_.elements / kRowElements; rows > 0) {
    CUDA_OK(AdamWOfRows(adam, grads_, embedding_, rows, static_cast<uint64_t>(step), stream_));
  }
  state_.trainer.global_step = step;
  return varve::Status::Ok();
}

}  // namespace cuda_example
