// SPDX-License-Identifier: Apache-2.0
#include "codec/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codec/planes/plane_kernel.h"

namespace varve::internal {

namespace {

// The sample: runs of neighbours, evenly spread over the chunk.
constexpr size_t kRunUnits = 64;
constexpr size_t kNumRuns = 32;
constexpr size_t kSampleUnits = kRunUnits * kNumRuns;
// The first look takes fewer runs, because it must cost next to nothing when the data is stored
// raw.
constexpr size_t kLookRuns = 8;
// The number of elements of the sample to which the scale is fitted.
constexpr size_t kFitUnits = 512;
// Classes smaller than this share are merged with their neighbour.
constexpr double kMinClassShare = 0.1;
// A plane is coded class by class when that saves this much of it.
constexpr double kMinClassGain = 0.02;

// Calls visit(first unit, units) for every run of the sample.
template <typename Visit>
void ForEachRun(size_t num_units, const Visit& visit) {
  if (num_units <= kSampleUnits) return visit(size_t{0}, num_units);
  const size_t last = num_units - kRunUnits;
  for (size_t r = 0; r < kNumRuns; ++r) visit(last * r / (kNumRuns - 1), kRunUnits);
}

void Gather(std::span<const std::byte> chunk, size_t unit_bytes, std::vector<uint8_t>* sample) {
  const size_t num_units = chunk.size() / unit_bytes;
  sample->resize(std::min(num_units, kSampleUnits) * unit_bytes);
  uint8_t* to = sample->data();
  ForEachRun(num_units, [&](size_t first, size_t count) {
    std::memcpy(to, chunk.data() + first * unit_bytes, count * unit_bytes);
    to += count * unit_bytes;
  });
}

// Finds class boundaries from the highest exponent down, and the share of each class in the sample.
std::vector<uint8_t> ChooseThresholds(const uint8_t* exponents, size_t n) {
  uint32_t counts[256] = {};
  for (size_t i = 0; i < n; ++i) ++counts[exponents[i]];
  const auto min_count = static_cast<uint32_t>(kMinClassShare * static_cast<double>(n)) + 1;
  std::vector<uint8_t> thresholds;
  uint32_t in_class = 0;
  uint32_t left = static_cast<uint32_t>(n);
  for (int e = 255; e > 0 && thresholds.size() + 1 < kMaxClasses; --e) {
    in_class += counts[e];
    left -= counts[e];
    if (in_class < min_count || left < min_count) continue;
    thresholds.push_back(static_cast<uint8_t>(e));
    in_class = 0;
  }
  return thresholds;
}

// Counts bits below the leading ones of the residuals of a scale.
uint64_t ResidualBits(CpuLevel level, float scale, const float* x, const float* base,
                      size_t count) {
  uint32_t residual[kFitUnits + 1];
  const TransformArgs args{
      .transform = Transform::kSubtractScale, .element_bytes = 4, .scale = scale};
  ForwardTransform(level, args, reinterpret_cast<const uint8_t*>(x),
                   reinterpret_cast<const uint8_t*>(base), count,
                   reinterpret_cast<uint8_t*>(residual));
  uint64_t bits = 0;
  for (size_t i = 0; i < count; ++i) bits += static_cast<uint64_t>(std::bit_width(residual[i]));
  return bits;
}

}  // namespace

bool LooksIncompressible(std::span<const std::byte> raw, DType dtype) {
  const size_t unit_bytes = UnitBytes(dtype);
  const size_t num_units = raw.size() / unit_bytes;
  if (num_units < kSampleUnits) return false;
  std::array<PlaneStats, kMaxPlanes> stats;
  const auto* const data = reinterpret_cast<const uint8_t*>(raw.data());
  const size_t last = num_units - kRunUnits;
  for (size_t run = 0; run < kLookRuns; ++run) {
    const uint8_t* const from = data + last * run / (kLookRuns - 1) * unit_bytes;
    for (size_t i = 0; i < kRunUnits; ++i) {
      for (size_t p = 0; p < unit_bytes; ++p) ++stats[p].counts[from[i * unit_bytes + p]];
    }
  }
  for (size_t p = 0; p < unit_bytes; ++p) {
    stats[p].total = kLookRuns * kRunUnits;
    if (!LooksRandom(stats[p])) return false;
  }
  return true;
}

void Planner::Look(std::span<const std::byte> raw, DType dtype, RansUse rans) {
  rans_ = rans;
  dtype_ = dtype;
  unit_bytes_ = UnitBytes(dtype);
  num_units_ = raw.size() / unit_bytes_;
  Gather(raw, unit_bytes_, &raw_);
  sample_units_ = raw_.size() / unit_bytes_;
}

Plan Planner::Keyframe() {
  Plan plan;
  plan.transform.element_bytes = unit_bytes_;
  if (IsSignedFloat(dtype_) && unit_bytes_ > 1) {
    // With one sign only, the plain layout keeps a bit more of the exponent in the top plane.
    uint8_t any = 0;
    uint8_t all = 0xFF;
    for (size_t i = unit_bytes_ - 1; i < raw_.size(); i += unit_bytes_) {
      any |= raw_[i];
      all &= raw_[i];
    }
    const bool one_sign = ((any ^ all) & 0x80) == 0;
    plan.transform.transform = one_sign ? Transform::kPlain : Transform::kRotate;
  }
  Evaluate(&plan, &other_);
  return plan;
}

Plan Planner::Delta(std::span<const std::byte> base, std::optional<float> scale) {
  Gather(base, unit_bytes_, &base_);
  Plan subtract = Subtract();
  if (scale == 1.0f) return subtract;
  if (scale.has_value()) return WithScale(std::move(subtract), *scale);
  if (dtype_ == DType::kF32) {
    Plan scaled = Scaled(subtract);
    if (scaled.estimated_bytes < 0.99 * subtract.estimated_bytes) return scaled;
  }
  AddContext(&subtract);
  return subtract;
}

std::vector<Plan> Planner::Deltas(std::span<const std::byte> base, std::optional<float> scale) {
  if (scale.has_value()) return {Delta(base, scale)};
  Gather(base, unit_bytes_, &base_);
  std::vector<Plan> plans = {Subtract()};
  AddContext(&plans[0]);
  if (dtype_ == DType::kF32) {
    Plan scaled = Scaled(Subtract());
    if (scaled.predictor == Predictor::kScaledDelta) plans.push_back(std::move(scaled));
  }
  return plans;
}

Plan Planner::Subtract() {
  Plan plan;
  plan.predictor = Predictor::kDelta;
  plan.transform.element_bytes = unit_bytes_;
  plan.transform.transform = IsSignedFloat(dtype_) ? Transform::kSubtractOrd : Transform::kSubtract;
  Evaluate(&plan, &subtract_);
  return plan;
}

Plan Planner::Scaled(const Plan& subtract) {
  const float fitted = FitScale();
  // Decay rates are round numbers, which predict best. A sample only comes near to them: from above
  // when what is added to the moment is positive.
  const float candidates[] = {fitted, std::floor(fitted * 100.0f) / 100.0f,
                              std::round(fitted * 1000.0f) / 1000.0f};
  Plan best = subtract;
  for (const float scale : candidates) {
    if (scale == 1.0f || !(scale > 0.0f) || scale == best.transform.scale) continue;
    Plan plan = WithScale(subtract, scale);
    if (plan.estimated_bytes < best.estimated_bytes) best = plan;
  }
  return best;
}

Plan Planner::WithScale(Plan subtract, float scale) {
  subtract.predictor = Predictor::kScaledDelta;
  subtract.transform.transform = Transform::kSubtractScale;
  subtract.transform.scale = scale;
  Evaluate(&subtract, &other_);
  return subtract;
}

float Planner::FitScale() {
  const size_t step = std::max<size_t>(1, sample_units_ / kFitUnits);
  std::array<float, kFitUnits + 1> values{};
  std::array<float, kFitUnits + 1> bases{};
  std::array<float, kFitUnits + 1> ratios{};
  size_t count = 0;
  size_t num_ratios = 0;
  for (size_t i = 0; i < sample_units_ && count < values.size(); i += step, ++count) {
    std::memcpy(&values[count], &raw_[4 * i], 4);
    std::memcpy(&bases[count], &base_[4 * i], 4);
    const float ratio = values[count] / bases[count];
    if (std::isfinite(ratio) && ratio > 1e-3f && ratio < 1e3f) ratios[num_ratios++] = ratio;
  }
  if (4 * num_ratios < count) return 1.0f;
  // The scale of a decayed moment is at the low edge of the ratios when what is added is positive.
  // It is in their middle when that has either sign.
  float best = 1.0f;
  uint64_t best_bits = ResidualBits(level_, best, values.data(), bases.data(), count);
  auto sorted = ratios.begin();
  const auto end = sorted + static_cast<ptrdiff_t>(num_ratios);
  for (const double quantile : {0.01, 0.03, 0.08, 0.2, 0.5, 0.75}) {
    const auto at =
        ratios.begin() + static_cast<ptrdiff_t>(quantile * static_cast<double>(num_ratios));
    std::nth_element(sorted, at, end);
    sorted = at;
    const uint64_t bits = ResidualBits(level_, *at, values.data(), bases.data(), count);
    if (bits < best_bits) best = *at;
    best_bits = std::min(best_bits, bits);
  }
  return best;
}

void Planner::Evaluate(Plan* plan, Trial* trial) {
  residual_.resize(raw_.size());
  trial->planes.resize(raw_.size());
  ForwardTransform(level_, plan->transform, raw_.data(), base_.data(), sample_units_,
                   residual_.data());
  uint8_t* planes[kMaxPlanes];
  for (size_t p = 0; p < unit_bytes_; ++p) planes[p] = trial->planes.data() + p * sample_units_;
  SplitPlanes(level_, residual_.data(), sample_units_, std::span(planes, unit_bytes_));
  double bits = 0;
  for (size_t p = 0; p < unit_bytes_; ++p) {
    PlaneStats stats;
    AddSample(planes[p], sample_units_, &stats);
    // When the whole sample looks random, no coder gains anything.
    const bool random = sample_units_ == kSampleUnits && LooksRandom(stats);
    trial->estimates[p] = random ? Estimate{} : EstimateStream(stats, num_units_, rans_);
    plan->coders[p] = trial->estimates[p].coder;
    bits += trial->estimates[p].bits;
  }
  plan->estimated_bytes = bits / 8.0 * static_cast<double>(num_units_);
}

void Planner::AddContext(Plan* plan) {
  const std::optional<ExponentField> field = ContextField(dtype_);
  if (!field || sample_units_ < kSampleUnits) return;
  std::vector<uint8_t> classes(sample_units_);
  ExtractExponents(level_, *field, base_.data(), sample_units_, classes.data());
  std::vector<uint8_t> thresholds = ChooseThresholds(classes.data(), sample_units_);
  if (thresholds.empty()) return;
  std::array<size_t, kMaxClasses> counts;
  ClassifyExponents(level_, thresholds, classes.data(), sample_units_, &counts);
  const double scale = static_cast<double>(num_units_) / static_cast<double>(sample_units_);
  bool any = false;
  for (size_t p = 0; p < unit_bytes_; ++p) {
    if (subtract_.estimates[p].coder == StreamCoder::kConstant) continue;
    std::array<PlaneStats, kMaxClasses> stats{};
    const uint8_t* const plane = subtract_.planes.data() + p * sample_units_;
    for (size_t i = 0; i < sample_units_; ++i) {
      ++stats[classes[i]].counts[plane[i]];
    }
    double bits = 0;
    for (size_t c = 0; c <= thresholds.size(); ++c) {
      const auto class_units = static_cast<double>(counts[c]) * scale;
      stats[c].total = static_cast<uint32_t>(counts[c]);
      // Neighbours are unknown inside a class, so zeros are taken as independent.
      const double p0 = stats[c].counts[0] / std::max(1.0, static_cast<double>(stats[c].total));
      stats[c].groups = 1000;
      stats[c].zero_groups = static_cast<uint32_t>(1000 * std::pow(p0, 8));
      // To an entropy, a sample of random bytes looks compressible when it is as small as that of a
      // class.
      const Estimate estimate =
          LooksRandom(stats[c]) ? Estimate{}
                                : EstimateStream(stats[c], static_cast<size_t>(class_units), rans_);
      plan->class_coders[p][c] = estimate.coder;
      bits += estimate.bits * class_units;
    }
    bits /= static_cast<double>(num_units_);
    if (bits >= (1.0 - kMinClassGain) * subtract_.estimates[p].bits) continue;
    plan->by_class[p] = any = true;
    plan->estimated_bytes -=
        (subtract_.estimates[p].bits - bits) / 8.0 * static_cast<double>(num_units_);
  }
  if (any) plan->thresholds = std::move(thresholds);
}

}  // namespace varve::internal
