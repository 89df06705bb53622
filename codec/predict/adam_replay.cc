// SPDX-License-Identifier: Apache-2.0
//
// Compiled with -ffp-contract=off: each formula rounds where it says, on every machine.
#include "codec/predict/adam_replay.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "codec/planes/float_environment.h"

// The fused formulas need these instructions, or a call a number.
#if VARVE_X86
#define VARVE_FMA_AVX2 [[gnu::target("avx2,fma")]]
#define VARVE_FMA_AVX512 [[gnu::target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]]
#else
#define VARVE_FMA_AVX2
#define VARVE_FMA_AVX512
#endif

namespace varve::internal {

namespace {

template <typename Loop, typename... Args>
void RunFmaPortable(Loop loop, Args... args) {
  loop(args...);
}
template <typename Loop, typename... Args>
VARVE_FMA_AVX2 void RunFmaAvx2(Loop loop, Args... args) {
  loop(args...);
}
template <typename Loop, typename... Args>
VARVE_FMA_AVX512 void RunFmaAvx512(Loop loop, Args... args) {
  loop(args...);
}
// As RunAt, with fused multiplications.
template <typename Loop, typename... Args>
void RunFmaAt(CpuLevel level, Loop loop, Args... args) {
  switch (level) {
    case CpuLevel::kAvx512:
      return RunFmaAvx512(loop, args...);
    case CpuLevel::kAvx2:
      return RunFmaAvx2(loop, args...);
    case CpuLevel::kPortable:
      return RunFmaPortable(loop, args...);
  }
}

VARVE_INLINE inline float Get(const uint8_t* from, size_t i) {
  float value;
  std::memcpy(&value, from + 4 * i, 4);
  return value;
}
// Machines disagree on the bits of a NaN.
VARVE_INLINE inline void SetNumber(uint8_t* to, size_t i, float value, float otherwise) {
  const float number = value == value ? value : otherwise;
  std::memcpy(to + 4 * i, &number, 4);
}

VARVE_INLINE inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
VARVE_INLINE inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// The constants that a loop needs, by value.
struct Constants {
  float beta1, rest1, beta2, rest2, decay, step_size, sqrt_bias2, eps, scale;
  float unrest1, unscale;  // what divides is multiplied
};

Constants ConstantsOf(const AdamRecipe& recipe) {
  return {recipe.beta1,
          recipe.rest1,
          recipe.beta2,
          recipe.rest2,
          recipe.decay,
          recipe.step_size,
          recipe.sqrt_bias2,
          recipe.eps,
          recipe.gradient_scale,
          1.0f / recipe.rest1,
          1.0f / recipe.gradient_scale};
}

// The gradient that made `after` of `before`, after its scale.
VARVE_INLINE inline float Recovered(float before, float after, const Constants& c) {
  return __builtin_fmaf(-c.beta1, before, after) * c.unrest1;
}

// The gradient before its scale, to the nearest BF16. It is in the upper half. There is one NaN.
VARVE_INLINE inline uint32_t Bf16Bits(float gradient, const Constants& c) {
  const float unscaled = gradient * c.unscale;
  const uint32_t bits = BitsOf(unscaled);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
  return unscaled == unscaled ? rounded : 0x7FC00000u;
}

template <bool kBf16>
VARVE_INLINE inline float Gradient(float before, float after, const Constants& c) {
  const float gradient = Recovered(before, after, c);
  return kBf16 ? FloatOf(Bf16Bits(gradient, c)) * c.scale : gradient;
}

template <MomentFormula kFormula>
VARVE_INLINE inline float NextMoment(float m, float g, const Constants& c) {
  switch (kFormula) {
    case MomentFormula::kSumFusedGradient:
      return __builtin_fmaf(c.rest1, g, c.beta1 * m);
    case MomentFormula::kLerpFused:
      return __builtin_fmaf(c.rest1, g - m, m);
    case MomentFormula::kLerp:
      return m + c.rest1 * (g - m);
    case MomentFormula::kSum:
      return c.beta1 * m + c.rest1 * g;
    case MomentFormula::kSumFusedMoment:
      return __builtin_fmaf(c.beta1, m, c.rest1 * g);
  }
}

template <SquareFormula kFormula>
VARVE_INLINE inline float NextSquare(float v, float g, const Constants& c) {
  switch (kFormula) {
    case SquareFormula::kFused:
      return __builtin_fmaf(c.rest2 * g, g, c.beta2 * v);
    case SquareFormula::kProduct:
      return c.beta2 * v + (c.rest2 * g) * g;
    case SquareFormula::kFusedSquare:
      return __builtin_fmaf(c.rest2, g * g, c.beta2 * v);
    case SquareFormula::kSquare:
      return c.beta2 * v + c.rest2 * (g * g);
    case SquareFormula::kFusedDecay:
      return __builtin_fmaf(c.beta2, v, c.rest2 * (g * g));
  }
}

// `kHasBias`: the square is not divided by 1.
template <WeightFormula kFormula, bool kHasBias>
VARVE_INLINE inline float NextWeight(float w, float m, float v, const Constants& c) {
  const float root = __builtin_sqrtf(v);
  const float divisor = (kHasBias ? root / c.sqrt_bias2 : root) + c.eps;
  const float decayed = c.decay * w;
  switch (kFormula) {
    case WeightFormula::kProduct:
      return decayed - (c.step_size * m) / divisor;
    case WeightFormula::kQuotient:
      return decayed - c.step_size * (m / divisor);
    case WeightFormula::kFused:
      return __builtin_fmaf(-c.step_size, m / divisor, decayed);
  }
}

template <MomentFormula kFormula>
void RunMoment(CpuLevel level, const Constants& c, In before, In gradient, size_t n, Out out) {
  RunFmaAt(
      level,
      [](In m_from, In g_from, size_t count, Constants k, Out to) VARVE_INLINE {
        for (size_t i = 0; i < count; ++i) {
          uint16_t bits;
          std::memcpy(&bits, g_from + 2 * i, 2);
          const float m = Get(m_from, i);
          const float g = FloatOf(static_cast<uint32_t>(bits) << 16) * k.scale;
          SetNumber(to, i, NextMoment<kFormula>(m, g, k), m);
        }
      },
      before, gradient, n, c, out);
}

template <SquareFormula kFormula, bool kBf16>
void RunSquare(CpuLevel level, const Constants& c, In before, In after, In square, size_t n,
               Out out) {
  RunFmaAt(
      level,
      [](In m0_from, In m1_from, In v_from, size_t count, Constants k, Out to) VARVE_INLINE {
        for (size_t i = 0; i < count; ++i) {
          const float g = Gradient<kBf16>(Get(m0_from, i), Get(m1_from, i), k);
          const float v = Get(v_from, i);
          SetNumber(to, i, NextSquare<kFormula>(v, g, k), v);
        }
      },
      before, after, square, n, c, out);
}

template <WeightFormula kFormula, bool kHasBias>
void RunWeight(CpuLevel level, const Constants& c, In moment, In square, In weight, size_t n,
               Out out) {
  RunFmaAt(
      level,
      [](In m_from, In v_from, In w_from, size_t count, Constants k, Out to) VARVE_INLINE {
        for (size_t i = 0; i < count; ++i) {
          const float w = Get(w_from, i);
          SetNumber(to, i, NextWeight<kFormula, kHasBias>(w, Get(m_from, i), Get(v_from, i), k), w);
        }
      },
      moment, square, weight, n, c, out);
}

template <SquareFormula kFormula>
void RunSquare(CpuLevel level, const AdamRecipe& recipe, In before, In after, In square, size_t n,
               Out out) {
  const Constants c = ConstantsOf(recipe);
  recipe.has_bf16_gradient ? RunSquare<kFormula, true>(level, c, before, after, square, n, out)
                           : RunSquare<kFormula, false>(level, c, before, after, square, n, out);
}

template <WeightFormula kFormula>
void RunWeight(CpuLevel level, const AdamRecipe& recipe, In moment, In square, In weight, size_t n,
               Out out) {
  const Constants c = ConstantsOf(recipe);
  recipe.sqrt_bias2 == 1.0f ? RunWeight<kFormula, false>(level, c, moment, square, weight, n, out)
                            : RunWeight<kFormula, true>(level, c, moment, square, weight, n, out);
}

// Calls run.operator()<formula>(). False: there is no such formula.
template <int kNumFormulas, typename Formula, typename Run>
bool RunFormula(Formula formula, const Run& run) {
  const auto try_all = [&]<int... kNumbers>(std::integer_sequence<int, kNumbers...>) {
    const auto try_one = [&]<Formula kFormula>() {
      if (formula != kFormula) return false;
      run.template operator()<kFormula>();
      return true;
    };
    return (try_one.template operator()<static_cast<Formula>(kNumbers)>() || ...);
  };
  return try_all(std::make_integer_sequence<int, kNumFormulas>());
}

// --- Fitting ---

constexpr size_t kSampleBytes = 16384;
constexpr size_t kRunBytes = 256;

// Some runs of neighbours, evenly spread over the chunk.
std::vector<std::byte> SampleOf(std::span<const std::byte> chunk) {
  if (chunk.size() <= kSampleBytes) return {chunk.begin(), chunk.end()};
  constexpr size_t kNumRuns = kSampleBytes / kRunBytes;
  std::vector<std::byte> sample;
  sample.reserve(kSampleBytes);
  for (size_t r = 0; r < kNumRuns; ++r) {
    const size_t at = (chunk.size() - kRunBytes) / 4 * r / (kNumRuns - 1) * 4;
    const auto run = chunk.subspan(at, kRunBytes);
    sample.insert(sample.end(), run.begin(), run.end());
  }
  return sample;
}

size_t CountDifferent(std::span<const std::byte> a, std::span<const std::byte> b) {
  size_t different = 0;
  for (size_t i = 0; i < a.size(); i += 4) {
    different += std::memcmp(a.data() + i, b.data() + i, 4) != 0 ? 1 : 0;
  }
  return different;
}

struct Sample {
  explicit Sample(const AdamState& state)
      : moment(SampleOf(state.moment)),
        square(SampleOf(state.square)),
        weight(SampleOf(state.weight)) {}
  std::vector<std::byte> moment, square, weight;
};

// Sets `*formula` to the one of `num_formulas` whose prediction differs least from `wanted`, and
// returns in how many elements it does.
template <typename Formula, typename Predict>
size_t ChooseFormula(int num_formulas, std::span<const std::byte> wanted, const Predict& predict,
                     Formula* formula) {
  std::vector<std::byte> out(wanted.size());
  size_t least = std::numeric_limits<size_t>::max();
  Formula best{};
  for (int i = 0; i < num_formulas && least > 0; ++i) {
    *formula = static_cast<Formula>(i);
    predict(std::span(out));
    const size_t different = CountDifferent(out, wanted);
    if (different >= least) continue;
    least = different;
    best = *formula;
  }
  *formula = best;
  return least;
}

AdamRecipe ConstantsOf(const AdamStep& step) {
  const auto t = static_cast<double>(step.number);
  AdamRecipe recipe;
  recipe.beta1 = static_cast<float>(step.beta1);
  recipe.rest1 = static_cast<float>(1 - step.beta1);
  recipe.beta2 = static_cast<float>(step.beta2);
  recipe.rest2 = static_cast<float>(1 - step.beta2);
  recipe.step_size = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, t)));
  recipe.sqrt_bias2 = static_cast<float>(std::sqrt(1 - std::pow(step.beta2, t)));
  recipe.eps = static_cast<float>(step.eps);
  recipe.gradient_scale = static_cast<float>(step.gradient_scale);
  return recipe;
}

}  // namespace

