// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/foreign/dcp_items.h"
#include "cli/foreign/dcp_pieces.h"
#include "cli/foreign/import_source.h"
#include "cli/foreign/torch_parts.h"
#include "cli/formats/byte_reader.h"
#include "cli/formats/dcp_metadata.h"
#include "cli/formats/torch_file.h"

namespace varve::internal::cli {
namespace {

using formats::DcpChunk;
using formats::DcpMetadata;
using formats::DcpPlace;
using formats::DcpTensor;
using formats::InputFile;
using formats::TorchFile;

constexpr std::string_view kMetadata = ".metadata";
constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 30;

class Folder {
 public:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}

  Result<ImportSource> Read() {
    VARVE_ASSIGN_OR_RETURN(const DcpMetadata metadata, ReadMetadata());
    uint64_t tensor_bytes = 0;
    for (const DcpTensor& tensor : metadata.tensors) {
      VARVE_ASSIGN_OR_RETURN(formats::FileTensor added, ReadTensor(tensor, &tensor_bytes));
      source_.tensors.push_back(std::move(added));
    }
    std::vector<std::string> values;
    for (const formats::DcpValue& value : metadata.values) {
      VARVE_RETURN_IF_ERROR(ReadValue(value));
      values.push_back(value.name);
    }
    source_.items[kDcpItem] = BuildDcpItem(values, metadata.planner_json);
    source_.state = StateOfTorch(plain_);
    source_.step = StepOfTorch(plain_);
    uint64_t file_bytes = 0;
    for (const auto& [name, file] : files_) file_bytes += file->bytes().size();
    VARVE_RETURN_IF_ERROR(
        formats::CheckGrowth(tensor_bytes, file_bytes).WithContext(path_.string()));
    return std::move(source_);
  }

 private:
  Result<DcpMetadata> ReadMetadata() const {
    const std::filesystem::path path = path_ / kMetadata;
    VARVE_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
    if (file->bytes().size() > kMaxMetadataBytes) {
      return Status::InvalidArgument(path.string() + ": it has " +
                                     std::to_string(file->bytes().size()) + " bytes, expected " +
                                     std::to_string(kMaxMetadataBytes) + " at most");
    }
    VARVE_RETURN_IF_ERROR(file->Fetch(file->bytes()));
    Result<DcpMetadata> metadata = formats::ParseDcpMetadata(file->bytes());
    if (!metadata.ok()) return metadata.status().WithContext(path.string());
    VARVE_RETURN_IF_ERROR(file->CheckUnchanged());
    return metadata;
  }

  std::string What(const std::string& name, const DcpPlace& place) const {
    return (path_ / place.file).string() + ": from byte " + std::to_string(place.offset) +
           " on, of \"" + name + "\"";
  }

  // The bytes of a place, and the file that they are in.
  Result<std::pair<std::shared_ptr<InputFile>, std::span<const std::byte>>> BytesAt(
      const std::string& name, const DcpPlace& place) {
    auto& file = files_[place.file];
    if (file == nullptr) {
      VARVE_ASSIGN_OR_RETURN(file, InputFile::Open(path_ / place.file));
    }
    const auto bytes = file->bytes();
    if (place.offset > bytes.size() || place.length > bytes.size() - place.offset) {
      return Status::InvalidArgument(What(name, place) + ": the place has " +
                                     std::to_string(place.length) + " bytes, and the file has " +
                                     std::to_string(bytes.size()));
    }
    return std::pair(file, bytes.subspan(place.offset, place.length));
  }

