// SPDX-License-Identifier: Apache-2.0
#include "store/save/replayed_step.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace varve::internal {

namespace {

bool MayTakePart(const SaveTensor* tensor) {
  return tensor != nullptr && tensor->dtype == DType::kF32 && tensor->strides().empty() &&
         tensor->master() == nullptr && tensor->step() == nullptr &&
         tensor->Geometry().NumChunks() > 0;
}

AdamStep StepOf(const OptimizerStep& step, const OptimizerStep::Group& group) {
  return {.learning_rate = group.learning_rate,
          .beta1 = group.beta1,
          .beta2 = group.beta2,
          .eps = group.eps,
          .weight_decay = group.weight_decay,
          .number = step.number,
          .gradient_scale = step.gradient_scale};
}

}  // namespace

std::vector<std::unique_ptr<ReplayedStep>> LinkSteps(const OptimizerStep& step,
                                                     SaveTensors* tensors) {
  std::unordered_map<std::string_view, const OptimizerStep::Parameter*> by_weight;
  for (const OptimizerStep::Parameter& parameter : step.parameters) {
    if (parameter.group < step.groups.size()) by_weight.try_emplace(parameter.weight, &parameter);
  }
  std::vector<std::unique_ptr<ReplayedStep>> steps;
  for (SaveTensor& weight : tensors->all()) {
    const auto named = by_weight.find(weight.name);
    if (named == by_weight.end()) continue;
    const OptimizerStep::Parameter& parameter = *named->second;
    const std::array found = {tensors->Find(parameter.moment, weight.shard),
                              tensors->Find(parameter.square, weight.shard), &weight};
    if (!std::ranges::all_of(found, MayTakePart)) continue;
    const bool are_apart = found[0] != found[1] && found[1] != found[2] && found[0] != found[2];
    const bool have_one_shape = std::ranges::equal(found[0]->shape, found[1]->shape) &&
                                std::ranges::equal(found[0]->shape, found[2]->shape);
    if (!are_apart || !have_one_shape) continue;
    auto& made = steps.emplace_back(std::make_unique<ReplayedStep>());
    made->step = StepOf(step, step.groups[parameter.group]);
    made->tensors = found;
    for (SaveTensor* const tensor : found) tensors->ExtraOf(tensor)->step = made.get();
  }
  return steps;
}

}  // namespace varve::internal
