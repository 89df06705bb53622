// SPDX-License-Identifier: Apache-2.0
//
// What one step of Adam or AdamW did. A save that gets this hint stores little more than the
// gradients. varve predicts the second moment and the weight from the state one step before and
// from the new first moment (docs/frame.md, "Header"; Kingma and Ba, arXiv 1412.6980; Loshchilov
// and Hutter, arXiv 1711.05101).
//
//   auto hint = std::make_shared<varve::OptimizerStep>();
//   hint->groups = {{.learning_rate = 3e-4, .beta2 = 0.95, .weight_decay = 0.1}};
//   hint->parameters = {{"master.w", "exp_avg.w", "exp_avg_sq.w"}};
//   hint->number = 1200;
//   varve::SaveOptions options{.optimizer_step = hint};
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace varve {

// A hint. If it is wrong, the save is larger, and the state is still exact. The save stores the
// difference between prediction and state. A plain value. The object must not change until the save
// is committed. Make a new object for each step.
struct OptimizerStep {
  struct Group {
    double learning_rate = 1e-3;  // of this step
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0;  // decoupled, as in AdamW
  };
  // Three tensors of the save, by name. They are F32 and dense, and have one shape. If the tensors
  // have shards, shards with the same number belong together.
  struct Parameter {
    std::string weight;  // the master, which the step changed
    std::string moment;  // the first moment: exp_avg
    std::string square;  // the second moment: exp_avg_sq
    size_t group = 0;    // of `groups`
  };

  std::vector<Group> groups;
  std::vector<Parameter> parameters;
  uint64_t number = 1;  // of this step, counted from 1, as for the bias correction
  double gradient_scale =
      1;  // the factor by which gradients were multiplied before the step, as clipping does
};

}  // namespace varve
