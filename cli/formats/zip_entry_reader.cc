// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/zip_entry_reader.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "cli/formats/tensor_bytes.h"

namespace varve::internal::formats {
namespace {

constexpr size_t kInputBytes = size_t{256} << 10;
constexpr size_t kMaxOutput = size_t{1} << 30;  // zlib counts in 32 bits

}  // namespace

struct ZipEntryReader::Stream {
  ~Stream() {
    if (is_open) ::inflateEnd(&z);
  }
  z_stream z{};
  bool is_open = false;
  bool is_at_end = false;
};

ZipEntryReader::ZipEntryReader(std::shared_ptr<const InputFile> file, ZipEntry entry,
                               std::string what)
    : file_(std::move(file)), entry_(std::move(entry)), what_(std::move(what)) {}

ZipEntryReader::~ZipEntryReader() = default;

Status ZipEntryReader::Error(const std::string& problem) const {
  return Status::InvalidArgument(what_ + ": " + problem);
}

Status ZipEntryReader::Read(std::span<std::byte> out) {
  if (out.size() > left()) {
    return Error("at byte " + std::to_string(offset_) +
                 " of its contents: " + std::to_string(out.size()) +
                 " more bytes are needed, and " + std::to_string(left()) + " are left");
  }
  VARVE_RETURN_IF_ERROR(entry_.is_deflated ? Inflate(out) : ReadStored(out));
  crc_ = Crc32(crc_, out);
  offset_ += out.size();
  return Status::Ok();
}

Status ZipEntryReader::Skip(uint64_t bytes) {
  std::vector<std::byte> buffer(std::min<uint64_t>(kInputBytes, bytes));
  while (bytes > 0) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), bytes));
    VARVE_RETURN_IF_ERROR(Read(part));
    bytes -= part.size();
  }
  return Status::Ok();
}

Status ZipEntryReader::ReadStored(std::span<std::byte> out) {
  return file_->Read(entry_.data.subspan(offset_, out.size()), out.data());
}

Status ZipEntryReader::FillInput() {
  input_.resize(std::min<uint64_t>(kInputBytes, entry_.data.size() - taken_));
  VARVE_RETURN_IF_ERROR(file_->Read(entry_.data.subspan(taken_, input_.size()), input_.data()));
  taken_ += input_.size();
  stream_->z.next_in = reinterpret_cast<Bytef*>(input_.data());
  stream_->z.avail_in = static_cast<uInt>(input_.size());
  return Status::Ok();
}

Status ZipEntryReader::Inflate(std::span<std::byte> out) {
  if (stream_ == nullptr) {
    stream_ = std::make_unique<Stream>();
    constexpr int kRawDeflate = -15;
    if (::inflateInit2(&stream_->z, kRawDeflate) != Z_OK) {
      return Status::Unavailable(what_ + ": no memory to inflate it");
    }
    stream_->is_open = true;
  }
  z_stream& z = stream_->z;
  while (!out.empty()) {
    if (stream_->is_at_end) return Error("its deflated data ends too early");
    if (z.avail_in == 0 && taken_ < entry_.data.size()) VARVE_RETURN_IF_ERROR(FillInput());
    const size_t wanted = std::min(out.size(), kMaxOutput);
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(wanted);
    const uInt input_before = z.avail_in;
    const int result = ::inflate(&z, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return Error("its data is not deflated data" +
                   (z.msg == nullptr ? std::string() : std::string(": ") + z.msg));
    }
    const size_t made = wanted - z.avail_out;
    stream_->is_at_end = result == Z_STREAM_END;
    const bool is_stuck = made == 0 && z.avail_in == input_before;
    if (is_stuck && !stream_->is_at_end && taken_ == entry_.data.size()) {
      return Error("its deflated data is cut short");
    }
    out = out.subspan(made);
  }
  return Status::Ok();
}

Status ZipEntryReader::Finish() {
  if (left() > 0) {
    return Error("its contents go on for " + std::to_string(left()) + " bytes after their end");
  }
  if (entry_.is_deflated && stream_ == nullptr && !entry_.data.empty()) {
    VARVE_RETURN_IF_ERROR(Inflate({}));  // opens the stream
  }
  if (stream_ != nullptr) {
    // What is left of the stream is its end, of a few bits.
    std::byte more{};
    while (!stream_->is_at_end) {
      if (stream_->z.avail_in == 0 && taken_ < entry_.data.size()) {
        VARVE_RETURN_IF_ERROR(FillInput());
      }
      stream_->z.next_out = reinterpret_cast<Bytef*>(&more);
      stream_->z.avail_out = 1;
      const uInt input_before = stream_->z.avail_in;
      const int result = ::inflate(&stream_->z, Z_NO_FLUSH);
      stream_->is_at_end = result == Z_STREAM_END;
      if (stream_->z.avail_out == 0) return Error("its deflated data goes on after its contents");
      const bool is_stuck = stream_->z.avail_in == input_before && taken_ == entry_.data.size();
      if (!stream_->is_at_end && (result != Z_OK || is_stuck)) {
        return Error("its deflated data has no end");
      }
    }
    if (stream_->z.avail_in > 0 || taken_ < entry_.data.size()) {
      return Error("bytes follow its deflated data");
    }
  }
  if (crc_ == entry_.crc || !entry_.has_crc) return file_->CheckUnchanged();
  return Error("its contents have another CRC-32 than the directory says: the file is damaged");
}

Result<std::vector<std::byte>> ReadZipEntry(const std::shared_ptr<const InputFile>& file,
                                            const ZipEntry& entry, const std::string& what,
                                            uint64_t max_bytes) {
  if (entry.size > max_bytes) {
    return Status::InvalidArgument(what + ": it has " + std::to_string(entry.size) +
                                   " bytes, expected at most " + std::to_string(max_bytes));
  }
  ZipEntryReader reader(file, entry, what);
  std::vector<std::byte> contents(entry.size);
  VARVE_RETURN_IF_ERROR(reader.Read(contents));
  VARVE_RETURN_IF_ERROR(reader.Finish());
  return contents;
}

}  // namespace varve::internal::formats
