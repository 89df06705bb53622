// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/dcp_items.h"

#include "cli/formats/torch_tree.h"

namespace varve::internal::cli {

std::string BuildDcpItem(std::span<const std::string> values, std::string_view planner_json) {
  std::string json = "{\"format\":1,\"items\":[";
  for (const std::string& value : values) {
    formats::AppendJsonString(value, &json);
    json += ',';
  }
  if (!values.empty()) json.pop_back();
  return json + "],\"planner_data\":" + std::string(planner_json) + "}";
}

}  // namespace varve::internal::cli
