// SPDX-License-Identifier: Apache-2.0
#include "store/format/frame_totals.h"

#include <string>

namespace varve::internal {

void FrameTotals::Add(const SaveRecord& save_id) {
  for (size_t p = 0; p < by_codec_.size(); ++p) by_codec_[p].Add(save_id.live[p]);
  const CodecTotals live = save_id.Live();
  if (!save_id.live_coders.has_value()) {
    unknown_.Add({0, live.raw_bytes, live.stored_bytes});
    return;
  }
  uint64_t plane_bytes = 0;
  for (size_t c = 0; c < by_coder_.size(); ++c) {
    by_coder_[c].Add((*save_id.live_coders)[c]);
    plane_bytes += (*save_id.live_coders)[c].stored_bytes;
  }
  headers_.stored_bytes += live.stored_bytes - plane_bytes;
}

std::vector<CodecUse> FrameTotals::CodecRows() const {
  std::vector<CodecUse> rows;
  for (size_t p = 0; p < by_codec_.size(); ++p) {
    const CodecTotals& t = by_codec_[p];
    if (t.count == 0) continue;
    rows.push_back({std::string(PredictorName(static_cast<Predictor>(p))), t.count, t.raw_bytes,
                    t.stored_bytes});
  }
  return rows;
}

std::vector<CoderUse> FrameTotals::CoderRows() const {
  std::vector<CoderUse> rows;
  const auto add = [&rows](std::string_view name, const CodecTotals& t) {
    if (t.stored_bytes == 0) return;
    rows.push_back({std::string(name), t.count, t.raw_bytes, t.stored_bytes});
  };
  for (size_t c = 0; c < by_coder_.size(); ++c) add(kStreamCoderNames[c], by_coder_[c]);
  add("header", headers_);
  add("unknown", unknown_);
  return rows;
}

}  // namespace varve::internal
