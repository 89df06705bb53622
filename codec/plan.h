// SPDX-License-Identifier: Apache-2.0
//
// Decides from a small sample how a chunk is predicted. A plan steers only size and speed; any plan
// decodes to the same bytes.
//
//   Planner planner(DetectCpu());
//   if (LooksIncompressible(raw, dtype)) ...  // store it raw
//   planner.Look(raw, dtype);
//   Plan plan = planner.Keyframe();
//   Plan delta = planner.Delta(base);
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/entropy/estimate.h"
#include "codec/frame.h"
#include "codec/planes/class_kernel.h"
#include "codec/planes/layout.h"
#include "codec/planes/residual_kernel.h"

namespace varve {

struct Plan {
  Predictor predictor = Predictor::kKeyframe;
  TransformArgs transform;
  // Classes of the base's exponents; empty = no context.
  std::vector<uint8_t> thresholds;
  std::array<bool, kMaxPlanes> by_class{};       // planes that are coded class by class
  std::array<StreamCoder, kMaxPlanes> coders{};  // of the planes that are not
  std::array<std::array<StreamCoder, kMaxClasses>, kMaxPlanes> class_coders{};
  double estimated_bytes = 0;  // of the payload
};

// True when every plane of a small sample looks random. Costs a few microseconds.
bool LooksIncompressible(std::span<const std::byte> raw, DType dtype);

class Planner {
 public:
  explicit Planner(CpuLevel level) : level_(level) {}

  // Takes the sample of a chunk.
  void Look(std::span<const std::byte> raw, DType dtype);
  Plan Keyframe();
  // The best plan against a base of the same size and dtype, and all of them.
  Plan Delta(std::span<const std::byte> base);
  std::vector<Plan> Deltas(std::span<const std::byte> base);

 private:
  // The sample under a transform.
  struct Trial {
    std::vector<uint8_t> planes;
    std::array<Estimate, kMaxPlanes> estimates;
  };

  Plan Subtract();
  Plan Scaled(const Plan& subtract);
  // Reads the trial of Subtract().
  void AddContext(Plan* plan);
  // Transforms the sample and estimates each plane.
  void Evaluate(Plan* plan, Trial* trial);
  float FitScale();

  CpuLevel level_;
  DType dtype_ = DType::kU8;
  size_t unit_bytes_ = 1;
  size_t num_units_ = 0;     // of the chunk
  size_t sample_units_ = 0;  // of the sample
  std::vector<uint8_t> raw_;
  std::vector<uint8_t> base_;
  std::vector<uint8_t> residual_;
  Trial subtract_;
  Trial other_;  // of keyframes and scales, used only within Evaluate
};

}  // namespace varve
