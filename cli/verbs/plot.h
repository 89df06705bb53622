// SPDX-License-Identifier: Apache-2.0
//
// The picture of `varve stats --plot`: bytes by step, sharing by group of tensors, and codecs. It
// is one self-contained file that can be read without colour. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/sharing.h"
#include "varve/checkpoint.h"
#include "varve/store.h"

namespace varve::internal::cli {

struct PlotData {
  std::string title;
  std::vector<CheckpointInfo> checkpoints;  // in the order in which they were saved
  Sharing sharing;
  StoreStats stats;
};

std::string PlotSvg(const PlotData& data);
// The same as a page of HTML.
std::string PlotHtml(const PlotData& data);

// What one mark of the picture stands for: a checkpoint, or the mean of several consecutive ones.
struct PlotBin {
  std::string first;  // "5" or "exp@5"
  std::string last;   // the same as `first` when there is one checkpoint
  double logical_bytes = 0;
  double new_bytes = 0;
  double stored_bytes = 0;
};
inline constexpr size_t kMaxPlotBins = 200;
// Returns at most kMaxPlotBins bins, each of `*per_bin` checkpoints. The last may have fewer.
std::vector<PlotBin> BinCheckpoints(const std::vector<CheckpointInfo>& checkpoints,
                                    size_t* per_bin);

// An axis of bytes on which equal distances double the value. Zero has a place of its own.
class LogAxis {
 public:
  // `smallest` and `largest` are the extremes of the values that are not zero. The axis runs from
  // `zero_y`, the place of zero, up to `top_y`.
  LogAxis(double smallest, double largest, double zero_y, double top_y);

  double Place(double bytes) const;
  // Returns about eight powers of two at most.
  std::vector<double> Ticks() const;

 private:
  int low_ = 0;  // powers of two at both ends
  int high_ = 0;
  int step_ = 1;  // between two ticks
  double zero_y_;
  double bottom_y_;
  double top_y_;
};

}  // namespace varve::internal::cli