AdamRecipe FitAdam(const AdamStep& step, const AdamState& before, const AdamState& after,
                   CpuLevel level) {
  const DefaultFloatEnvironment environment;
  AdamRecipe recipe = ConstantsOf(step);
  const Sample from(before), to(after);
  std::vector<std::byte> gradient(from.moment.size() / 2);
  RecoverGradient(recipe, from.moment, to.moment, gradient, level);
  const size_t wrong_moments = ChooseFormula(
      kNumMomentFormulas, to.moment,
      [&](std::span<std::byte> out) { PredictMoment(recipe, from.moment, gradient, out, level); },
      &recipe.moment);
  // Parameters that take no part in a step have a gradient of 0, which is a BF16, too.
  recipe.has_bf16_gradient = 16 * wrong_moments < from.moment.size() / 4;
  ChooseFormula(
      kNumSquareFormulas, to.square,
      [&](std::span<std::byte> out) {
        PredictSquare(recipe, from.moment, to.moment, from.square, out, level);
      },
      &recipe.square);
  const auto choose_weight = [&] {
    return ChooseFormula(
        kNumWeightFormulas, to.weight,
        [&](std::span<std::byte> out) {
          PredictWeight(recipe, to.moment, to.square, from.weight, out, level);
        },
        &recipe.weight);
  };
  const size_t wrong_without_decay = choose_weight();
  const AdamRecipe undecayed = recipe;
  recipe.decay = static_cast<float>(1 - step.learning_rate * step.weight_decay);
  if (wrong_without_decay == 0 || choose_weight() >= wrong_without_decay) return undecayed;
  return recipe;
}

