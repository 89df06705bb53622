// SPDX-License-Identifier: Apache-2.0
//
// Folders of DCP's HuggingFaceStorageWriter(save_distributed=True):
// shard-RANK-model-FILE-of-FILES.safetensors.
// `__metadata__` of each file says at which index of its tensor each chunk begins. Nothing says how
// large the tensors are, so their chunks do.
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/bytes_of.h"
#include "cli/foreign/dcp_pieces.h"
#include "cli/foreign/import_source.h"
#include "cli/formats/safetensors.h"
#include "cli/formats/small_reads.h"
#include "cli/formats/strict_json.h"

namespace varve::internal::cli {
namespace {

namespace fs = std::filesystem;
using formats::InputFile;
using formats::SafetensorsHeader;
using formats::SafetensorsTensor;

constexpr char kShardingInfo[] = "DCP_SHARDING_INFO";
constexpr char kOffsets[] = "saved_offsets";

// Its shape goes as far as the chunks so far.
struct Tensor : TensorSpec {
  std::vector<DcpPiece> pieces;
};

class ShardFolder {
 public:
  explicit ShardFolder(fs::path path) : path_(std::move(path)) {}

  // False: no file says where its chunks belong.
  Result<bool> Read() {
    VARVE_ASSIGN_OR_RETURN(const std::vector<fs::path> files, ListFiles());
    size_t num_without = 0;
    for (const fs::path& file : files) {
      Result<bool> read = ReadFile(file);
      if (read.status().code() == StatusCode::kInvalidArgument) {
        return read.status().WithContext(file.string());
      }
      VARVE_RETURN_IF_ERROR(read.status());  // the file's own errors name it
      if (!*read) ++num_without;
    }
    if (num_without == files.size()) return false;
    if (num_without == 0) return true;
    return Status::InvalidArgument(path_.string() + ": " + std::to_string(num_without) + " of " +
                                   std::to_string(files.size()) + " safetensors files have no " +
                                   kShardingInfo + " in their metadata, expected all to have it");
  }

  Result<ImportSource> MakeSource() {
    ImportSource source;
    for (auto& [name, tensor] : tensors_) {
      VARVE_RETURN_IF_ERROR(CheckPieces(path_.string(), name, tensor.shape, tensor.pieces));
      formats::FileTensor& added = source.tensors.emplace_back();
      static_cast<TensorSpec&>(added) = tensor;
      if (IsOptimizerState(name)) added.role = TensorRole::kOptimizer;
      added.bytes = JoinPieces(tensor.shape, BytesOf(tensor.dtype, 1), std::move(tensor.pieces));
    }
    return source;
  }

 private:
  Result<std::vector<fs::path>> ListFiles() const {
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() == ".safetensors") files.push_back(it->path());
    }
    if (error) return Status::IOError("cannot list " + path_.string() + ": " + error.message());
    std::ranges::sort(files);
    return files;
  }

  // False: the file does not say where its chunks belong.
  Result<bool> ReadFile(const fs::path& path) {
    VARVE_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
    VARVE_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                           formats::ParseSafetensors(file->bytes(), FetcherOf(file.get())));
    const auto text = header.metadata.find(kShardingInfo);
    if (text == header.metadata.end()) return false;
    const Result<nlohmann::json> info = formats::ParseStrictJson(text->second);
    if (!info.ok()) return info.status().WithContext(kShardingInfo);
    const auto reads = std::make_shared<formats::SmallReads>(file);
    for (const SafetensorsTensor& chunk : header.tensors) {
      VARVE_ASSIGN_OR_RETURN(std::vector<int64_t> offsets, OffsetsOf(*info, chunk));
      const auto data =
          file->bytes().subspan(header.data_begin + chunk.begin, chunk.end - chunk.begin);
      VARVE_RETURN_IF_ERROR(
          Add(chunk, std::move(offsets), std::make_shared<formats::FileBytes>(reads, data)));
    }
    return true;
  }

  static Result<std::vector<int64_t>> OffsetsOf(const nlohmann::json& info,
                                                const SafetensorsTensor& chunk) {
    const auto wrong = [&](const std::string& what) {
      return Status::InvalidArgument(std::string(kShardingInfo) + " of tensor \"" + chunk.name +
                                     "\" " + what);
    };
    const auto entry = info.is_object() ? info.find(chunk.name) : info.end();
    if (entry == info.end()) return wrong("is missing");
    const auto list = entry->is_object() ? entry->find(kOffsets) : entry->end();
    if (list == entry->end() || !list->is_array()) return wrong("has no list saved_offsets");
    if (list->size() != chunk.shape.size()) {
      return wrong("has " + std::to_string(list->size()) + " offsets, expected " +
                   std::to_string(chunk.shape.size()));
    }
    std::vector<int64_t> offsets;
    for (size_t i = 0; i < chunk.shape.size(); ++i) {
      const nlohmann::json& value = (*list)[i];
      const int64_t most = INT64_MAX - chunk.shape[i];
      if (!value.is_number_integer() || value < 0 || value > most) {
        return wrong("has the offset " + value.dump() + ", expected a number from 0 to " +
                     std::to_string(most));
      }
      offsets.push_back(value.get<int64_t>());
    }
    return offsets;
  }

  Status Add(const SafetensorsTensor& chunk, std::vector<int64_t> offsets,
             std::shared_ptr<formats::TensorBytes> bytes) {
    const auto [it, is_new] = tensors_.try_emplace(chunk.name);
    Tensor& tensor = it->second;
    if (is_new) {
      tensor.name = chunk.name;
      tensor.dtype = chunk.dtype;
      tensor.shape.assign(chunk.shape.size(), 0);
    }
    const std::string name = "tensor \"" + chunk.name + "\" ";
    if (tensor.dtype != chunk.dtype || tensor.shape.size() != chunk.shape.size()) {
      return Status::InvalidArgument(
          name + "has " + std::to_string(chunk.shape.size()) + " axes of " +
          std::string(DTypeName(chunk.dtype)) + ", and another file has " +
          std::to_string(tensor.shape.size()) + " of " + std::string(DTypeName(tensor.dtype)));
    }
    if (DTypeBits(chunk.dtype) % 8 != 0) {
      return Status::InvalidArgument(name + "is of " + std::string(DTypeName(chunk.dtype)) +
                                     ", and elements of less than a byte cannot be put together");
    }
    for (size_t i = 0; i < offsets.size(); ++i) {
      tensor.shape[i] = std::max(tensor.shape[i], offsets[i] + chunk.shape[i]);
    }
    const bool is_empty = std::ranges::find(chunk.shape, 0) != chunk.shape.end();
    if (is_empty) return Status::Ok();  // as of ranks that have no rows
    tensor.pieces.push_back({std::move(offsets), chunk.shape, std::move(bytes)});
    return Status::Ok();
  }

  const fs::path path_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace

Result<std::optional<ImportSource>> ReadDcpSafetensors(const fs::path& folder) {
  ShardFolder shards(folder);
  VARVE_ASSIGN_OR_RETURN(const bool is_there, shards.Read());
  if (!is_there) return std::optional<ImportSource>();
  VARVE_ASSIGN_OR_RETURN(ImportSource source, shards.MakeSource());
  return std::optional(std::move(source));
}

}  // namespace varve::internal::cli
