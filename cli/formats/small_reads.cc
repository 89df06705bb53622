// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/small_reads.h"

#include <algorithm>
#include <cstring>

namespace varve::internal::formats {

Status SmallReads::Read(std::span<const std::byte> part, std::byte* out) {
  if (part.empty()) return Status::Ok();
  const std::span<const std::byte> all = file_->bytes();
  const auto offset = static_cast<uint64_t>(part.data() - all.data());
  const uint64_t number = offset / kPageBytes;
  const uint64_t begin = number * kPageBytes;
  if (offset + part.size() > begin + kPageBytes) return file_->Read(part, out);
  const std::lock_guard lock(mutex_);
  Page& page = pages_[number % kPages];
  if (page.number != number) {
    const auto wanted = all.subspan(begin, std::min<uint64_t>(kPageBytes, all.size() - begin));
    page.number = UINT64_MAX;
    page.bytes.resize(wanted.size());
    ++num_reads_;
    VARVE_RETURN_IF_ERROR(file_->Read(wanted, page.bytes.data()));
    page.number = number;
  }
  std::memcpy(out, page.bytes.data() + (offset - begin), part.size());
  return Status::Ok();
}

}  // namespace varve::internal::formats
