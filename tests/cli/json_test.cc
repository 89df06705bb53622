// SPDX-License-Identifier: Apache-2.0
#include "cli/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace varve::internal::cli {
namespace {

TEST(JsonTest, SpellsWhatIsNoNumber) {
  EXPECT_EQ(ToJson(NAN).dump(), "\"NaN\"");
  EXPECT_EQ(ToJson(INFINITY).dump(), "\"Infinity\"");
  EXPECT_EQ(ToJson(-INFINITY).dump(), "\"-Infinity\"");
}

TEST(JsonTest, KeepsDoublesExactly) {
  for (const double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0}) {
    const double read = nlohmann::json::parse(ToJson(value).dump()).get<double>();
    EXPECT_EQ(read, value);
    EXPECT_EQ(std::signbit(read), std::signbit(value));
  }
}

TEST(JsonTest, WritesTimesInUtcWithMicroseconds) {
  const std::chrono::sys_time<std::chrono::microseconds> time(
      std::chrono::microseconds(1'700'000'000'012'345));
  EXPECT_EQ(IsoTime(time), "2023-11-14T22:13:20.012345Z");
}

TEST(JsonTest, ASaveHasItsWarnings) {
  SaveReport report;
  EXPECT_FALSE(ToJson(report).contains("warnings"));
  report.warnings = {"tensor w is stored anew"};
  EXPECT_EQ(ToJson(report)["warnings"].dump(), R"(["tensor w is stored anew"])");
}

TEST(JsonTest, NamesTheFieldsOfACheckpoint) {
  CheckpointInfo info;
  info.id = {"main", 5};
  info.parent = CheckpointId{"main", 4};
  info.logical_bytes = uint64_t{1} << 60;
  info.metrics["loss"] = NAN;
  info.tags = {"best"};
  const nlohmann::ordered_json object = ToJson(info);
  for (const char* key : {"run", "step", "created", "parent", "logical_bytes", "new_bytes",
                          "stored_bytes", "metrics", "tags"}) {
    EXPECT_TRUE(object.contains(key)) << key;
  }
  EXPECT_EQ(object["parent"].dump(), R"({"run":"main","step":4})");
  EXPECT_EQ(object["logical_bytes"], uint64_t{1} << 60);
  EXPECT_EQ(object["metrics"].dump(), R"({"loss":"NaN"})");
}

TEST(JsonTest, ShowsTrainerStateWithoutItsBlobs) {
  TrainerProgress state;
  state.extra["a"] = int64_t{1};
  state.extra["b"] = 1.0;
  state.extra["c"] = std::string("x");
  state.extra["d"] = std::vector<double>{0.5, NAN};
  state.rng.push_back({.rank = 1, .generator = "cpu", .state = {1, 2, 3}});
  const nlohmann::ordered_json object = ToJson(state);
  EXPECT_EQ(object["extra"].dump(), R"({"a":1,"b":1.0,"c":"x","d":[0.5,"NaN"]})");
  EXPECT_EQ(object["rng"].dump(), R"([{"rank":1,"generator":"cpu","bytes":3}])");
  EXPECT_EQ(object["best_metric"], "Infinity");
}

TEST(JsonTest, ReportsWhatADropDid) {
  const CheckpointId dropped[] = {{"main", 1}};
  const nlohmann::ordered_json object = ToJson(dropped, ReclaimReport{.freed_bytes = 7});
  EXPECT_EQ(object["dropped"].dump(), R"([{"run":"main","step":1}])");
  for (const char* key :
       {"freed_bytes", "pending_bytes", "disk_bytes_before", "disk_bytes_after"}) {
    EXPECT_TRUE(object[key].is_number_unsigned()) << key;
  }
}

}  // namespace
}  // namespace varve::internal::cli
