// SPDX-License-Identifier: Apache-2.0
#include "gpt/layers.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "gpt/parallel.h"

namespace gpt {
namespace {

constexpr int64_t kRowBlock = 64;          // rows of one task of a matrix product
constexpr int64_t kColumnBlock = 64;       // columns of one task of a sum over rows
constexpr int64_t kElementBlock = 16'384;  // elements of one task of an element-wise layer

template <typename Real>
using Dense = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A rows x cols window of a row-major tensor whose rows are `stride` elements apart. Eigen only
// multiplies here. Its sums depend on the alignment of their input, but its matrix products do not.
template <typename Real>
using Window = Eigen::Map<Dense<Real>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <typename Real>
using ConstWindow = Eigen::Map<const Dense<Real>, Eigen::Unaligned, Eigen::OuterStride<>>;

template <typename Real>
Window<Real> View(Real* data, int64_t rows, int64_t cols, int64_t stride) {
  return {data, rows, cols, Eigen::OuterStride<>(stride)};
}
template <typename Real>
ConstWindow<Real> View(const Real* data, int64_t rows, int64_t cols, int64_t stride) {
  return {data, rows, cols, Eigen::OuterStride<>(stride)};
}

template <typename Real>
Real Dot(const Real* a, const Real* b, int64_t n) {
  Real sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Turns n scores into probabilities. `out` may be `scores`. Returns log(sum of exp(score)). A loss
// from that stays finite where its probability is too small for Real.
template <typename Real>
Real Softmax(Real* out, const Real* scores, int64_t n) {
  const Real max = *std::max_element(scores, scores + n);
  Real sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = std::exp(scores[i] - max);
    sum += out[i];
  }
  for (int64_t i = 0; i < n; ++i) out[i] /= sum;
  return max + std::log(sum);
}

// sums[c] += sum over rows of value(n, c): each column is summed by one task, from the top down.
template <typename Real, typename Value>
void AddColumnSums(Real* sums, int64_t N, int64_t C, const Value& value) {
  ParallelBlocks(C, kColumnBlock, [&](int64_t begin, int64_t end) {
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t c = begin; c < end; ++c) sums[c] += value(n, c);
    }
  });
}

// One head of one sequence, as windows into the fused (N, 3C) tensor.
template <typename Matrix>
struct Head {
  Matrix q, k, v;  // (T, HS)
};
template <typename Real>
auto HeadOf(Real* qkv, int64_t b, int64_t h, int64_t T, int64_t C, int64_t NH) {
  const int64_t head_size = C / NH;
  Real* q = qkv + b * T * 3 * C + h * head_size;
  const auto part = [&](int64_t i) { return View(q + i * C, T, head_size, 3 * C); };
  return Head<decltype(part(0))>{part(0), part(1), part(2)};
}

// Calls body(b, h) for every head of every sequence.
template <typename Body>
void ForEachHead(int64_t B, int64_t NH, const Body& body) {
  ParallelBlocks(B * NH, 1, [&](int64_t i, int64_t) { body(i / NH, i % NH); });
}

template <typename Real>
Real AttentionScale(int64_t C, int64_t NH) {
  const int64_t head_size = C / NH;
  return Real{1} / std::sqrt(static_cast<Real>(head_size));
}

}  // namespace

template <typename Real>
void EmbeddingForward(Real* out, const uint8_t* tokens, const Real* wte, const Real* wpe,
                      Range words, int64_t B, int64_t T, int64_t C) {
  const auto row = [&](int64_t n) {
    const int64_t word = tokens[n] - words.begin;
    const bool is_here = word >= 0 && word < words.size();
    for (int64_t c = 0; c < C; ++c) {
      const Real token = is_here ? wte[word * C + c] : Real{0};
      out[n * C + c] = wpe == nullptr ? token : token + wpe[n % T * C + c];
    }
  };
  ParallelBlocks(B * T, kRowBlock, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) row(n);
  });
}

template <typename Real>
void EmbeddingBackward(Real* dwte, Real* dwpe, const Real* dout, const uint8_t* tokens, Range words,
                       int64_t B, int64_t T, int64_t C) {
  // A token may stand in many rows: each task owns columns, so that no two add to one element.
  ParallelBlocks(C, kColumnBlock, [&](int64_t begin, int64_t end) {
    for (int64_t n = 0; n < B * T; ++n) {
      const int64_t word = tokens[n] - words.begin;
      const bool is_here = word >= 0 && word < words.size();
      for (int64_t c = begin; c < end; ++c) {
        if (is_here) dwte[word * C + c] += dout[n * C + c];
        dwpe[n % T * C + c] += dout[n * C + c];
      }
    }
  });
}

