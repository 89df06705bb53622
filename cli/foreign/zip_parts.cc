// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/zip_parts.h"

#include <algorithm>
#include <span>
#include <utility>

#include "cli/formats/tensor_bytes.h"

namespace varve::internal::cli {
namespace {

constexpr uint64_t kIn64 = UINT32_MAX;  // and more do not fit into a field of 32 bits
constexpr uint16_t kHasDescriptor = 1 << 3;
constexpr uint16_t kIsUtf8 = 1 << 11;
constexpr uint16_t kVersion = 45;  // that knows zip64

void Put(uint64_t value, int bytes, std::string* text) {
  for (int i = 0; i < bytes; ++i) *text += static_cast<char>(value >> (8 * i));
}

uint32_t CrcOf(std::string_view text) {
  return formats::Crc32(0, std::as_bytes(std::span(text.data(), text.size())));
}

// The fields that the local header and the directory share.
void PutShared(const ZipParts::Entry& entry, size_t extra_bytes, std::string* text) {
  const bool is_ascii = std::all_of(entry.name.begin(), entry.name.end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  Put(kVersion, 2, text);
  Put((entry.is_streamed ? kHasDescriptor : 0) | (is_ascii ? 0 : kIsUtf8), 2, text);
  Put(0, 2, text);     // stored
  Put(0, 2, text);     // midnight
  Put(0x21, 2, text);  // of the first day that the format has
  Put(entry.crc, 4, text);
  Put(std::min(entry.size, kIn64), 4, text);
  Put(std::min(entry.size, kIn64), 4, text);
  Put(entry.name.size(), 2, text);
  Put(extra_bytes, 2, text);
}

}  // namespace

ZipParts::ZipParts() : entries_(std::make_shared<Entries>()) {}

// The sizes of an entry whose checksum is not known yet are known all the same.
std::string ZipParts::Local(const Entry& entry) {
  std::string extra;
  if (entry.size >= kIn64) {
    Put(1, 2, &extra);
    Put(16, 2, &extra);
    Put(entry.size, 8, &extra);
    Put(entry.size, 8, &extra);
  }
  std::string text = "PK\x03\x04";
  PutShared(entry, extra.size(), &text);
  return text + entry.name + extra;
}

std::string ZipParts::Descriptor(const Entry& entry) {
  std::string text = "PK\x07\x08";
  Put(entry.crc, 4, &text);
  const int bytes = entry.size >= kIn64 ? 8 : 4;
  Put(entry.size, bytes, &text);
  Put(entry.size, bytes, &text);
  return text;
}

std::string ZipParts::Directory(const Entries& entries, uint64_t begin) {
  std::string text;
  for (const Entry& entry : entries) {
    std::string extra;
    if (entry.size >= kIn64) {
      Put(entry.size, 8, &extra);
      Put(entry.size, 8, &extra);
    }
    if (entry.begin >= kIn64) Put(entry.begin, 8, &extra);
    if (!extra.empty()) {
      std::string head;
      Put(1, 2, &head);
      Put(extra.size(), 2, &head);
      extra = head + extra;
    }
    text += "PK\x01\x02";
    Put(kVersion, 2, &text);
    PutShared(entry, extra.size(), &text);
    Put(0, 2, &text);  // no comment
    Put(0, 2, &text);  // the only part
    Put(0, 2, &text);
    Put(0, 4, &text);
    Put(std::min(entry.begin, kIn64), 4, &text);
    text += entry.name + extra;
  }
  const uint64_t size = text.size();
  if (begin >= kIn64 || size >= kIn64 || entries.size() >= UINT16_MAX) {
    const uint64_t end = begin + size;
    text += "PK\x06\x06";
    Put(44, 8, &text);
    Put(kVersion, 2, &text);
    Put(kVersion, 2, &text);
    Put(0, 8, &text);
    Put(entries.size(), 8, &text);
    Put(entries.size(), 8, &text);
    Put(size, 8, &text);
    Put(begin, 8, &text);
    text += "PK\x06\x07";
    Put(0, 4, &text);
    Put(end, 8, &text);
    Put(1, 4, &text);
  }
  text += "PK\x05\x06";
  Put(0, 4, &text);
  Put(std::min<uint64_t>(entries.size(), UINT16_MAX), 2, &text);
  Put(std::min<uint64_t>(entries.size(), UINT16_MAX), 2, &text);
  Put(std::min(size, kIn64), 4, &text);
  Put(std::min(begin, kIn64), 4, &text);
  Put(0, 2, &text);
  return text;
}

void ZipParts::Append(std::string text) {
  size_ += text.size();
  parts_.emplace_back(std::move(text));
}

void ZipParts::AddText(std::string_view name, std::string_view contents) {
  Entry entry{
      .name = std::string(name), .begin = size_, .size = contents.size(), .crc = CrcOf(contents)};
  Append(Local(entry).append(contents));
  entries_->push_back(std::move(entry));
}

void ZipParts::AddTensor(std::string_view name, std::string_view before, TensorInfo tensor) {
  const uint64_t tensor_bytes = tensor.logical_bytes;
  Entry entry{.name = std::string(name),
              .begin = size_,
              .size = before.size() + tensor_bytes,
              .crc = 0,
              .is_streamed = true};
  Append(Local(entry).append(before));
  size_ += tensor_bytes;
  parts_.emplace_back(std::move(tensor));
  const size_t descriptor_bytes = Descriptor(entry).size();
  parts_.emplace_back(CrcText{.size = descriptor_bytes,
                              .make = [entries = entries_, i = entries_->size(),
                                       crc = CrcOf(before), tensor_bytes](uint32_t tensor_crc) {
                                Entry& written = (*entries)[i];
                                written.crc = formats::JoinCrc32(crc, tensor_crc, tensor_bytes);
                                return Descriptor(written);
                              }});
  size_ += descriptor_bytes;
  entries_->push_back(std::move(entry));
}

std::vector<ExportPart> ZipParts::Finish() {
  const uint64_t begin = size_;
  const size_t bytes = Directory(*entries_, begin).size();
  parts_.emplace_back(CrcText{.size = bytes, .make = [entries = entries_, begin](uint32_t) {
                                return Directory(*entries, begin);
                              }});
  size_ += bytes;
  return std::move(parts_);
}

}  // namespace varve::internal::cli
