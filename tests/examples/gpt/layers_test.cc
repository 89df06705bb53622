// SPDX-License-Identifier: Apache-2.0
//
// Tests every layer: its backward pass against finite differences of its forward pass, and that
// backward passes add to what is there. The loss of a layer is a random weighted sum of its output.
#include "gpt/layers.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/examples/gpt/finite_difference.h"

namespace gpt {
namespace {

using Values = std::vector<double>;

// Gradients start from this and not from 0, which shows that backward passes add.
constexpr double kStart = 0.5;
Values StartedLike(const Values& values) { return Values(values.size(), kStart); }
Values WithoutStart(Values gradient) {
  for (double& g : gradient) g -= kStart;
  return gradient;
}

class LayersTest : public testing::Test {
 protected:
  Values Random(int64_t size) { return RandomValues(size, &rng_); }
  std::mt19937_64 rng_{7};
};

TEST_F(LayersTest, EmbeddingGradient) {
  const int B = 2, T = 3, C = 5, V = 4;
  const std::vector<uint8_t> tokens = {0, 3, 3, 1, 0, 3};  // 2 never stands, 3 three times
  Values wte = Random(V * C), wpe = Random(T * C), out(B * T * C), dout = Random(B * T * C);
  const auto loss = [&] {
    EmbeddingForward(out.data(), tokens.data(), wte.data(), wpe.data(), {0, V}, B, T, C);
    return WeightedSum(out, dout);
  };
  Values dwte = StartedLike(wte), dwpe = StartedLike(wpe);
  EmbeddingBackward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), {0, V}, B, T, C);
  ExpectGradient("wte", wte, WithoutStart(dwte), loss);
  ExpectGradient("wpe", wpe, WithoutStart(dwpe), loss);
}

TEST_F(LayersTest, LayerNormNormalisesEachRow) {
  const int N = 3, C = 70;
  Values inp = Random(N * C), weight(C, 1.0), bias(C, 0.0), out(N * C), mean(N), rstd(N);
  LayerNormForward(out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N,
                   C);
  for (int n = 0; n < N; ++n) {
    const auto row = out.begin() + n * C;
    EXPECT_NEAR(std::accumulate(row, row + C, 0.0), 0, 1e-9);
    EXPECT_NEAR(std::inner_product(row, row + C, row, 0.0) / C, 1, 1e-4);  // epsilon is 1e-5
  }
}

TEST_F(LayersTest, LayerNormGradient) {
  const int N = 4, C = 70;  // more columns than one block of a column sum
  Values inp = Random(N * C), weight = Random(C), bias = Random(C);
  Values out(N * C), mean(N), rstd(N), dout = Random(N * C);
  const auto loss = [&] {
    LayerNormForward(out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(),
                     N, C);
    return WeightedSum(out, dout);
  };
  loss();
  Values dinp = StartedLike(inp), dweight = StartedLike(weight), dbias = StartedLike(bias);
  LayerNormBackward(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(),
                    weight.data(), mean.data(), rstd.data(), N, C);
  ExpectGradient("inp", inp, WithoutStart(dinp), loss);
  ExpectGradient("weight", weight, WithoutStart(dweight), loss);
  ExpectGradient("bias", bias, WithoutStart(dbias), loss);
}

// Rows, channels and output channels: tiny, and just past one block of rows.
struct LinearShape {
  int N, C, OC;
};
class LinearTest : public LayersTest, public testing::WithParamInterface<LinearShape> {};

TEST_P(LinearTest, MatchesThreeLoops) {
  const auto [N, C, OC] = GetParam();
  const Values inp = Random(N * C), weight = Random(OC * C), bias = Random(OC);
  Values out(N * OC);
  LinearForward(out.data(), inp.data(), weight.data(), bias.data(), N, C, OC);
  for (int n = 0; n < N; ++n) {
    for (int o = 0; o < OC; ++o) {
      double sum = bias[o];
      for (int c = 0; c < C; ++c) sum += inp[n * C + c] * weight[o * C + c];
      EXPECT_NEAR(out[n * OC + o], sum, 1e-12);
    }
  }
}

TEST_P(LinearTest, Gradient) {
  const auto [N, C, OC] = GetParam();
  Values inp = Random(N * C), weight = Random(OC * C), bias = Random(OC);
  Values out(N * OC), dout = Random(N * OC);
  const int n_rows = N, channels = C, out_channels = OC;  // a lambda cannot capture bindings
  const auto loss = [&] {
    LinearForward(out.data(), inp.data(), weight.data(), bias.data(), n_rows, channels,
                  out_channels);
    return WeightedSum(out, dout);
  };
  Values dinp = StartedLike(inp), dweight = StartedLike(weight), dbias = StartedLike(bias);
  LinearBackward(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), weight.data(),
                 N, C, OC);
  ExpectGradient("inp", inp, WithoutStart(dinp), loss);
  ExpectGradient("weight", weight, WithoutStart(dweight), loss);
  ExpectGradient("bias", bias, WithoutStart(dbias), loss);
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearTest,
                         testing::Values(LinearShape{1, 1, 1}, LinearShape{3, 5, 4},
                                         LinearShape{65, 6, 7}, LinearShape{5, 6, 65}));

