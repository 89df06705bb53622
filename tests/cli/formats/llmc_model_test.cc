// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/llmc_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/formats/foreign_builder.h"

namespace varve::internal::formats {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kGpt2 = 20240326;
constexpr int32_t kLlama3 = 20240803;

// block 4, vocabulary 5, 2 layers, 1 head, width 2, padded to 128: 128·2 + 4·2 + 2·(12·4 + 13·2) +
// 2·2 parameters.
constexpr size_t kGpt2Parameters = 256 + 8 + 2 * 74 + 4;
std::string Gpt2File(int32_t version = 3) {
  return LlmcHeaderText({kGpt2, version, 4, 5, 2, 1, 2, 128}) +
         std::string(kGpt2Parameters * (version == 3 ? 4 : 2), 'x');
}

// It has block 4, vocabulary 5, 2 layers, 4 heads of which 2 for keys, and width 4. The MLP is
// `ffn` wide.
std::string Llama3File(int32_t multiplier, int64_t ffn, int32_t version = 5) {
  const int64_t parameters =
      int64_t{2} * 5 * 4 + 2 * (4 + int64_t{8} * 4 + int64_t{4} * 4 + 4 + 3 * ffn * 4) + 4;
  return LlmcHeaderText({kLlama3, version, 4, 5, 2, 4, 2, 4, multiplier, 8, 0, 0, 1, 4, 3, 1}) +
         std::string(static_cast<size_t>(parameters) * (version == 3 ? 4 : 2), 'x');
}

std::string ErrorOf(const std::string& file) {
  const auto model = ParseLlmcModel(BytesOf(file));
  EXPECT_FALSE(model.ok());
  if (model.ok()) return "";
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  return model.status().message();
}

// The error of a file in whose header one integer is another one.
std::string ErrorWith(std::string file, size_t index, int32_t value) {
  SetInt(index, value, &file);
  return ErrorOf(file);
}

TEST(LlmcModelTest, NamesGpt2ByLayer) {
  const std::string file = Gpt2File();
  const auto model = ParseLlmcModel(BytesOf(file));
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->num_parameters, kGpt2Parameters);
  ASSERT_EQ(model->tensors.size(), 2 + 12 * 2 + 2u);
  EXPECT_EQ(model->tensors[0].name, "transformer.wte.weight");
  EXPECT_EQ(model->tensors[0].shape, (std::vector<int64_t>{128, 2}));
  EXPECT_EQ(model->tensors[1].name, "transformer.wpe.weight");
  EXPECT_EQ(model->tensors[2].name, "transformer.h.0.ln_1.weight");
  EXPECT_EQ(model->tensors[3].name, "transformer.h.1.ln_1.weight");
  EXPECT_EQ(model->tensors[25].name, "transformer.h.1.mlp.c_proj.bias");
  EXPECT_EQ(model->tensors[27].name, "transformer.ln_f.bias");
  EXPECT_EQ(model->tensors[27].data.data() + 8, BytesOf(file).data() + file.size());
}

