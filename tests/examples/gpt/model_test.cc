// SPDX-License-Identifier: Apache-2.0
#include "gpt/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/examples/gpt/finite_difference.h"

namespace gpt {
namespace {

constexpr ModelConfig kTiny = {.num_layers = 2, .hidden_size = 8, .num_heads = 2, .seq_length = 4};

std::vector<uint8_t> RandomTokens(int64_t size, std::mt19937_64* rng) {
  std::uniform_int_distribution<int> any(0, kVocabSize - 1);
  std::vector<uint8_t> tokens(size);
  for (uint8_t& token : tokens) token = static_cast<uint8_t>(any(*rng));
  return tokens;
}

TEST(ModelTest, ParamsAreDenseAndNamedAsInPyTorch) {
  int64_t offset = 0;
  std::set<std::string> names;
  for (const Param& param : ListParams(kTiny)) {
    EXPECT_EQ(param.offset, offset) << param.name;
    offset += param.size;
    names.insert(param.name);
  }
  EXPECT_EQ(names.size(), 2 + 12 * 2 + 2u);
  EXPECT_TRUE(names.contains("transformer.h.1.attn.c_attn.weight"));
  EXPECT_TRUE(names.contains("transformer.h.0.mlp.c_proj.bias"));
  EXPECT_TRUE(names.contains("transformer.ln_f.weight"));
  EXPECT_TRUE(names.contains(std::string(kTiedToHead)));
}

TEST(ModelTest, UntrainedModelGuessesEvenly) {
  std::mt19937_64 rng(3);
  Model<double> model(kTiny);  // all parameters are 0: each word has probability 1/V
  const auto inputs = RandomTokens(8, &rng), targets = RandomTokens(8, &rng);
  EXPECT_NEAR(model.Forward(inputs, targets, 2), std::log(kVocabSize), 1e-12);
}

// Every parameter of a whole model, so also that each layer gets the right tensors and that the
// tied embedding collects the gradient of both its uses.
TEST(ModelTest, Gradient) {
  std::mt19937_64 rng(11);
  Model<double> model(kTiny);
  std::normal_distribution<double> normal(0, 0.3);
  for (double& value : model.params()) value = normal(rng);
  const int B = 2;
  const auto inputs = RandomTokens(B * kTiny.seq_length, &rng);
  const auto targets = RandomTokens(B * kTiny.seq_length, &rng);
  std::vector<double> dropout(B * kTiny.seq_length * kTiny.hidden_size, 2);
  for (size_t i = 0; i < dropout.size(); i += 3) dropout[i] = 0;
  const auto loss = [&] { return model.Forward(inputs, targets, B, dropout); };
  loss();
  model.Backward();
  for (const Param& param : ListParams(kTiny)) {
    ExpectGradient(param.name, model.params().subspan(param.offset, param.size),
                   model.grads().subspan(param.offset, param.size), loss);
  }
}

TEST(ModelTest, DropoutFactorsOfOneChangeNothing) {
  std::mt19937_64 rng(5);
  Model<double> model(kTiny);
  for (double& value : model.params()) value = std::normal_distribution<double>(0, 0.3)(rng);
  const auto inputs = RandomTokens(4, &rng), targets = RandomTokens(4, &rng);
  const std::vector<double> ones(4 * kTiny.hidden_size, 1), halves(4 * kTiny.hidden_size, 0.5);
  const double without = model.Forward(inputs, targets, 1);
  EXPECT_EQ(model.Forward(inputs, targets, 1, ones), without);
  EXPECT_NE(model.Forward(inputs, targets, 1, halves), without);
}

TEST(ModelTest, TakesAnyBatchSizeInTurn) {
  std::mt19937_64 rng(5);
  Model<double> model(kTiny);
  for (double& value : model.params()) value = std::normal_distribution<double>(0, 0.3)(rng);
  const auto inputs = RandomTokens(12, &rng), targets = RandomTokens(12, &rng);
  const auto mean_of_first = [&](int B) {
    const size_t size = B * kTiny.seq_length;
    return model.Forward(std::span(inputs).first(size), std::span(targets).first(size), B);
  };
  const double one = mean_of_first(1);
  mean_of_first(3);
  EXPECT_EQ(mean_of_first(1), one);
}

}  // namespace
}  // namespace gpt