TEST_F(LayersTest, LinearWithoutBias) {
  const int N = 2, C = 3, OC = 4;
  const Values inp = Random(N * C), weight = Random(OC * C), zero(OC, 0.0);
  Values with(N * OC), without(N * OC);
  LinearForward(with.data(), inp.data(), weight.data(), zero.data(), N, C, OC);
  LinearForward<double>(without.data(), inp.data(), weight.data(), nullptr, N, C, OC);
  EXPECT_EQ(with, without);
}

TEST_F(LayersTest, AttentionSeesNoLaterToken) {
  const int B = 2, T = 5, C = 6, NH = 2;
  Values qkv = Random(B * T * 3 * C), out(B * T * C), att(B * NH * T * T);
  AttentionForward(out.data(), att.data(), qkv.data(), B, T, C, NH);
  const Values before = out;
  const int changed = 3;  // of the first sequence
  for (int i = 0; i < 3 * C; ++i) qkv[changed * 3 * C + i] += 1;
  AttentionForward(out.data(), att.data(), qkv.data(), B, T, C, NH);
  const auto same = [&](int row) {
    return std::equal(&out[row * C], &out[(row + 1) * C], &before[row * C]);
  };
  for (int row = 0; row < B * T; ++row) {
    EXPECT_EQ(same(row), row < changed || row >= T) << "row " << row;
  }
}

TEST_F(LayersTest, AttentionGradient) {
  const int B = 2, T = 5, C = 6, NH = 2;
  Values qkv = Random(B * T * 3 * C), out(B * T * C), att(B * NH * T * T), dout = Random(B * T * C);
  const auto loss = [&] {
    AttentionForward(out.data(), att.data(), qkv.data(), B, T, C, NH);
    return WeightedSum(out, dout);
  };
  loss();
  Values dqkv = StartedLike(qkv);
  AttentionBackward(dqkv.data(), dout.data(), qkv.data(), att.data(), B, T, C, NH);
  ExpectGradient("qkv", qkv, WithoutStart(dqkv), loss);
}

TEST_F(LayersTest, GeluValues) {
  const Values inp = {-10, -1, 0, 1, 10};
  Values out(inp.size());
  GeluForward(out.data(), inp.data(), static_cast<int64_t>(inp.size()));
  const Values expected = {0, -0.158808, 0, 0.841192, 10};  // of PyTorch's approximate="tanh"
  for (size_t i = 0; i < inp.size(); ++i) EXPECT_NEAR(out[i], expected[i], 1e-6);
}

TEST_F(LayersTest, GeluGradient) {
  Values inp = Random(40), out(40), dout = Random(40);
  const auto loss = [&] {
    GeluForward(out.data(), inp.data(), 40);
    return WeightedSum(out, dout);
  };
  Values dinp = StartedLike(inp);
  GeluBackward(dinp.data(), dout.data(), inp.data(), 40);
  ExpectGradient("inp", inp, WithoutStart(dinp), loss);
}

TEST_F(LayersTest, ResidualAdds) {
  const Values a = {1, 2}, b = {3, 5};
  Values out(2);
  ResidualForward(out.data(), a.data(), b.data(), 2);
  EXPECT_EQ(out, (Values{4, 7}));
}

TEST_F(LayersTest, CrossEntropyGradient) {
  const int N = 3, V = 6;
  const std::vector<uint8_t> targets = {0, 5, 2};
  const double dloss = 1.0 / N;
  Values logits = Random(N * V), losses(N), probs(N * V);
  const auto loss = [&] {
    CrossEntropyForward(losses.data(), probs.data(), logits.data(), targets.data(), N, V);
    return WeightedSum(losses, Values(N, dloss));
  };
  loss();
  Values dlogits = StartedLike(logits);
  CrossEntropyBackward(dlogits.data(), probs.data(), targets.data(), dloss, N, V);
  ExpectGradient("logits", logits, WithoutStart(dlogits), loss);
}

TEST_F(LayersTest, CrossEntropyStaysFinite) {
  const Values logits = {0, 5000};  // the probability of word 0 is 0 in any precision
  const std::vector<uint8_t> targets = {0};
  Values losses(1), probs(2);
  CrossEntropyForward(losses.data(), probs.data(), logits.data(), targets.data(), 1, 2);
  EXPECT_DOUBLE_EQ(losses[0], 5000);
}

}  // namespace
}  // namespace gpt
