// SPDX-License-Identifier: Apache-2.0
//
// Totals of the live frames of many saves, by predictor and by plane coder, and the rows in which
// reports show them. Thread rule: one thread at a time.
#pragma once

#include <vector>

#include "store/format/record.h"
#include "varve/checkpoint.h"

namespace varve::internal {

class FrameTotals {
 public:
  void Add(const SaveRecord& save_id);

  // Leaves out empty rows.
  std::vector<CodecUse> CodecRows() const;
  std::vector<CoderUse> CoderRows() const;

 private:
  PredictorTotals by_codec_{};
  CoderTotals by_coder_{};
  CodecTotals headers_;  // bytes only
  CodecTotals unknown_;  // frames of saves whose planes are unknown
};

}  // namespace varve::internal
