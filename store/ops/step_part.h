// SPDX-License-Identifier: Apache-2.0
//
// What of a step can be read, when not all of it can. A value.
#pragma once

#include <string>
#include <vector>

#include "store/read/sharded_reader.h"

namespace varve::internal {

struct StepPart {
  std::vector<StoredShard> shards;  // of the kept tensors
  // Names, sorted. A tensor is kept when it can be read whole.
  std::vector<std::string> kept_tensors, lost_tensors;
  std::vector<std::string> items;  // that can be read
  bool has_progress = false;       // the save set one, and it can be read
  bool has_topology = false;
  std::vector<std::string> other_losses;  // what else of the step is lost, and why
};

}  // namespace varve::internal