TEST(LlmcModelTest, NamesLlama3ByLayer) {
  const std::string file = Llama3File(FloatBits(1.3f), 16);
  const auto model = ParseLlmcModel(BytesOf(file));
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  ASSERT_EQ(model->tensors.size(), 1 + 7 * 2 + 2u);
  EXPECT_EQ(model->tensors[3].name, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(model->tensors[3].shape, (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(model->tensors[11].name, "transformer.h.0.mlp.c_fc2.weight");
  EXPECT_EQ(model->tensors[11].shape, (std::vector<int64_t>{16, 4}));
  EXPECT_EQ(model->tensors[11].dtype, DType::kBF16);
  EXPECT_EQ(model->tensors[16].name, "lm_head.weight");
}

// The sizes of GPT-2 124M and LLaMA-3 8B are known. Only their headers are made here.
TEST(LlmcModelTest, KnowsTheSizesOfRealFiles) {
  EXPECT_THAT(ErrorOf(LlmcHeaderText({kGpt2, 3, 1024, 50257, 12, 12, 768, 50304})),
              HasSubstr("at byte 1024: the file ends; its header needs 497904640 bytes"));
  EXPECT_THAT(ErrorOf(LlmcHeaderText({kGpt2, 5, 1024, 50257, 12, 12, 768, 50304})),
              HasSubstr("its header needs 248952832 bytes"));
  // 8,030,261,248 parameters.
  EXPECT_THAT(
      ErrorOf(LlmcHeaderText({kLlama3, 5, 8192, 128256, 32, 32, 8, 4096, FloatBits(1.3f), 1024})),
      HasSubstr("its header needs 16060523520 bytes"));
}

TEST(LlmcModelTest, ReadsTheFactorAsFloatBitsAndAsAnInteger) {
  // 2·(4·4)/3 = 10, and 10·1.3 = 13, rounded up to 16.
  EXPECT_TRUE(ParseLlmcModel(BytesOf(Llama3File(FloatBits(1.3f), 16))).ok());
  EXPECT_THAT(ErrorOf(Llama3File(FloatBits(1.3f), 24)),
              HasSubstr("bytes after the last parameter"));
  EXPECT_THAT(ErrorOf(Llama3File(FloatBits(1.3f), 8)),
              HasSubstr("the file ends; its header needs"));
  // 1 stands for 1.0 to 2.0: rounded up, 16 or 24.
  EXPECT_TRUE(ParseLlmcModel(BytesOf(Llama3File(1, 16))).ok());
  EXPECT_TRUE(ParseLlmcModel(BytesOf(Llama3File(1, 24))).ok());
  EXPECT_THAT(ErrorOf(Llama3File(1, 32)), HasSubstr("bytes after the last parameter"));
  EXPECT_THAT(ErrorOf(Llama3File(1, 20)), HasSubstr(" in steps of 384 bytes"));
  EXPECT_THAT(ErrorOf(Llama3File(1, 8)), HasSubstr(" in steps of 384 bytes"));
  for (const int32_t bad : {-1, 65, FloatBits(-1.0f), FloatBits(65.0f), FloatBits(0.001f)}) {
    EXPECT_THAT(ErrorOf(Llama3File(bad, 16)), HasSubstr("at byte 32: ffn_dim_multiplier is"));
  }
}

TEST(LlmcModelTest, RejectsEveryFieldThatCannotBe) {
  EXPECT_THAT(ErrorWith(Gpt2File(), 0, 20240520),
              HasSubstr("at byte 0: the magic number is 20240520"));
  EXPECT_THAT(ErrorWith(Gpt2File(), 1, 4), HasSubstr("at byte 4: the version is 4; expected 3"));
  EXPECT_THAT(ErrorWith(Gpt2File(), 2, 0), HasSubstr("at byte 8: block_size is 0; expected 1 to"));
  EXPECT_THAT(ErrorWith(Gpt2File(), 3, -5), HasSubstr("at byte 12: vocab_size is -5"));
  EXPECT_THAT(ErrorWith(Gpt2File(), 4, INT32_MAX), HasSubstr("at byte 16: n_layer is 2147483647"));
  EXPECT_THAT(ErrorWith(Gpt2File(), 5, 3),
              HasSubstr("at byte 20: n_head is 3; expected a divisor"));
  EXPECT_THAT(ErrorWith(Gpt2File(), 6, INT32_MAX), HasSubstr("at byte 24: n_embd is 2147483647"));
  EXPECT_THAT(ErrorWith(Gpt2File(), 7, 256),
              HasSubstr("at byte 28: padded_vocab_size is 256; expected 128"));
  const std::string llama = Llama3File(1, 16);
  EXPECT_THAT(ErrorWith(llama, 6, 3), HasSubstr("at byte 24: n_kv_head is 3; expected a divisor"));
  EXPECT_THAT(ErrorWith(llama, 6, 5), HasSubstr("at byte 24: n_kv_head is 5; expected 1 to 4"));
  EXPECT_THAT(ErrorWith(llama, 9, 0), HasSubstr("at byte 36: multiple_of is 0"));
}

// The largest numbers that a header may hold stay below 2^63, which UBSan watches.
TEST(LlmcModelTest, TakesTheLargestNumbers) {
  constexpr int32_t kWide = 1 << 18;
  constexpr int32_t kRows = 1 << 30;
  EXPECT_THAT(ErrorOf(LlmcHeaderText({kGpt2, 3, kRows, kRows, 1 << 14, 1, kWide, kRows})),
              HasSubstr("the file ends; its header needs "));
  EXPECT_THAT(ErrorOf(LlmcHeaderText({kLlama3, 3, kRows, kRows, 1 << 14, 1, 1, kWide, 64, kWide})),
              HasSubstr("the file ends; its header needs "));
}

TEST(LlmcModelTest, RejectsEveryTruncationWithItsOffset) {
  const TryParse parse = [](auto file) { return ParseLlmcModel(file).status(); };
  for (const std::string& file : {Gpt2File(3), Gpt2File(5), Llama3File(FloatBits(1.3f), 16, 3)}) {
    ForEachTruncation(file, parse, [](size_t size, const Status& status) {
      ASSERT_FALSE(status.ok()) << size;
      ASSERT_THAT(status.message(), HasSubstr("at byte " + std::to_string(size) + ": ")) << size;
    });
  }
}

// docs/foreign_formats.md says this about plain llm.c: only a part that is as long as a narrower
// model is taken for one.
TEST(LlmcModelTest, TakesATruncationOfPlainLlmcOnlyForANarrowerModel) {
  const std::string file = Llama3File(1, 24);
  const size_t narrower = Llama3File(1, 16).size();
  const TryParse parse = [](auto part) { return ParseLlmcModel(part).status(); };
  ForEachTruncation(file, parse, [narrower](size_t size, const Status& status) {
    EXPECT_EQ(status.ok(), size == narrower) << size;
  });
}

TEST(LlmcModelTest, SurvivesEveryFlip) {
  const TryParse parse = [](auto file) { return ParseLlmcModel(file).status(); };
  for (const std::string& file :
       {Gpt2File(3), Llama3File(FloatBits(1.3f), 16), Llama3File(1, 24)}) {
    ForEachFlip(file, parse, [](size_t at, const Status& status) {
      if (at < 8) {  // magic and version
        EXPECT_FALSE(status.ok()) << at;
      }
      if (at >= 1024) {
        EXPECT_TRUE(status.ok()) << at;
      }
      if (!status.ok()) {
        EXPECT_THAT(status.message(), HasSubstr("at byte ")) << at;
      }
    });
  }
}

}  // namespace
}  // namespace varve::internal::formats
