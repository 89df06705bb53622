// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/part_sink.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "cli/formats/tensor_bytes.h"

namespace varve::internal::cli {

PartSink::PartSink(std::span<const ExportPart> parts, Sink sink)
    : parts_(parts), sink_(std::move(sink)) {
  Enter();
}

void PartSink::Enter() {
  if (parts_.empty()) return;
  const ExportPart& part = parts_.front();
  if (const auto* tensor = std::get_if<TensorInfo>(&part)) {
    left_ = tensor->logical_bytes;
    crc_ = 0;
  } else if (const auto* later = std::get_if<CrcText>(&part)) {
    left_ = later->size;
  } else {
    left_ = std::get<std::string>(part).size();
  }
}

// Goes on to the part whose bytes come next.
Status PartSink::Advance() {
  while (left_ == 0 && !parts_.empty()) {
    if (const auto* later = std::get_if<CrcText>(&parts_.front())) {
      const std::string text = later->make(crc_);
      VARVE_RETURN_IF_ERROR(sink_(std::as_bytes(std::span(text.data(), text.size()))));
    }
    parts_ = parts_.subspan(1);
    Enter();
  }
  return Status::Ok();
}

Status PartSink::Write(std::span<const std::byte> bytes) {
  VARVE_RETURN_IF_ERROR(Advance());
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<uint64_t>(left_, bytes.size()));
    const bool is_tensor = std::holds_alternative<TensorInfo>(parts_.front());
    if (is_tensor) crc_ = formats::Crc32(crc_, part);
    if (!std::holds_alternative<CrcText>(parts_.front())) VARVE_RETURN_IF_ERROR(sink_(part));
    left_ -= part.size();
    bytes = bytes.subspan(part.size());
    VARVE_RETURN_IF_ERROR(Advance());
  }
  return Status::Ok();
}

}  // namespace varve::internal::cli
