// SPDX-License-Identifier: Apache-2.0
//
// Decides from a small sample how a chunk is predicted. A plan steers only size and speed. Every
// plan decodes to the same bytes.
//
//   Planner planner(DetectCpu());
//   if (LooksIncompressible(raw, dtype)) ...  // store it raw
//   planner.Look(raw, dtype, RansUse::kNever);
//   Plan plan = planner.Keyframe();
//   Plan delta = planner.Delta(base);
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/entropy/estimate.h"
#include "codec/frame.h"
#include "codec/planes/class_kernel.h"
#include "codec/planes/layout.h"
#include "codec/planes/residual_kernel.h"

namespace varve::internal {

struct Plan {
  Predictor predictor = Predictor::kKeyframe;
  TransformArgs transform;
  // Thresholds between the classes of the base's exponents. Empty = no context.
  std::vector<uint8_t> thresholds;
  std::array<bool, kMaxPlanes> by_class{};       // planes that are coded class by class
  std::array<StreamCoder, kMaxPlanes> coders{};  // coders of the other planes
  std::array<std::array<StreamCoder, kMaxClasses>, kMaxPlanes> class_coders{};
  double estimated_bytes = 0;  // of the payload
};

// True when every plane of a small sample looks random. Costs a few microseconds.
bool LooksIncompressible(std::span<const std::byte> raw, DType dtype);

class Planner {
 public:
  explicit Planner(CpuLevel level) : level_(level) {}

  // Takes a sample of the chunk. `rans` says how much rANS streams are wanted.
  void Look(std::span<const std::byte> raw, DType dtype, RansUse rans);
  Plan Keyframe();
  // Delta returns the best plan against a base of the same size and dtype. With a scale it returns
  // the plan of that scale. Deltas returns all plans.
  Plan Delta(std::span<const std::byte> base, std::optional<float> scale);
  std::vector<Plan> Deltas(std::span<const std::byte> base, std::optional<float> scale);

 private:
  // The sample after a transform.
  struct Trial {
    std::vector<uint8_t> planes;
    std::array<Estimate, kMaxPlanes> estimates;
  };

  Plan Subtract();
  Plan WithScale(Plan subtract, float scale);
  Plan Scaled(const Plan& subtract);
  // Uses the trial that Subtract() made.
  void AddContext(Plan* plan);
  // Transforms the sample and estimates each plane.
  void Evaluate(Plan* plan, Trial* trial);
  float FitScale();

  CpuLevel level_;
  DType dtype_ = DType::kU8;
  RansUse rans_ = RansUse::kNever;
  size_t unit_bytes_ = 1;
  size_t num_units_ = 0;     // of the chunk
  size_t sample_units_ = 0;  // of the sample
  std::vector<uint8_t> raw_;
  std::vector<uint8_t> base_;
  std::vector<uint8_t> residual_;
  Trial subtract_;
  Trial other_;  // for keyframes and scales, used only within Evaluate
};

}  // namespace varve::internal
