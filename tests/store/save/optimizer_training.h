// SPDX-License-Identifier: Apache-2.0
//
// Some parameters that an optimizer trains step by step, with the states that a store should hold.
// One thread at a time. Whoever includes it is compiled with -ffp-contract=off (optimizer.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codec/predict/rounded_copy.h"
#include "tests/codec/predict/optimizer.h"
#include "tests/store/test_tensor.h"
#include "varve/optimizer_step.h"

namespace varve::internal::testing {

// A trainer that has done some steps before.
struct Training {
  static constexpr uint64_t kFirst = 12;

  Optimizer optimizer;
  size_t elements = 300000;  // of each tensor: two chunks
  bool is_bf16 = false;
  uint32_t num_parameters = 1;
  uint64_t seed = 0;  // of the gradients

  // After each step, in their order: the tensors of parameter 0, then of parameter 1 ...
  std::vector<std::vector<TestTensor>> states;
  std::vector<OptimizerState> parameters;

  explicit Training(size_t n = 300000, bool has_bf16 = false, uint32_t num = 1)
      : elements(n), is_bf16(has_bf16), num_parameters(num) {
    optimizer.step.number = 5;
    for (uint32_t i = 0; i < num_parameters; ++i) {
      parameters.push_back(TrainedBy(optimizer, elements + i));
    }
    optimizer.step.number = kFirst - 1;
  }

  static TestTensor Tensor(std::string name, const std::vector<float>& values) {
    return {
        std::move(name), DType::kF32, {static_cast<int64_t>(values.size())}, ToBytes(values), {}};
  }

  // Does one more step, and returns the hint for it. The first is kFirst.
  std::shared_ptr<OptimizerStep> Next() {
    const AdamStep& step = optimizer.step;
    ++optimizer.step.number;
    auto hint = std::make_shared<OptimizerStep>();
    hint->groups = {{.learning_rate = step.learning_rate,
                     .beta1 = step.beta1,
                     .beta2 = step.beta2,
                     .eps = step.eps,
                     .weight_decay = step.weight_decay}};
    hint->number = step.number;
    hint->gradient_scale = step.gradient_scale;
    std::vector<TestTensor> state;
    for (uint32_t i = 0; i < num_parameters; ++i) {
      const std::string name = "p" + std::to_string(i);
      parameters[i] = optimizer.Next(parameters[i], is_bf16, seed + 1000 * step.number + i);
      state.push_back(Tensor("exp_avg." + name, parameters[i].moment));
      state.push_back(Tensor("exp_avg_sq." + name, parameters[i].square));
      state.push_back(Tensor("master." + name, parameters[i].weight));
      TestTensor copy{name, DType::kBF16, state.back().shape, {}, "master." + name};
      copy.bytes.resize(state.back().bytes.size() / 2);
      MakeRoundedCopy(DType::kBF16, state.back().bytes, copy.bytes);
      state.push_back(std::move(copy));
      hint->parameters.push_back({"master." + name, "exp_avg." + name, "exp_avg_sq." + name});
    }
    states.push_back(std::move(state));
    return hint;
  }
};

}  // namespace varve::internal::testing
