// SPDX-License-Identifier: Apache-2.0
//
// The command line of gpt_train: the trainer's own flags, and those of varve.
//
// Thread rule: one thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpt/trainer.h"
#include "varve/flags.h"

namespace gpt {

// The number of samples a step, from the step after `step` on.
struct BatchSwitch {
  int size = 0;
  int64_t step = 0;
};

// A tensor to be written to a file as it is after a step.
struct Dump {
  std::string name;
  int64_t step = 0;
  std::string file;
};

struct Flags {
  TrainerOptions trainer;
  varve::CheckpointFlags checkpoint;
  std::string data = "/usr/share/common-licenses";
  int micro_batch_size = 4;
  std::optional<BatchSwitch> batch_switch;
  int64_t train_iters = 100;
  std::optional<int64_t> lr_decay_iters;
  std::vector<Dump> dumps;
  size_t threads = 0;
  Topology topology;    // dp is 0 unless it is given: as many as there are ranks
  int num_spawned = 0;  // 0: ranks are started by others, or there is one
};

// `flags` must outlive `app`, which fills them when it parses.
void AddFlags(CLI::App* app, Flags* flags);

// How so many ranks share the work. kInvalidArgument when they cannot do it as the flags say.
varve::Result<Topology> TopologyOf(const Flags& flags, int num_ranks);

// The batch size of a step.
int BatchSizeAt(const Flags& flags, int64_t step);

}  // namespace gpt
