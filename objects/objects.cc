// SPDX-License-Identifier: Apache-2.0
#include "objects/objects.h"

#include <algorithm>
#include <cstring>

#include "base/stop.h"

namespace varve::internal {

namespace {

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool IsNameCharacter(char c) { return IsAlphanumeric(c) || c == '.' || c == '_' || c == '-'; }

}  // namespace

Status MemorySource::Read(uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
    return Status::InvalidArgument("bytes " + std::to_string(offset) + " to " +
                                   std::to_string(offset + out.size()) + " of a blob of " +
                                   std::to_string(bytes_.size()) + " bytes");
  }
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return Status::Ok();
}

Status Objects::CheckName(std::string_view name, std::string_view what) const {
  VARVE_RETURN_IF_ERROR(StopFlag().Check());
  if (!name.empty() && name.size() <= kMaxObjectName && IsAlphanumeric(name[0]) &&
      std::all_of(name.begin(), name.end(), IsNameCharacter)) {
    return Status::Ok();
  }
  return Status::InvalidArgument(url_ + ": \"" + std::string(name.substr(0, kMaxObjectName)) +
                                 "\" cannot be the name of a " + std::string(what) +
                                 ", which has 1 to 200 characters of A-Z a-z 0-9 . _ - and starts "
                                 "with a letter or digit");
}

Status Objects::PutBlob(std::string_view name, const BlobSource& source) {
  VARVE_RETURN_IF_ERROR(CheckName(name, "blob"));
  return DoPutBlob(std::string(name), source);
}

Result<std::optional<size_t>> Objects::GetBlob(std::string_view name, uint64_t offset,
                                               std::span<std::byte> out) const {
  VARVE_RETURN_IF_ERROR(CheckName(name, "blob"));
  return DoGetBlob(std::string(name), offset, out);
}

Status Objects::RemoveBlob(std::string_view name) {
  VARVE_RETURN_IF_ERROR(CheckName(name, "blob"));
  return DoRemoveBlob(std::string(name));
}

Status Objects::ListBlobs(const VisitBlob& visit) const {
  VARVE_RETURN_IF_ERROR(StopFlag().Check());
  return DoListBlobs(visit);
}

Result<CreateOutcome> Objects::CreateRecord(std::string_view name, std::string_view bytes) {
  VARVE_RETURN_IF_ERROR(CheckName(name, "record"));
  if (bytes.size() > kMaxRecordBytes) {
    return Status::InvalidArgument(url_ + ": record " + std::string(name) + " has " +
                                   std::to_string(bytes.size()) + " bytes, expected at most " +
                                   std::to_string(kMaxRecordBytes));
  }
  return DoCreateRecord(std::string(name), bytes);
}

Result<std::optional<std::string>> Objects::ReadRecord(std::string_view name) const {
  VARVE_RETURN_IF_ERROR(CheckName(name, "record"));
  return DoReadRecord(std::string(name));
}

Result<std::vector<std::string>> Objects::ListRecords(std::string_view prefix,
                                                      std::string_view after, size_t limit) const {
  if (!prefix.empty()) VARVE_RETURN_IF_ERROR(CheckName(prefix, "record"));
  if (!after.empty()) VARVE_RETURN_IF_ERROR(CheckName(after, "record"));
  VARVE_RETURN_IF_ERROR(StopFlag().Check());
  if (limit == 0) return std::vector<std::string>();
  return DoListRecords(std::string(prefix), std::string(after), limit);
}

Status Objects::RemoveRecord(std::string_view name) {
  VARVE_RETURN_IF_ERROR(CheckName(name, "record"));
  return DoRemoveRecord(std::string(name));
}

}  // namespace varve::internal