template <typename Real>
void LayerNormForward(Real* out, Real* mean, Real* rstd, const Real* inp, const Real* weight,
                      const Real* bias, int64_t N, int64_t C) {
  constexpr Real kEpsilon = static_cast<Real>(1e-5);
  const auto row = [&](int64_t n) {
    const Real* x = inp + n * C;
    Real sum = 0, square_sum = 0;
    for (int64_t c = 0; c < C; ++c) sum += x[c];
    const Real m = sum / static_cast<Real>(C);
    for (int64_t c = 0; c < C; ++c) square_sum += (x[c] - m) * (x[c] - m);
    const Real s = Real{1} / std::sqrt(square_sum / static_cast<Real>(C) + kEpsilon);
    for (int64_t c = 0; c < C; ++c) out[n * C + c] = (x[c] - m) * s * weight[c] + bias[c];
    mean[n] = m;
    rstd[n] = s;
  };
  ParallelBlocks(N, kRowBlock, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) row(n);
  });
}

template <typename Real>
void LayerNormBackward(Real* dinp, Real* dweight, Real* dbias, const Real* dout, const Real* inp,
                       const Real* weight, const Real* mean, const Real* rstd, int64_t N,
                       int64_t C) {
  // With x^ = (x - mean) * rstd and g = dout * weight, the chain rule through mean and rstd gives
  // dx = rstd * (g - average(g) - x^ * average(g * x^)).
  const auto normed = [&](int64_t n, int64_t c) { return (inp[n * C + c] - mean[n]) * rstd[n]; };
  const auto row = [&](int64_t n) {
    Real g_sum = 0, g_normed_sum = 0;
    for (int64_t c = 0; c < C; ++c) {
      const Real g = dout[n * C + c] * weight[c];
      g_sum += g;
      g_normed_sum += g * normed(n, c);
    }
    for (int64_t c = 0; c < C; ++c) {
      const Real g = dout[n * C + c] * weight[c];
      const Real shift = (g_sum + normed(n, c) * g_normed_sum) / static_cast<Real>(C);
      dinp[n * C + c] += rstd[n] * (g - shift);
    }
  };
  ParallelBlocks(N, kRowBlock, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) row(n);
  });
  AddColumnSums(dbias, N, C, [&](int64_t n, int64_t c) { return dout[n * C + c]; });
  AddColumnSums(dweight, N, C,
                [&](int64_t n, int64_t c) { return dout[n * C + c] * normed(n, c); });
}

template <typename Real>
void LinearForward(Real* out, const Real* inp, const Real* weight, const Real* bias, int64_t N,
                   int64_t C, int64_t OC) {
  ParallelBlocks(N, kRowBlock, [&](int64_t begin, int64_t end) {
    auto block = View(out + begin * OC, end - begin, OC, OC);
    block.noalias() = View(inp + begin * C, end - begin, C, C) * View(weight, OC, C, C).transpose();
    if (bias == nullptr) return;
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t o = 0; o < OC; ++o) out[n * OC + o] += bias[o];
    }
  });
}

template <typename Real>
void LinearBackward(Real* dinp, Real* dweight, Real* dbias, const Real* dout, const Real* inp,
                    const Real* weight, int64_t N, int64_t C, int64_t OC) {
  ParallelBlocks(N, kRowBlock, [&](int64_t begin, int64_t end) {
    View(dinp + begin * C, end - begin, C, C).noalias() +=
        View(dout + begin * OC, end - begin, OC, OC) * View(weight, OC, C, C);
  });
  ParallelBlocks(OC, kRowBlock, [&](int64_t begin, int64_t end) {
    View(dweight + begin * C, end - begin, C, C).noalias() +=
        View(dout + begin, N, end - begin, OC).transpose() * View(inp, N, C, C);
  });
  if (dbias == nullptr) return;
  AddColumnSums(dbias, N, OC, [&](int64_t n, int64_t o) { return dout[n * OC + o]; });
}

template <typename Real>
void AttentionForward(Real* out, Real* att, const Real* qkv, int64_t B, int64_t T, int64_t C,
                      int64_t NH) {
  const Real scale = AttentionScale<Real>(C, NH);
  ForEachHead(B, NH, [&](int64_t b, int64_t h) {
    const auto head = HeadOf(qkv, b, h, T, C, NH);
    auto probs = View(att + (b * NH + h) * T * T, T, T, T);  // (T, T)
    probs.noalias() = head.q * head.k.transpose() * scale;
    for (int64_t t = 0; t < T; ++t) {  // a token sees itself and those before it
      Real* row = probs.data() + t * T;
      Softmax(row, row, t + 1);
      std::fill(row + t + 1, row + T, Real{0});
    }
    View(out + b * T * C + h * (C / NH), T, C / NH, C).noalias() = probs * head.v;
  });
}

