// SPDX-License-Identifier: Apache-2.0
//
// A training on a GPU with a state of any size. A step has matrix products, forward and backward,
// and then AdamW. AdamW updates all of the dense layers and some rows of the embedding, but not the
// frozen tensors. One thread. All work goes to one stream, in order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "examples/cuda_example.h"
#include "examples/cuda_loop_kernels.h"
#include "varve/training_state.h"

namespace cuda_example {

// Parts of the state, of a sum of one.
struct Shares {
  double frozen = 0.90;
  double sparse = 0.09;
  double dense = 0.01;
};

class Trainer {
 public:
  // `bytes` is the size of the state. The work needs some more megabytes. The stream must outlive
  // the trainer.
  static varve::Result<std::unique_ptr<Trainer>> Create(uint64_t bytes, const Shares& shares,
                                                        cudaStream_t stream);

  const varve::TrainingState& state() const { return state_; }
  uint64_t bytes() const { return bytes_; }
  int products() const { return products_; }

  // Time that the device needs to read the state once.
  varve::Result<double> ReadPass();
  // Gives a step so much work that it lasts at least so long.
  varve::Status MakeStepsLast(double seconds);

  // Both return at once. The device works later.
  varve::Status ForwardAndBackward();
  varve::Status OptimizerStep(int64_t step);

 private:
  explicit Trainer(cudaStream_t stream) : stream_(stream) {}
  varve::Status Init(uint64_t bytes, const Shares& shares);
  varve::Result<float*> AddTensor(const std::string& name, std::vector<int64_t> shape,
                                  varve::TensorRole role, float scale);
  varve::Result<Layer> AddLayer(const std::string& name, const std::vector<int64_t>& shape);
  varve::Status EnqueueProducts(int pairs);

  const cudaStream_t stream_;
  std::vector<Memory> memories_;
  varve::TrainingState state_;
  uint64_t bytes_ = 0;
  std::vector<Layer> dense_;
  Layer embedding_;
  int products_ = 1;  // forward and backward, of a step
  float* inputs_ = nullptr;
  float* weights_ = nullptr;
  float* outputs_ = nullptr;
  float* grads_ = nullptr;
  uint64_t* sink_ = nullptr;
  Event begin_, end_;
};

}  // namespace cuda_example
