// SPDX-License-Identifier: Apache-2.0
//
// Answers about the values of one tensor, and about its history.
#include <utility>

#include "cli/json.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/slice.h"
#include "cli/view/answers.h"
#include "cli/view/tensor_look.h"
#include "varve/digest.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMaxShownValues = 1000;

// The start of a selection, as far as a request may decode it: "0:512,0:1024".
std::string FirstSlice(const Selection& selection) {
  const auto pieces = SplitIntoPieces(selection.tensor.dtype, selection.ranges, kMaxDecodedBytes);
  std::vector<std::string> axes;
  for (const Range& range : pieces.at(0)) {
    axes.push_back(std::to_string(range.begin) + ":" + std::to_string(range.end));
  }
  return Join(axes, ",");
}

Result<std::vector<std::byte>> ReadSelection(const CheckpointReader& reader,
                                             const Selection& selection) {
  std::vector<std::byte> bytes;
  bytes.reserve(selection.result.logical_bytes);
  TensorStream stream(reader, [&](std::span<const std::byte> part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
    return Status::Ok();
  });
  VARVE_RETURN_IF_ERROR(stream.Add(selection.tensor, selection.ranges));
  VARVE_RETURN_IF_ERROR(stream.Finish());
  return bytes;
}

ordered_json ToObject(const TensorLook& look) {
  auto cells = ordered_json::array();
  for (const double cell : look.heat) cells.push_back(ToJson(cell));
  return {
      {"elements", look.num_elements},
      {"zeros", look.num_zeros},
      {"infinite", look.num_infinite},
      {"norm", ToJson(look.norm)},
      {"histogram",
       {{"low", ToJson(look.low)}, {"high", ToJson(look.high)}, {"counts", look.histogram}}},
      {"heat",
       {{"rows", look.heat_rows}, {"columns", look.heat_columns}, {"cells", std::move(cells)}}}};
}

ordered_json AboutTensor(const TensorInfo& tensor) {
  const auto& content = tensor.content;
  const bool is_known = content[0] != 0 || content[1] != 0;
  return {{"shape", tensor.shape},
          {"logical_bytes", tensor.logical_bytes},
          {"role", TensorRoleName(tensor.role)},
          {"digest", is_known ? ToHex({content[0], content[1]}) : ""},
          {"derived_from", tensor.derived_from},
          {"alias_of", tensor.alias_of},
          {"chunks", tensor.num_chunks},
          {"shards", tensor.num_shards}};
}

}  // namespace

// `get` is what get --json tells, and `look` what the picture needs besides.
Answer AnswerTensor(const Ask& ask) {
  TensorChoice choice{.name = ask.query.Text("name"),
                      .shard = ask.query.Text("shard"),
                      .slice = ask.query.Text("slice")};
  VARVE_RETURN_IF_ERROR(ask.query.Needed("name").status());
  VARVE_ASSIGN_OR_RETURN(
      const uint64_t num_values,
      ask.query.Number("values", TensorSummary::kDefaultValues, kMaxShownValues));
  VARVE_ASSIGN_OR_RETURN(const OpenStep step, OpenAskedStep(ask, "step"));
  VARVE_ASSIGN_OR_RETURN(Selection selection, SelectTensor(*step.reader, choice));
  ordered_json object = {{"run", step.id.run},
                         {"step", step.id.step},
                         {"tensor", AboutTensor(selection.tensor)},
                         {"max_bytes", kMaxDecodedBytes}};
  if (selection.result.logical_bytes > kMaxDecodedBytes) {
    // No numbers, but what to ask for.
    object["too_large"] = selection.result.logical_bytes;
    object["first_slice"] = FirstSlice(selection);
    return object;
  }
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                         ReadSelection(*step.reader, selection));
  TensorSummary summary(selection.tensor.dtype, num_values);
  summary.Add(bytes);
  object["get"] = ToJson(selection.result, summary);
  if (selection.tensor.dtype != DType::kC64) {
    object["look"] = ToObject(LookAt(selection.tensor.dtype, selection.result.shape, bytes));
  }
  return object;
}

Answer AnswerLog(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const PageOfRows page, ask.query.Page());
  VARVE_ASSIGN_OR_RETURN(const std::string name, ask.query.Needed("name"));
  VARVE_ASSIGN_OR_RETURN(const std::string order, ask.query.OneOf("order", "up down"));
  const std::string run = ask.query.Text("run", "main");
  VARVE_ASSIGN_OR_RETURN(const auto steps, ask.store.ListCheckpoints(run));
  VARVE_ASSIGN_OR_RETURN(const auto log, ask.caches.logs.Get(KeyOf(steps) + run + " " + name, [&] {
    return ask.store.Log(run, name);
  }));
  const auto [begin, end] = page.Of(log->size());
  auto rows = ordered_json::array();
  for (size_t i = begin; i < end; ++i) {
    rows.push_back(ToJson(name, (*log)[order == "down" ? log->size() - 1 - i : i]));
  }
  return ordered_json{{"total", log->size()}, {"offset", begin}, {"rows", std::move(rows)}};
}

}  // namespace varve::internal::cli