template <typename Real>
void AttentionBackward(Real* dqkv, const Real* dout, const Real* qkv, const Real* att, int64_t B,
                       int64_t T, int64_t C, int64_t NH) {
  const Real scale = AttentionScale<Real>(C, NH);
  ForEachHead(B, NH, [&](int64_t b, int64_t h) {
    const auto head = HeadOf(qkv, b, h, T, C, NH);
    auto dhead = HeadOf(dqkv, b, h, T, C, NH);
    const auto probs = View(att + (b * NH + h) * T * T, T, T, T);         // (T, T)
    const auto dy = View(dout + b * T * C + h * (C / NH), T, C / NH, C);  // (T, HS)
    dhead.v.noalias() += probs.transpose() * dy;
    Dense<Real> dscores(T, T);
    dscores.noalias() = dy * head.v.transpose();
    for (int64_t t = 0; t < T; ++t) {  // through the softmax. Masked scores have probability 0
      const Real* p = probs.data() + t * T;
      Real* d = dscores.data() + t * T;
      const Real mean = Dot(p, d, t + 1);
      for (int64_t i = 0; i < T; ++i) d[i] = p[i] * (d[i] - mean);
    }
    dhead.q.noalias() += dscores * head.k * scale;
    dhead.k.noalias() += dscores.transpose() * head.q * scale;
  });
}

namespace {

// GELU(x) = x/2 * (1 + tanh(u)), u = kGeluScale * (x + kGeluCubic * x^3)
template <typename Real>
constexpr Real kGeluScale = static_cast<Real>(0.79788456080286535588);  // sqrt(2 / pi)
template <typename Real>
constexpr Real kGeluCubic = static_cast<Real>(0.044715);

template <typename Real>
Real GeluTanh(Real x) {
  return std::tanh(kGeluScale<Real> * (x + kGeluCubic<Real> * x * x * x));
}

template <typename Real>
Real GeluSlope(Real x) {
  const Real t = GeluTanh(x);
  const Real du = kGeluScale<Real> * (1 + 3 * kGeluCubic<Real> * x * x);
  return (1 + t + x * (1 - t * t) * du) / 2;
}

}  // namespace

template <typename Real>
void GeluForward(Real* out, const Real* inp, int64_t size) {
  ParallelBlocks(size, kElementBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = inp[i] * (1 + GeluTanh(inp[i])) / 2;
  });
}

template <typename Real>
void GeluBackward(Real* dinp, const Real* dout, const Real* inp, int64_t size) {
  ParallelBlocks(size, kElementBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) dinp[i] += dout[i] * GeluSlope(inp[i]);
  });
}

template <typename Real>
void ResidualForward(Real* out, const Real* a, const Real* b, int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] = a[i] + b[i];
}

template <typename Real>
void CrossEntropyForward(Real* losses, Real* probs, const Real* logits, const uint8_t* targets,
                         int64_t N, int64_t V) {
  ParallelBlocks(N, kRowBlock, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      losses[n] = Softmax(probs + n * V, logits + n * V, V) - logits[n * V + targets[n]];
    }
  });
}

template <typename Real>
void CrossEntropyBackward(Real* dlogits, const Real* probs, const uint8_t* targets, Real dloss,
                          int64_t N, int64_t V) {
  ParallelBlocks(N, kRowBlock, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t v = 0; v < V; ++v) {
        const Real hit = v == targets[n] ? Real{1} : Real{0};
        dlogits[n * V + v] += (probs[n * V + v] - hit) * dloss;
      }
    }
  });
}

#define GPT_INSTANTIATE_LAYERS(Real)                                                              \
  template void EmbeddingForward(Real*, const uint8_t*, const Real*, const Real*, Range, int64_t, \
                                 int64_t, int64_t);                                               \
  template void EmbeddingBackward(Real*, Real*, const Real*, const uint8_t*, Range, int64_t,      \
                                  int64_t, int64_t);                                              \
  template void LayerNormForward(Real*, Real*, Real*, const Real*, const Real*, const Real*,      \
                                 int64_t, int64_t);                                               \
  template void LayerNormBackward(Real*, Real*, Real*, const Real*, const Real*, const Real*,     \
                                  const Real*, const Real*, int64_t, int64_t);                    \
  template void LinearForward(Real*, const Real*, const Real*, const Real*, int64_t, int64_t,     \
                              int64_t);                                                           \
  template void LinearBackward(Real*, Real*, Real*, const Real*, const Real*, const Real*,        \
                               int64_t, int64_t, int64_t);                                        \
  template void AttentionForward(Real*, Real*, const Real*, int64_t, int64_t, int64_t, int64_t);  \
  template void AttentionBackward(Real*, const Real*, const Real*, const Real*, int64_t, int64_t, \
                                  int64_t, int64_t);                                              \
  template void GeluForward(Real*, const Real*, int64_t);                                         \
  template void GeluBackward(Real*, const Real*, const Real*, int64_t);                           \
  template void ResidualForward(Real*, const Real*, const Real*, int64_t);                        \
  template void CrossEntropyForward(Real*, Real*, const Real*, const uint8_t*, int64_t, int64_t); \
  template void CrossEntropyBackward(Real*, const Real*, const uint8_t*, Real, int64_t, int64_t);
GPT_INSTANTIATE_LAYERS(float)
GPT_INSTANTIATE_LAYERS(double)
#undef GPT_INSTANTIATE_LAYERS

}  // namespace gpt
