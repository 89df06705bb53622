// SPDX-License-Identifier: Apache-2.0
#include "store/db/chunk_reader.h"

#include <cstring>

#include "base/util.h"
#include "codec/predict/rounded_copy.h"

namespace varve::internal {

namespace {

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
      VARVE_ASSIGN_OR_RETURN(const FrameGraph graph, Fetch(ref.address, out.size(), *scratch));
      return graph.Decode(digest_seed_, ref.digest, out, &scratch->frames);
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

Result<FrameGraph> ChunkReader::Fetch(ChunkAddress address, size_t raw_bytes,
                                      const ChunkScratch& scratch) const {
  Result<FrameGraph> graph = FrameGraph::Fetch(*database_, address, scratch.fetched);
  if (graph.status().code() == StatusCode::kNotFound) {
    return Status::Corruption(graph.status().message());
  }
  if (!graph.ok() || graph->info().raw_bytes == raw_bytes) return graph;
  return Status::Corruption(FrameName(address) + " holds " +
                            std::to_string(graph->info().raw_bytes) + " raw bytes, expected " +
                            std::to_string(raw_bytes));
}

Result<std::span<const std::byte>> ChunkReader::RawBytes(ChunkAddress address,
                                                         const rocksdb::PinnableSlice& frame,
                                                         const Digest& expected) const {
  Result<std::span<const std::byte>> raw = RawPayload(FrameBytes(frame));
  if (!raw.ok()) return raw.status().WithContext(FrameName(address));
  VARVE_RETURN_IF_ERROR(CheckDigest(address, *raw, digest_seed_, expected));
  return raw;
}

Status ChunkReader::ReadTogether(std::span<const ChunkRef* const> refs,
                                 std::span<const std::span<std::byte>> out,
                                 ChunkScratch* scratch) const {
  std::vector<FrameSource> wanted;
  std::vector<ChunkAddress> addresses;
  for (const ChunkRef* const ref : refs) {
    wanted.push_back({ref->address, ref->digest});
    addresses.push_back(ref->address);
  }
  VARVE_ASSIGN_OR_RETURN(const FrameGraph graph,
                         FrameGraph::Fetch(*database_, wanted, scratch->fetched));
  for (size_t i = 0; i < refs.size(); ++i) {
    VARVE_RETURN_IF_ERROR(CheckSize(*refs[i], out[i].size()));
    VARVE_RETURN_IF_ERROR(CheckSize(*refs[i], graph.InfoOf(addresses[i]).raw_bytes));
  }
  return graph.DecodeInto(digest_seed_, addresses, out, &scratch->frames);
}

Result<std::span<const std::byte>> ChunkReader::ReadInPlace(const ChunkRef& ref, DType dtype,
                                                            size_t raw_bytes, ChunkBuffer* buffer,
                                                            ChunkScratch* scratch) const {
  VARVE_RETURN_IF_ERROR(CheckSize(ref, raw_bytes));
  if (ref.kind == ChunkKind::kStored) {
    VARVE_ASSIGN_OR_RETURN(FrameGraph graph, Fetch(ref.address, raw_bytes, *scratch));
    if (graph.info().predictor == Predictor::kRaw) {
      buffer->frame = graph.TakeFrame();
      return RawBytes(ref.address, buffer->frame, ref.digest);
    }
    const std::span<std::byte> decoded = buffer->decoded.Resize(raw_bytes);
    VARVE_RETURN_IF_ERROR(graph.Decode(digest_seed_, ref.digest, decoded, &scratch->frames));
  } else {
    VARVE_RETURN_IF_ERROR(Read(ref, dtype, buffer->decoded.Resize(raw_bytes), scratch));
  }
  return std::span<const std::byte>(buffer->decoded.bytes());
}

Status ChunkReader::ReadDerived(const ChunkRef& ref, DType dtype, std::span<std::byte> out,
                                ChunkScratch* scratch) const {
  const std::span<std::byte> source = scratch->source.Resize(2 * out.size());
  VARVE_ASSIGN_OR_RETURN(const FrameGraph graph, Fetch(ref.address, source.size(), *scratch));
  VARVE_RETURN_IF_ERROR(graph.Decode(digest_seed_, std::nullopt, source, &scratch->frames));
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
  return CheckDigest(ref.address, out, digest_seed_, ref.digest);
}

}  // namespace varve::internal
