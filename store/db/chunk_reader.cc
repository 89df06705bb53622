// SPDX-License-Identifier: Apache-2.0
#include "store/db/chunk_reader.h"

#include <cstring>

#include "base/util.h"
#include "codec/planes/copy_kernel.h"
#include "codec/predict/rounded_copy.h"

namespace varve::internal {

namespace {

std::string FrameName(ChunkAddress address) {
  return "frame " + std::to_string(address.save_id) + "/" + std::to_string(address.ordinal);
}

std::span<const std::byte> FrameBytes(const rocksdb::PinnableSlice& frame) {
  return AsBytes({frame.data(), frame.size()});
}

void FillConstant(std::string_view element, std::span<std::byte> out) {
  // Doubles the filled part again and again, at the speed of memcpy whatever the element.
  size_t filled = element.size();
  std::memcpy(out.data(), element.data(), filled);
  while (filled < out.size()) {
    const size_t n = std::min(filled, out.size() - filled);
    std::memcpy(out.data() + filled, out.data(), n);
    filled += n;
  }
}

}  // namespace

Status ChunkReader::CheckSize(const ChunkRef& ref, size_t raw_bytes) {
  if (raw_bytes == ref.raw_bytes) return Status::Ok();
  return Status::Corruption("chunk has " + std::to_string(ref.raw_bytes) + " bytes, its tensor " +
                            "leaves room for " + std::to_string(raw_bytes));
}

Status ChunkReader::Read(const ChunkRef& ref, DType dtype, std::span<std::byte> out,
                         ChunkScratch* scratch) const {
  VARVE_RETURN_IF_ERROR(CheckSize(ref, out.size()));
  switch (ref.kind) {
    case ChunkKind::kStored: {
      VARVE_ASSIGN_OR_RETURN(const Chain chain, FetchChain(ref.address, out.size(), *scratch));
      return DecodeChain(chain, ref.digest, out, scratch);
    }
    case ChunkKind::kDerived:
      return ReadDerived(ref, dtype, out, scratch);
    case ChunkKind::kConstant:
      FillConstant(ref.literal, out);
      break;
    case ChunkKind::kInline:
      std::memcpy(out.data(), ref.literal.data(), out.size());
      break;
  }
  if (ComputeDigest(digest_seed_, out) != ref.digest) {
    return Status::Corruption("literal chunk does not have its digest " + ToHex(ref.digest));
  }
  return Status::Ok();
}

Status ChunkReader::CheckDigest(ChunkAddress address, std::span<const std::byte> raw,
                                const Digest& expected) const {
  const Digest found = ComputeDigest(digest_seed_, raw);
  if (found == expected) return Status::Ok();
  return Status::Corruption(FrameName(address) + " decodes to digest " + ToHex(found) +
                            ", expected " + ToHex(expected));
}

Result<ChunkReader::Chain> ChunkReader::FetchChain(ChunkAddress address,
                                                   const ChunkScratch& scratch) const {
  Chain chain;
  while (true) {
    Link& link = chain.emplace_back();
    link.address = address;
    const auto* const fetched =
        scratch.fetched == nullptr ? nullptr : scratch.fetched->Find(address);
    if (fetched != nullptr) {
      link.frame.PinSlice(*fetched, nullptr);
    } else {
      VARVE_RETURN_IF_ERROR(database_->GetFrame(address, &link.frame));
    }
    Result<FrameInfo> info = ParseFrame(FrameBytes(link.frame));
    if (!info.ok()) return info.status().WithContext(FrameName(address));
    link.info = *std::move(info);
    if (!link.info.base.has_value()) return chain;
    if (*link.info.base >= address) {
      return Status::Corruption(FrameName(address) + ": its base " + FrameName(*link.info.base) +
                                " has no smaller address");
    }
    if (chain.size() == size_t{kMaxChain}) {
      return Status::Corruption(FrameName(address) + ": more than 64 frames in its chain");
    }
    address = *link.info.base;
  }
}

Result<ChunkReader::Chain> ChunkReader::FetchChain(ChunkAddress address, size_t raw_bytes,
                                                   const ChunkScratch& scratch) const {
  VARVE_ASSIGN_OR_RETURN(Chain chain, FetchChain(address, scratch));
  if (chain.front().info.raw_bytes == raw_bytes) return chain;
  return Status::Corruption(FrameName(address) + " holds " +
                            std::to_string(chain.front().info.raw_bytes) + " raw bytes, expected " +
                            std::to_string(raw_bytes));
}

Result<std::span<const std::byte>> ChunkReader::RawBytes(ChunkAddress address,
                                                         const rocksdb::PinnableSlice& frame,
                                                         const Digest& expected) const {
  Result<std::span<const std::byte>> raw = RawPayload(FrameBytes(frame));
  if (!raw.ok()) return raw.status().WithContext(FrameName(address));
  VARVE_RETURN_IF_ERROR(CheckDigest(address, *raw, expected));
  return raw;
}

Status ChunkReader::DecodeChain(const Chain& chain, const std::optional<Digest>& expected,
                                std::span<std::byte> out, ChunkScratch* scratch) const {
  std::span<const std::byte> base;
  for (size_t i = chain.size(); i-- > 0;) {
    const Link& link = chain[i];
    const Digest wanted =
        i > 0 ? chain[i - 1].info.base_digest : expected.value_or(link.info.digest);
    if (link.info.predictor == Predictor::kRaw) {
      // The digest is checked while the bytes are in the cache, before they are copied past it.
      VARVE_ASSIGN_OR_RETURN(base, RawBytes(link.address, link.frame, wanted));
      if (i == 0) CopyPastCache(base, out);
      continue;
    }
    std::span<std::byte> target = out;
    if (i > 0) {
      // Two buffers in turn: the base being read, and the chunk being made from it.
      std::swap(scratch->bytes, scratch->previous);
      target = scratch->bytes.Resize(link.info.raw_bytes);
    }
    const Status decoded = scratch->decoder.Decode(FrameBytes(link.frame), base, target);
    if (!decoded.ok()) return decoded.WithContext(FrameName(link.address));
    VARVE_RETURN_IF_ERROR(CheckDigest(link.address, target, wanted));
    base = target;
  }
  return Status::Ok();
}

Result<std::span<const std::byte>> ChunkReader::ReadInPlace(const ChunkRef& ref, DType dtype,
                                                            size_t raw_bytes, ChunkBuffer* buffer,
                                                            ChunkScratch* scratch) const {
  VARVE_RETURN_IF_ERROR(CheckSize(ref, raw_bytes));
  if (ref.kind == ChunkKind::kStored) {
    VARVE_ASSIGN_OR_RETURN(Chain chain, FetchChain(ref.address, raw_bytes, *scratch));
    if (chain.front().info.predictor == Predictor::kRaw) {
      buffer->frame = std::move(chain.front().frame);
      return RawBytes(ref.address, buffer->frame, ref.digest);
    }
    const std::span<std::byte> decoded = buffer->decoded.Resize(raw_bytes);
    VARVE_RETURN_IF_ERROR(DecodeChain(chain, ref.digest, decoded, scratch));
  } else {
    VARVE_RETURN_IF_ERROR(Read(ref, dtype, buffer->decoded.Resize(raw_bytes), scratch));
  }
  return std::span<const std::byte>(buffer->decoded.bytes());
}

Status ChunkReader::ReadDerived(const ChunkRef& ref, DType dtype, std::span<std::byte> out,
                                ChunkScratch* scratch) const {
  const std::span<std::byte> source = scratch->source.Resize(2 * out.size());
  VARVE_ASSIGN_OR_RETURN(const Chain chain, FetchChain(ref.address, source.size(), *scratch));
  VARVE_RETURN_IF_ERROR(DecodeChain(chain, std::nullopt, source, scratch));
  return MakeDerived(ref, dtype, source, out);
}

Status ChunkReader::MakeDerived(const ChunkRef& ref, DType dtype, std::span<const std::byte> source,
                                std::span<std::byte> out) const {
  if (!HasRoundedCopy(dtype)) {
    return Status::Corruption("a derived chunk in a tensor of type " +
                              std::string(DTypeName(dtype)));
  }
  if (source.size() != 2 * out.size() || out.size() != ref.raw_bytes) {
    return Status::Corruption("a derived chunk of " + std::to_string(ref.raw_bytes) +
                              " bytes in a tensor that leaves room for " +
                              std::to_string(out.size()) + ", from a source of " +
                              std::to_string(source.size()));
  }
  MakeRoundedCopy(dtype, source, out);
  return CheckDigest(ref.address, out, ref.digest);
}

Result<std::vector<StoredChunk>> ChunkReader::ReadChain(ChunkAddress address,
                                                        ChunkScratch* scratch) const {
  VARVE_ASSIGN_OR_RETURN(const Chain links, FetchChain(address, *scratch));
  std::vector<StoredChunk> chain(links.size());
  std::span<const std::byte> base;
  for (size_t i = links.size(); i-- > 0;) {
    const Link& link = links[i];
    chain[i].info = link.info;
    chain[i].frame_bytes = static_cast<uint32_t>(link.frame.size());
    chain[i].raw.resize(link.info.raw_bytes);
    const Status decoded = scratch->decoder.Decode(FrameBytes(link.frame), base, chain[i].raw);
    if (!decoded.ok()) return decoded.WithContext(FrameName(link.address));
    const Digest& wanted = i > 0 ? links[i - 1].info.base_digest : link.info.digest;
    VARVE_RETURN_IF_ERROR(CheckDigest(link.address, chain[i].raw, wanted));
    base = chain[i].raw;
  }
  return chain;
}

}  // namespace varve::internal
