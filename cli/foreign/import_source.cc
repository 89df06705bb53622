// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/import_source.h"

#include <span>

#include "cli/foreign/infinitrain_items.h"
#include "cli/foreign/llmc_items.h"
#include "cli/formats/llmc_state.h"

namespace varve::internal::cli {
namespace {

// Leaves a step that the format cannot hold as it is. An export refuses it.
void SetLlmcStep(uint64_t step, std::string* item) {
  auto header = formats::ParseLlmcStateHeader(std::as_bytes(std::span(*item)));
  if (!header.ok() || step > formats::kMaxLlmcStep) return;
  header->step = step;
  formats::WriteLlmcProgress(*header, item);
}

}  // namespace

void ImportSource::SetStep(uint64_t new_step) {
  if (state) state->global_step = static_cast<int64_t>(new_step);
  if (step && *step != new_step) {
    items.erase(kInfiniTrainStateItem);
    for (auto& [name, item] : items) {
      if (name.starts_with(kLlmcStateItems)) SetLlmcStep(new_step, &item);
    }
  }
  step = new_step;
}

}  // namespace varve::internal::cli
