// SPDX-License-Identifier: Apache-2.0
#include "store/save/replayed_step.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

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
    SaveTensor* const found[] = {tensors->Find(parameter.moment, weight.shard),
                                 tensors->Find(parameter.square, weight.shard), &weight};
    if (!std::ranges::all_of(found, MayTakePart)) continue;
    const bool are_apart = found[0] != found[1] && found[1] != found[2] && found[0] != found[2];
    const bool have_one_shape = std::ranges::equal(found[0]->shape, found[1]->shape) &&
                                std::ranges::equal(found[0]->shape, found[2]->shape);
    if (!are_apart || !have_one_shape) continue;
    auto& made = steps.emplace_back(std::make_unique<ReplayedStep>());
    made->step = StepOf(step, step.groups[parameter.group]);
    made->moment = found[0];
    made->square = found[1];
    made->weight = found[2];
    for (SaveTensor* const tensor : found) tensors->ExtraOf(tensor)->step = made.get();
  }
  return steps;
}

std::vector<SaveTensor*> StepsTogether(const std::vector<SaveTensor*>& order) {
  std::vector<std::pair<const SaveTensor*, SaveTensor*>> copies;  // of tensors of a step
  for (SaveTensor* const tensor : order) {
    const SaveTensor* const master = tensor->master();
    if (master != nullptr && master->step() != nullptr) copies.emplace_back(master, tensor);
  }
  const auto master_of = [](const auto& pair) { return pair.first; };
  std::ranges::stable_sort(copies, std::less<>(), master_of);
  std::set<const ReplayedStep*> placed;
  std::vector<SaveTensor*> together;
  together.reserve(order.size());
  for (SaveTensor* const tensor : order) {
    const ReplayedStep* const step = tensor->step();
    if (step == nullptr) {
      const SaveTensor* const master = tensor->master();
      if (master == nullptr || master->step() == nullptr) together.push_back(tensor);
      continue;
    }
    if (!placed.insert(step).second) continue;
    const std::initializer_list<SaveTensor*> all = {step->moment, step->square, step->weight};
    together.insert(together.end(), all);
    for (const SaveTensor* const master : all) {
      auto copy = std::ranges::lower_bound(copies, master, std::less<>(), master_of);
      for (; copy != copies.end() && copy->first == master; ++copy) {
        together.push_back(copy->second);
      }
    }
  }
  return together;
}

}  // namespace varve::internal
