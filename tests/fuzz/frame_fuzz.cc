// SPDX-License-Identifier: Apache-2.0
//
// Decodes hostile frames. The input is a predictor, a dtype, a size and a payload. The header is
// made around it with a correct checksum, which no mutation would ever hit. Nothing may crash, hang
// or touch memory outside the buffers. Any Status is fine.
#include "tests/fuzz/frame_fuzz.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "codec/frame_header.h"

namespace varve::internal::fuzz {

void DecodeHostilePayload(std::span<const std::byte> input) {
  constexpr size_t kMaxRaw = size_t{1}
                             << 18;  // keeps a run short. The code has no limit of its own
  if (input.size() < 6) return;
  FrameInfo info;
  info.predictor = static_cast<Predictor>(std::to_integer<int>(input[0]) % 4);
  info.dtype = static_cast<DType>(std::to_integer<int>(input[1]) % kNumDTypes);
  const size_t size = std::to_integer<size_t>(input[2]) | std::to_integer<size_t>(input[3]) << 8 |
                      std::to_integer<size_t>(input[4]) << 16;
  info.raw_bytes = static_cast<uint32_t>(std::max<size_t>(size % kMaxRaw / 8 * 8, 8));
  if (HasBase(info.predictor)) {
    info.base = ChunkAddress{.save_id = 1, .ordinal = 1};
    info.depth = 2;
    info.path_bytes = ~uint64_t{0};
  }
  const std::span<const std::byte> payload = input.subspan(5);
  const size_t header_bytes = HeaderBytes(info.predictor);
  // Exact sizes, so that the address sanitizer sees any byte past the end.
  const std::unique_ptr<std::byte[]> frame(new std::byte[header_bytes + payload.size()]);
  WriteHeader(info, std::span(frame.get(), header_bytes));
  std::copy(payload.begin(), payload.end(), frame.get() + header_bytes);
  std::vector<std::byte> base(info.raw_bytes);
  for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<std::byte>(i * 37 >> 3);
  const std::unique_ptr<std::byte[]> out(new std::byte[info.raw_bytes]);
  const std::span<const std::byte> bytes(frame.get(), header_bytes + payload.size());
  const bool has_planes = ParsePlanes(bytes).ok();
  FrameDecoder decoder;
  const Status decoded = decoder.Decode(bytes, base, {out.get(), info.raw_bytes});
  if (decoded.ok() && !has_planes) std::abort();  // a frame that decodes has planes
}

}  // namespace varve::internal::fuzz