  Result<DcpPiece> ReadChunk(const DcpTensor& tensor, const DcpChunk& chunk) {
    VARVE_ASSIGN_OR_RETURN(const auto place, BytesAt(tensor.name, chunk));
    const std::string what = What(tensor.name, chunk);
    VARVE_ASSIGN_OR_RETURN(const auto file, TorchFile::OpenPart(place.first, place.second, what));
    const auto& tensors = file->tree().tensors;
    if (tensors.size() != 1 || file->tree().json.find("\"tensor\"") != 1 ||
        tensors[0].type != tensor.type || tensors[0].shape != chunk.sizes) {
      return Status::InvalidArgument(what +
                                     ": there is no tensor of the dtype and the lengths that " +
                                     std::string(kMetadata) + " says");
    }
    return DcpPiece{chunk.offsets, chunk.sizes, TorchParts(file).BytesOf(tensors[0])};
  }

  Result<formats::FileTensor> ReadTensor(const DcpTensor& tensor, uint64_t* tensor_bytes) {
    std::vector<DcpPiece> pieces;
    for (const DcpChunk& chunk : tensor.chunks) {
      pieces.push_back({chunk.offsets, chunk.sizes, nullptr});
    }
    VARVE_RETURN_IF_ERROR(CheckPieces(path_.string(), tensor.name, tensor.shape, pieces));
    formats::FileTensor added;
    added.name = tensor.name;
    added.dtype = tensor.type->dtype;
    VARVE_ASSIGN_OR_RETURN(added.shape, tensor.type->ShapeOf(tensor.shape));
    VARVE_ASSIGN_OR_RETURN(const uint64_t num_bytes, NumBytes(added.dtype, added.shape));
    *tensor_bytes += std::min(num_bytes, std::numeric_limits<uint64_t>::max() - *tensor_bytes);
    if (IsOptimizerState(tensor.name)) added.role = TensorRole::kOptimizer;
    for (size_t i = 0; i < pieces.size(); ++i) {
      VARVE_ASSIGN_OR_RETURN(pieces[i], ReadChunk(tensor, tensor.chunks[i]));
    }
    added.bytes = JoinPieces(tensor.shape, static_cast<uint64_t>(tensor.type->element_bytes),
                             std::move(pieces));
    return added;
  }

  // DCP unpickles the bytes of a value when it loads them, so they must be harmless.
  Status ReadValue(const formats::DcpValue& value) {
    VARVE_ASSIGN_OR_RETURN(const auto place, BytesAt(value.name, value));
    VARVE_ASSIGN_OR_RETURN(const auto parsed,
                           TorchFile::OpenPart(place.first, place.second, What(value.name, value)));
    std::string bytes(place.second.size(), '\0');
    VARVE_RETURN_IF_ERROR(
        place.first->Read(place.second, reinterpret_cast<std::byte*>(bytes.data())));
    for (formats::PlainValue plain : parsed->tree().plain) {
      plain.path = value.name + (plain.path.empty() ? "" : ".") + plain.path;
      if (plain_.size() < formats::kMaxPlainValues) plain_.push_back(std::move(plain));
    }
    source_.items[value.name] = std::move(bytes);
    return Status::Ok();
  }

  const std::filesystem::path path_;
  std::map<std::string, std::shared_ptr<InputFile>> files_;
  std::vector<formats::PlainValue> plain_;
  ImportSource source_;
};

}  // namespace

Result<ImportSource> ReadDcp(std::span<const std::filesystem::path> paths) {
  if (paths.size() != 1) {
    return Status::InvalidArgument("DCP: " + std::to_string(paths.size()) +
                                   " paths are given, expected one folder");
  }
  std::error_code ignored;
  if (!std::filesystem::is_directory(paths[0], ignored)) {
    return Status::InvalidArgument(paths[0].string() +
                                   ": this is no folder, expected one of DCP "
                                   "with a file .metadata");
  }
  if (!std::filesystem::exists(paths[0] / kMetadata, ignored)) {
    VARVE_ASSIGN_OR_RETURN(auto shards, ReadDcpSafetensors(paths[0]));
    if (shards.has_value()) return *std::move(shards);
  }
  return Folder(paths[0]).Read();
}

}  // namespace varve::internal::cli