void PredictSquare(const AdamRecipe& recipe, std::span<const std::byte> moment_before,
                   std::span<const std::byte> moment, std::span<const std::byte> square_before,
                   std::span<std::byte> out, CpuLevel level) {
  assert(moment_before.size() == out.size() && moment.size() == out.size());
  assert(square_before.size() == out.size());
  const DefaultFloatEnvironment environment;
  const auto run = [&]<SquareFormula kFormula>() {
    RunSquare<kFormula>(level, recipe, Data(moment_before), Data(moment), Data(square_before),
                        out.size() / 4, Data(out));
  };
  if (RunFormula<kNumSquareFormulas>(recipe.square, run)) return;
  std::memcpy(out.data(), square_before.data(), out.size());
}

void PredictWeight(const AdamRecipe& recipe, std::span<const std::byte> moment,
                   std::span<const std::byte> square, std::span<const std::byte> weight_before,
                   std::span<std::byte> out, CpuLevel level) {
  assert(moment.size() == out.size() && square.size() == out.size());
  assert(weight_before.size() == out.size());
  const DefaultFloatEnvironment environment;
  const auto run = [&]<WeightFormula kFormula>() {
    RunWeight<kFormula>(level, recipe, Data(moment), Data(square), Data(weight_before),
                        out.size() / 4, Data(out));
  };
  if (RunFormula<kNumWeightFormulas>(recipe.weight, run)) return;
  std::memcpy(out.data(), weight_before.data(), out.size());
}

