// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/infinitrain_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cli/foreign/infinitrain_items.h"

namespace varve::internal::cli {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

InfiniTrainFields Fields(const char* text) { return FieldsFromJson(json::parse(text)).value(); }

TEST(InfiniTrainFieldsTest, PutsEachFieldWhereItBelongs) {
  const InfiniTrainFields fields =
      Fields(R"({"global_step":7,"consumed_batches":3,"consumed_train_samples":24,)"
             R"("last_lr":0.1,"pp_size":3,
          "ddp_size":2,"tp_size":4,"sp_size":4,"best":"x","odd":[1],"on":true})");
  EXPECT_EQ(fields.step, 7u);
  EXPECT_EQ(fields.state.global_step, 7);
  EXPECT_EQ(fields.state.consumed_samples, 24);
  const std::map<std::string, StateValue> extra = {{"infinitrain.consumed_batches", int64_t{3}},
                                                   {"infinitrain.last_lr", 0.1},
                                                   {"infinitrain.best", std::string("x")},
                                                   {"infinitrain.odd", std::string("[1]")},
                                                   {"infinitrain.on", std::string("true")}};
  EXPECT_EQ(fields.state.extra, extra);
  ASSERT_TRUE(fields.topology.has_value());
  EXPECT_EQ(fields.topology->dp, 2u);
  EXPECT_EQ(fields.topology->tp, 4u);
  EXPECT_EQ(fields.topology->sp, 4u);
  EXPECT_EQ(fields.topology->pp, 3u);
  EXPECT_EQ(fields.topology->world_size, 24u);
}

TEST(InfiniTrainFieldsTest, InventsNothing) {
  const InfiniTrainFields fields = Fields(R"({"vocab_size":5})");
  EXPECT_FALSE(fields.step.has_value());
  EXPECT_FALSE(fields.topology.has_value());
}

TEST(InfiniTrainFieldsTest, RejectsValuesThatCannotBe) {
  const auto error_of = [](const char* text) {
    const auto fields = FieldsFromJson(json::parse(text));
    EXPECT_FALSE(fields.ok()) << text;
    return fields.status().message();
  };
  EXPECT_THAT(
      error_of(R"({"global_step":-1})"),
      HasSubstr("\"global_step\" is -1; expected an integer from 0 to 9223372036854775807"));
  EXPECT_THAT(error_of(R"({"global_step":9223372036854775808})"), HasSubstr("expected an integer"));
  EXPECT_THAT(error_of(R"({"global_step":1.0})"), HasSubstr("expected an integer"));
  EXPECT_THAT(error_of(R"({"consumed_train_samples":"1"})"), HasSubstr("expected an integer"));
  EXPECT_THAT(error_of(R"({"n_head":null})"), HasSubstr("\"n_head\" is null; expected an integer"));
  EXPECT_THAT(error_of(R"({"last_lr":"0.1"})"), HasSubstr("expected a number"));
  EXPECT_THAT(error_of(R"({"tp_size":0})"), HasSubstr("expected an integer from 1 to 65536"));
  EXPECT_THAT(error_of(R"({"ddp_size":65536,"tp_size":65536})"),
              HasSubstr("make 4294967296 ranks"));
}

TEST(InfiniTrainFieldsTest, WritesValidJsonInTheOrderOfInfiniTrain) {
  const InfiniTrainFields fields = Fields(
      R"({"vocab_size":5,"last_lr":0.1,"global_step":7,"zz":1,"n_layer":2,"consumed_batches":3,
          "ddp_size":2})");
  EXPECT_EQ(JsonFromFields(fields.state, fields.topology).dump(),
            R"({"global_step":7,"consumed_batches":3,"last_lr":0.1,"n_layer":2,"vocab_size":5,)"
            R"("ddp_size":2,"tp_size":1,"sp_size":1,"pp_size":1,"zz":1})");
  TrainerProgress state{.global_step = 1, .consumed_samples = 9};
  state.extra["other"] = 1.0;
  EXPECT_EQ(JsonFromFields(state, {}).dump(), R"({"global_step":1,"consumed_train_samples":9})");
}

TEST(InfiniTrainItemsTest, LayoutSurvives) {
  const std::vector<formats::CkptLayout> layout = {{"model.ckpt", {"b", "é\"", "a"}},
                                                   {"optimizer.ckpt", {}}};
  const auto parsed = ParseLayoutItem(BuildLayoutItem(layout));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  ASSERT_EQ(parsed->size(), 2u);
  EXPECT_EQ((*parsed)[0].file, "model.ckpt");
  EXPECT_THAT((*parsed)[0].tensors, ElementsAre("b", "é\"", "a"));
  EXPECT_TRUE((*parsed)[1].tensors.empty());
}

TEST(InfiniTrainItemsTest, RejectsWhatIsNoLayout) {
  for (const char* text :
       {"", "[]", R"({"model.ckpt":"a"})", R"({"model.ckpt":[1]})", R"({"../model.ckpt":[]})"}) {
    EXPECT_EQ(ParseLayoutItem(text).status().code(), StatusCode::kCorruption) << text;
  }
}

}  // namespace
}  // namespace varve::internal::cli
