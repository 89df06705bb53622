// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/npz_files.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/util.h"
#include "cli/formats/byte_reader.h"
#include "cli/formats/tensor_bytes.h"
#include "cli/formats/zip_entry_reader.h"

namespace varve::internal::formats {
namespace {

constexpr std::string_view kSuffix = ".npy";

std::string WithoutSuffix(const std::string& name) {
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
}

Status SizeError(uint64_t found, const NpyArray& array, uint64_t header_bytes) {
  return Status::InvalidArgument("it has " + std::to_string(found) + " bytes, expected " +
                                 std::to_string(header_bytes) + " of the header and " +
                                 std::to_string(array.num_bytes) + " that dtype and shape need");
}

bool FitsExactly(uint64_t size, const NpyArray& array, uint64_t header_bytes) {
  return size >= header_bytes && size - header_bytes == array.num_bytes;
}

// Reads the start of an entry and fills `array`.
Status ReadHeader(const std::shared_ptr<const InputFile>& file, const ZipEntry& entry,
                  NpzArray* array) {
  ZipEntryReader reader(file, entry, array->what);
  std::vector<std::byte> header(std::min<uint64_t>(kNpyStartBytes, entry.size));
  VARVE_RETURN_IF_ERROR(reader.Read(header));
  const Result<uint64_t> bytes = NpyHeaderBytes(header);
  if (!bytes.ok()) return bytes.status().WithContext(array->what);
  if (*bytes > entry.size) {
    return ErrorAt(8, "the header has " + std::to_string(*bytes) + " bytes, and the entry has " +
                          std::to_string(entry.size))
        .WithContext(array->what);
  }
  const size_t had = std::min<size_t>(header.size(), *bytes);
  header.resize(*bytes);
  VARVE_RETURN_IF_ERROR(reader.Read(std::span(header).subspan(had)));
  Result<NpyArray> parsed = ParseNpyHeader(header);
  if (parsed.ok() && !FitsExactly(entry.size, *parsed, *bytes)) {
    return SizeError(entry.size, *parsed, *bytes).WithContext(array->what);
  }
  if (!parsed.ok()) return parsed.status().WithContext(array->what);
  parsed->name = std::move(array->name);
  static_cast<NpyArray&>(*array) = *std::move(parsed);
  array->data_begin = *bytes;
  return Status::Ok();
}

}  // namespace

Result<NpzFiles> NpzFiles::Open(std::span<const std::filesystem::path> paths) {
  NpzFiles files;
  for (const std::filesystem::path& path : paths) VARVE_RETURN_IF_ERROR(files.AddFile(path));
  return files;
}

Status NpzFiles::AddFile(const std::filesystem::path& path) {
  VARVE_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  const auto start = file->bytes().first(std::min<size_t>(kNpyStartBytes, file->bytes().size()));
  VARVE_RETURN_IF_ERROR(file->Fetch(start));
  if (NpyHeaderBytes(start).ok()) return AddNpy(path, file);
  // An archive without entries starts with its end record.
  if (LooksLikeZip(start) || AsString(start).starts_with("PK\x05\x06")) return AddNpz(path, file);
  return Status::InvalidArgument(path.string() +
                                 ": this is neither a .npz nor a .npy file, expected that it "
                                 "starts with PK or \\x93NUMPY");
}

Status NpzFiles::AddNpz(const std::filesystem::path& path, const std::shared_ptr<InputFile>& file) {
  Result<std::vector<ZipEntry>> entries = ParseZip(file->bytes(), FetcherOf(file.get()));
  if (entries.status().code() == StatusCode::kInvalidArgument) {
    return entries.status().WithContext(path.string());
  }
  VARVE_RETURN_IF_ERROR(entries.status());  // the file's own errors name it
  uint64_t tensor_bytes = 0;
  for (ZipEntry& entry : *entries) {
    NpzArray array;
    array.what = path.string() + ": entry \"" + entry.name + "\"";
    if (!entry.name.ends_with(kSuffix)) {
      return Status::InvalidArgument(
          array.what + ": it is no array, expected a name that ends in " + std::string(kSuffix));
    }
    array.name = WithoutSuffix(entry.name);
    array.file = file;
    VARVE_RETURN_IF_ERROR(ReadHeader(file, entry, &array));
    array.entry = std::move(entry);
    tensor_bytes += std::min(array.num_bytes, std::numeric_limits<uint64_t>::max() - tensor_bytes);
    VARVE_RETURN_IF_ERROR(Add(std::move(array)));
  }
  return CheckGrowth(tensor_bytes, file->bytes().size()).WithContext(path.string());
}

Status NpzFiles::AddNpy(const std::filesystem::path& path, const std::shared_ptr<InputFile>& file) {
  NpzArray array;
  array.what = path.string();
  array.name = WithoutSuffix(path.filename().string());
  array.file = file;
  const auto bytes = file->bytes();
  VARVE_ASSIGN_OR_RETURN(
      const uint64_t header_bytes,
      NpyHeaderBytes(bytes.first(std::min<size_t>(kNpyStartBytes, bytes.size()))));
  const auto header = bytes.first(std::min<uint64_t>(header_bytes, bytes.size()));
  VARVE_RETURN_IF_ERROR(file->Fetch(header));
  Result<NpyArray> parsed = ParseNpyHeader(header);
  if (!parsed.ok()) return parsed.status().WithContext(array.what);
  if (!FitsExactly(bytes.size(), *parsed, header_bytes)) {
    return SizeError(bytes.size(), *parsed, header_bytes).WithContext(array.what);
  }
  parsed->name = std::move(array.name);
  static_cast<NpyArray&>(array) = *std::move(parsed);
  array.data_begin = header_bytes;
  return Add(std::move(array));
}

Status NpzFiles::Add(NpzArray array) {
  VARVE_RETURN_IF_ERROR(ValidateName("name", array.name).WithContext(array.what));
  if (!names_.insert(array.name).second) {
    return Status::InvalidArgument(array.what + ": an array of that name is in two files");
  }
  arrays_.push_back(std::move(array));
  return Status::Ok();
}

}  // namespace varve::internal::formats
