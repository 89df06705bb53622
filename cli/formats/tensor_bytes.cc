// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/tensor_bytes.h"

#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>

namespace varve::internal::formats {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;
constexpr uint64_t kMaxGrowth = 1100;  // deflate makes 1,032 bytes of one
constexpr uint64_t kAlwaysAllowed = uint64_t{64} << 20;

std::string Hex(uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", value);
  return text;
}

}  // namespace

uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes) {
  uLong result = crc;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<size_t>(bytes.size(), size_t{1} << 30));
    result = ::crc32(result, reinterpret_cast<const Bytef*>(part.data()),
                     static_cast<uInt>(part.size()));
    bytes = bytes.subspan(part.size());
  }
  return static_cast<uint32_t>(result);
}

uint32_t JoinCrc32(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return static_cast<uint32_t>(::crc32_combine(first, second, static_cast<z_off_t>(second_bytes)));
}

Status CheckedPart::Read(uint64_t offset, std::span<std::byte> out) {
  VARVE_RETURN_IF_ERROR(file_->Read(data_.subspan(offset, out.size()), out.data()));
  if (out.empty() || !crc_) return Status::Ok();
  {
    const std::lock_guard lock(mutex_);
    const auto known = pieces_.find(offset);
    if (known != pieces_.end() && known->second.size >= out.size()) return Status::Ok();
  }
  const uint32_t crc = Crc32(0, out);
  const std::lock_guard lock(mutex_);
  Piece& piece = pieces_[offset];
  if (piece.size < out.size()) piece = {.size = out.size(), .crc = crc};
  return Status::Ok();
}

Status CheckedPart::Finish() {
  VARVE_RETURN_IF_ERROR(file_->CheckUnchanged());
  const std::lock_guard lock(mutex_);
  if (is_checked_ || !crc_) return Status::Ok();
  VARVE_RETURN_IF_ERROR(Check());
  is_checked_ = true;
  pieces_.clear();
  return Status::Ok();
}

// Goes through the part from its start on. Pieces that follow each other are joined. A piece that
// starts inside of another is of no use.
Status CheckedPart::Check() {
  uint32_t crc = 0;
  std::vector<std::byte> buffer;
  for (uint64_t at = 0; at < data_.size();) {
    const auto next = pieces_.lower_bound(at);
    if (next != pieces_.end() && next->first == at) {
      crc = JoinCrc32(crc, next->second.crc, next->second.size);
      at += next->second.size;
      continue;
    }
    const uint64_t end = next == pieces_.end() ? data_.size() : next->first;
    buffer.resize(std::min<uint64_t>(kReadBytes, end - at));
    VARVE_RETURN_IF_ERROR(file_->Read(data_.subspan(at, buffer.size()), buffer.data()));
    crc = Crc32(crc, buffer);
    at += buffer.size();
  }
  if (crc == *crc_) return Status::Ok();
  return Status::InvalidArgument(what_ + ": the bytes have the CRC-32 " + Hex(crc) + ", expected " +
                                 Hex(*crc_) + ": the file is damaged");
}

Status MadeBytes::Read(uint64_t offset, std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  if (!is_made_) {
    try {
      all_.resize(size_);
    } catch (const std::bad_alloc&) {
      return Status(StatusCode::kUnavailable,
                    "no memory for a tensor of " + std::to_string(size_) + " bytes");
    }
    VARVE_RETURN_IF_ERROR(make_(all_));
    is_made_ = true;
  }
  std::memcpy(out.data(), all_.data() + offset, out.size());
  return Status::Ok();
}

void MadeBytes::Release() {
  const std::lock_guard lock(mutex_);
  std::vector<std::byte>().swap(all_);
  is_made_ = false;
}

Status CheckGrowth(uint64_t tensor_bytes, uint64_t file_bytes) {
  const uint64_t most = file_bytes > std::numeric_limits<uint64_t>::max() / kMaxGrowth
                            ? std::numeric_limits<uint64_t>::max()
                            : std::max(file_bytes * kMaxGrowth, kAlwaysAllowed);
  if (tensor_bytes <= most) return Status::Ok();
  return Status::InvalidArgument("its tensors need " + std::to_string(tensor_bytes) +
                                 " bytes, and the file has " + std::to_string(file_bytes) +
                                 ": varve takes at most " + std::to_string(kMaxGrowth) +
                                 " times as many, and such a file is a trap");
}

}  // namespace varve::internal::formats
