// SPDX-License-Identifier: Apache-2.0
//
// Field names and sizes are those of RFC 8878.
#include "codec/entropy/literal_frame_encoder.h"

#include <algorithm>

#include "codec/entropy/literal_frame.h"

namespace varve::internal {

namespace {

void PutFrameHeader(size_t content_bytes, ByteWriter* to) {
  to->Put(kZstdMagic, 4);
  const unsigned size_flag = content_bytes < 256 ? 0 : content_bytes < 256 + 65536 ? 1 : 2;
  const bool single_segment = content_bytes <= kMaxZstdBlock;
  to->Put(size_flag << 6 | (single_segment ? 0x20u : 0u), 1);
  constexpr unsigned kWindowOfOneBlock = 7 << 3;  // 2^(10 + 7) bytes
  if (!single_segment) to->Put(kWindowOfOneBlock, 1);
  to->Put(content_bytes - (size_flag == 1 ? 256 : 0), size_t{1} << size_flag);
}

void PutBlockHeader(ZstdBlock type, size_t size, bool last, ByteWriter* to) {
  to->Put(size << 3 | static_cast<uint64_t>(type) << 1 | (last ? 1u : 0u), 3);
}

void PutRawBlock(std::span<const uint8_t> block, bool last, ByteWriter* to) {
  PutBlockHeader(ZstdBlock::kRaw, block.size(), last, to);
  to->PutBytes(std::as_bytes(block));
}

// How literals store their number, before and after compression.
struct LiteralSizes {
  size_t format;
  size_t width;  // of each size, in bits
  size_t header_bytes;
};
LiteralSizes SizesOf(size_t num_literals) {
  if (num_literals < HuffmanEncoder::kMinFourStreams) return {0, 10, 3};  // one stream
  if (num_literals < 1024) return {1, 10, 3};
  if (num_literals < 16384) return {2, 14, 4};
  return {3, 18, 5};
}

// Returns the bits of all symbols together. If a symbol has no code, that is more than any block
// has.
uint64_t BitsOf(const ByteCounts& counts, const HuffmanCode& code) {
  uint64_t bits = 0;
  for (size_t symbol = 0; symbol < counts.size(); ++symbol) {
    const uint64_t length = code.bits[symbol] > 0 ? code.bits[symbol] : 8 * kMaxZstdBlock;
    bits += counts[symbol] * length;
  }
  return bits;
}

}  // namespace

size_t LiteralFrameEncoder::Encode(std::span<const uint8_t> in, std::span<std::byte> out) {
  ByteWriter to(out);
  PutFrameHeader(in.size(), &to);
  code_ = {};
  do {
    const std::span<const uint8_t> block = in.first(std::min(in.size(), kMaxZstdBlock));
    in = in.subspan(block.size());
    PutBlock(block, in.empty(), &to);
  } while (!in.empty());
  return to.Finish();
}

void LiteralFrameEncoder::PutBlock(std::span<const uint8_t> block, bool last, ByteWriter* to) {
  if (block.empty()) return PutRawBlock(block, last, to);
  const ByteCounts counts = huffman_.Look(block);
  if (counts[block[0]] == block.size()) {
    PutBlockHeader(ZstdBlock::kRepeat, block.size(), last, to);
    return to->Put(block[0], 1);
  }
  const HuffmanCode own = MakeHuffmanCode(counts);
  std::byte description[kMaxCodeDescription];
  size_t description_bytes = WriteHuffmanCode(own, description);
  if (description_bytes == 0) return PutRawBlock(block, last, to);
  // With the code of the block before, a decoder needs no new table.
  const bool same_code = BitsOf(counts, code_) <= BitsOf(counts, own) + 8 * description_bytes;
  if (same_code) description_bytes = 0;
  huffman_.SetCode(same_code ? code_ : own);
  const std::span<const std::byte> streams = huffman_.Encode();
  const LiteralSizes sizes = SizesOf(block.size());
  const size_t literal_bytes = description_bytes + streams.size();
  const size_t block_bytes = sizes.header_bytes + literal_bytes + 1;
  if (block_bytes >= block.size()) return PutRawBlock(block, last, to);
  PutBlockHeader(ZstdBlock::kCompressed, block_bytes, last, to);
  const size_t type = same_code ? 3 : 2;
  to->Put(type | sizes.format << 2 | block.size() << 4 | literal_bytes << (4 + sizes.width),
          sizes.header_bytes);
  to->PutBytes(std::span(description, description_bytes));
  to->PutBytes(streams);
  to->Put(0, 1);  // there are no matches
  if (!same_code) code_ = own;
}

}  // namespace varve::internal
