// SPDX-License-Identifier: Apache-2.0
//
// What one step of Adam or AdamW did. A save that knows it stores little more of a state than the
// gradients: the second moment and the weight follow from the state one step before (docs/frame.md,
// "Header"; Kingma and Ba, arXiv 1412.6980; Loshchilov and Hutter, arXiv 1711.05101).
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

// A hint. It costs bytes if it is wrong, and never a bit of the state: what was predicted is
// compared with what is saved, and the difference is stored. A plain value. Once a save has it, it
// must not change until the save is committed: give each step one of its own.
struct OptimizerStep {
  struct Group {
    double learning_rate = 1e-3;  // of this step
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0;  // decoupled, as in AdamW
  };
  // Three tensors of the save, by name. They are F32 and dense, and have one shape. If tensors have
  // shards, shards of one number belong together.
  struct Parameter {
    std::string weight;  // the master, which the step changed
    std::string moment;  // the first moment: exp_avg
    std::string square;  // the second moment: exp_avg_sq
    size_t group = 0;    // of `groups`
  };

  std::vector<Group> groups;
  std::vector<Parameter> parameters;
  uint64_t number = 1;  // of this step, from 1 on, as the bias correction counts it
  double gradient_scale =
      1;  // by which gradients were multiplied before the step, as clipping does
};

}  // namespace varve
