// SPDX-License-Identifier: Apache-2.0
//
// Field names and sizes are those of RFC 8878.
#include "codec/entropy/literal_frame.h"

#include <algorithm>
#include <cstring>

namespace varve::internal {

namespace {

// Making the table of the code takes as long as decoding some thousand symbols. A short last block
// comes in other forms, which are left to zstd.
constexpr size_t kMinSymbols = size_t{16} << 10;
constexpr size_t kMinLastBlock = 1024;
bool PaysOff(size_t num_symbols) {
  const size_t last_block = num_symbols % kMaxZstdBlock;
  return num_symbols >= kMinSymbols && (last_block == 0 || last_block >= kMinLastBlock);
}

// Codes of more than about 6 bits hardly ever come two in one look. zstd's decoder, which takes one
// at a time, is faster then. For flat codes this decoder is always faster.
constexpr size_t kMaxMeanBits = 6;

// Takes `bytes` (at most 8) bytes as one number.
bool TakeNumber(ByteReader* reader, size_t bytes, uint64_t* number) {
  std::span<const std::byte> field;
  if (!reader->TakeSpan(bytes, &field)) return false;
  *number = 0;
  std::memcpy(number, field.data(), field.size());
  return true;
}

// Takes a header that has the size, and needs neither a dictionary nor a checksum.
bool TakeHeader(ByteReader* reader, size_t expected_bytes) {
  uint32_t magic = 0;
  uint8_t descriptor = 0;
  if (!reader->Take(&magic) || magic != kZstdMagic || !reader->Take(&descriptor)) return false;
  if ((descriptor & 0x1Fu) != 0) return false;
  const bool single_segment = (descriptor & 0x20u) != 0;
  uint8_t window = 0;
  if (!single_segment && !reader->Take(&window)) return false;
  const unsigned size_flag = descriptor >> 6;
  if (size_flag == 0 && !single_segment) return false;
  uint64_t content_bytes = 0;
  if (!TakeNumber(reader, size_t{1} << size_flag, &content_bytes)) return false;
  if (size_flag == 1) content_bytes += 256;
  return content_bytes == expected_bytes;
}

// The header of literals that have a Huffman code.
struct LiteralsHeader {
  bool has_code = false;  // a code of their own. Otherwise they use that of the block before
  size_t regenerated_bytes = 0;
  size_t compressed_bytes = 0;
};

// Takes the header of literals in four streams.
bool TakeLiteralsHeader(ByteReader* reader, LiteralsHeader* header) {
  if (reader->rest().empty()) return false;
  const auto first = std::to_integer<unsigned>(reader->rest()[0]);
  const unsigned type = first & 3u;
  const unsigned format = (first >> 2) & 3u;
  if (type < 2 || format == 0) return false;
  uint64_t fields = 0;
  if (!TakeNumber(reader, 2 + format, &fields)) return false;
  const unsigned width = 6 + 4 * format;
  const uint64_t mask = (uint64_t{1} << width) - 1;
  header->has_code = type == 2;
  header->regenerated_bytes = (fields >> 4) & mask;
  header->compressed_bytes = (fields >> (4 + width)) & mask;
  return true;
}

}  // namespace

bool LiteralFrameDecoder::Decode(std::span<const std::byte> frame, std::span<uint8_t> out) {
  if (!PaysOff(out.size())) return false;
  only_flat_ = 8 * frame.size() > kMaxMeanBits * out.size();
  ByteReader reader(frame);
  if (!TakeHeader(&reader, out.size())) return false;
  has_code_ = false;
  for (bool last = false; !last;) {
    if (!DecodeBlock(&reader, &out, &last)) return false;
  }
  return out.empty() && reader.rest().empty();
}

bool LiteralFrameDecoder::DecodeBlock(ByteReader* reader, std::span<uint8_t>* out, bool* last) {
  uint64_t header = 0;
  if (!TakeNumber(reader, 3, &header)) return false;
  *last = (header & 1u) != 0;
  const auto size = static_cast<size_t>(header >> 3);
  const auto type = static_cast<ZstdBlock>((header >> 1) & 3u);
  std::span<const std::byte> body;
  if (!reader->TakeSpan(type == ZstdBlock::kRepeat ? 1 : size, &body)) return false;
  if (type == ZstdBlock::kCompressed) return DecodeCompressed(body, out);
  if (type > ZstdBlock::kCompressed || size > std::min(out->size(), kMaxZstdBlock)) return false;
  if (size > 0 && type == ZstdBlock::kRaw) std::memcpy(out->data(), body.data(), size);
  if (size > 0 && type == ZstdBlock::kRepeat)
    std::memset(out->data(), std::to_integer<int>(body[0]), size);
  *out = out->subspan(size);
  return true;
}

bool LiteralFrameDecoder::DecodeCompressed(std::span<const std::byte> block,
                                           std::span<uint8_t>* out) {
  ByteReader reader(block);
  LiteralsHeader header;
  std::span<const std::byte> literals;
  if (!TakeLiteralsHeader(&reader, &header) ||
      header.regenerated_bytes > std::min(out->size(), kMaxZstdBlock) ||
      !reader.TakeSpan(header.compressed_bytes, &literals)) {
    return false;
  }
  // After the literals, a zero says that there are no matches.
  if (reader.rest().size() != 1 || reader.rest()[0] != std::byte{0}) return false;
  ByteReader streams(literals);
  if (header.has_code) {
    HuffmanCode code;
    if (!ReadHuffmanCode(&streams, &code)) return false;
    if (only_flat_ && FlatCodeOf(code).width == 0) return false;
    huffman_.SetCode(code);
    has_code_ = true;
  }
  if (!has_code_ || !huffman_.Decode(streams.rest(), out->first(header.regenerated_bytes))) {
    return false;
  }
  *out = out->subspan(header.regenerated_bytes);
  return true;
}

}  // namespace varve::internal