void RecoverGradient(const AdamRecipe& recipe, std::span<const std::byte> moment_before,
                     std::span<const std::byte> moment, std::span<std::byte> gradient,
                     CpuLevel level) {
  assert(moment_before.size() == 2 * gradient.size() && moment.size() == 2 * gradient.size());
  const DefaultFloatEnvironment environment;
  RunFmaAt(
      level,
      [](In m0_from, In m1_from, size_t count, Constants k, Out to) VARVE_INLINE {
        for (size_t i = 0; i < count; ++i) {
          const float g = Recovered(Get(m0_from, i), Get(m1_from, i), k);
          const auto bits = static_cast<uint16_t>(Bf16Bits(g, k) >> 16);
          std::memcpy(to + 2 * i, &bits, 2);
        }
      },
      Data(moment_before), Data(moment), gradient.size() / 2, ConstantsOf(recipe), Data(gradient));
}

void PredictMoment(const AdamRecipe& recipe, std::span<const std::byte> moment_before,
                   std::span<const std::byte> gradient, std::span<std::byte> out, CpuLevel level) {
  assert(moment_before.size() == out.size() && 2 * gradient.size() == out.size());
  const DefaultFloatEnvironment environment;
  const auto run = [&]<MomentFormula kFormula>() {
    RunMoment<kFormula>(level, ConstantsOf(recipe), Data(moment_before), Data(gradient),
                        out.size() / 4, Data(out));
  };
  if (RunFormula<kNumMomentFormulas>(recipe.moment, run)) return;
  std::memcpy(out.data(), moment_before.data(), out.size());
}

}  // namespace varve::internal
