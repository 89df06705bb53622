// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/foreign/dcp_items.h"
#include "cli/foreign/import_source.h"
#include "cli/foreign/torch_parts.h"
#include "cli/formats/byte_reader.h"
#include "cli/formats/dcp_metadata.h"
#include "cli/formats/torch_file.h"
#include "store/shards/disjoint.h"
#include "store/shards/strides.h"
#include "varve/shard_layout.h"

namespace varve::internal::cli {
namespace {

using formats::DcpChunk;
using formats::DcpMetadata;
using formats::DcpPlace;
using formats::DcpTensor;
using formats::InputFile;
using formats::TensorBytes;
using formats::TorchFile;

constexpr std::string_view kMetadata = ".metadata";
constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 30;

std::vector<int64_t> RowMajor(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

// A chunk as a part of its tensor.
struct Piece {
  std::vector<int64_t> sizes;
  uint64_t begin = 0;  // of the first element in the dense tensor, in bytes
  uint64_t num_bytes = 0;
  std::shared_ptr<TensorBytes> bytes;
};

Status FinishAll(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) VARVE_RETURN_IF_ERROR(piece.bytes->Finish());
  return Status::Ok();
}

// A tensor whose chunks follow each other in memory, as when it is cut by rows.
class JoinedBytes : public TensorBytes {
 public:
  // The pieces are sorted by begin, and leave no gap.
  explicit JoinedBytes(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  Status Read(uint64_t offset, std::span<std::byte> out) override {
    auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                  [](uint64_t at, const Piece& p) { return at < p.begin; });
    for (--piece; !out.empty(); ++piece) {
      const uint64_t within = offset - piece->begin;
      const size_t size = std::min<uint64_t>(out.size(), piece->num_bytes - within);
      VARVE_RETURN_IF_ERROR(piece->bytes->Read(within, out.first(size)));
      offset += size;
      out = out.subspan(size);
    }
    return Status::Ok();
  }
  void Release() override {
    for (const Piece& piece : pieces_) piece.bytes->Release();
  }
  Status Finish() override { return FinishAll(pieces_); }

 private:
  const std::vector<Piece> pieces_;
};

// A tensor whose chunks lie among each other.
std::shared_ptr<TensorBytes> Assemble(const std::vector<int64_t>& shape, size_t element_bytes,
                                      uint64_t num_bytes, std::vector<Piece> pieces) {
  const auto shared = std::make_shared<const std::vector<Piece>>(std::move(pieces));
  const auto make = [shared, strides = RowMajor(shape), element_bytes](std::span<std::byte> all) {
    std::vector<std::byte> dense;
    for (const Piece& piece : *shared) {
      dense.resize(piece.num_bytes);
      VARVE_RETURN_IF_ERROR(piece.bytes->Read(0, dense));
      piece.bytes->Release();
      Strides(piece.sizes, strides).Scatter(dense, element_bytes, 0, all.data() + piece.begin);
    }
    return Status::Ok();
  };
  return std::make_shared<formats::MadeBytes>(num_bytes, make,
                                              [shared] { return FinishAll(*shared); });
}

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

  Result<Piece> ReadChunk(const DcpTensor& tensor, const DcpChunk& chunk) {
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
    Piece piece{.sizes = chunk.sizes, .num_bytes = tensors[0].num_bytes, .bytes = nullptr};
    const std::vector<int64_t> strides = RowMajor(tensor.shape);
    const int64_t first =
        std::inner_product(strides.begin(), strides.end(), chunk.offsets.begin(), int64_t{0});
    piece.begin = static_cast<uint64_t>(first) * static_cast<uint64_t>(tensor.type->element_bytes);
    piece.bytes = TorchParts(file).BytesOf(tensors[0]);
    return piece;
  }

  // The chunks must hold every element once.
  Status CheckCoverage(const DcpTensor& tensor) const {
    VARVE_ASSIGN_OR_RETURN(const int64_t needed, NumElements(tensor.shape));
    std::vector<ShardLayout> layouts;
    std::vector<const ShardLayout*> pointers;
    for (const DcpChunk& chunk : tensor.chunks) {
      ShardLayout layout = ShardLayout::Whole(tensor.shape);
      for (size_t i = 0; i < chunk.sizes.size(); ++i) {
        layout.axes[i] = {{.begin = chunk.offsets[i], .length = chunk.sizes[i]}};
      }
      VARVE_RETURN_IF_ERROR(ValidateLayout(layout).WithContext(tensor.name));
      layouts.push_back(std::move(layout));
    }
    for (const ShardLayout& layout : layouts) pointers.push_back(&layout);
    const std::vector<size_t> originals = FindOriginals(pointers);
    bool is_distinct = true;
    for (size_t i = 0; i < originals.size(); ++i) is_distinct &= originals[i] == i;
    std::optional<int64_t> held;
    if (is_distinct) held = pointers.empty() ? 0 : CountDisjoint(pointers);
    const std::string name = path_.string() + ": tensor \"" + tensor.name + "\": ";
    if (!held) return Status::InvalidArgument(name + "two chunks have an element in common");
    if (*held == needed) return Status::Ok();
    return Status::InvalidArgument(name + "its chunks have " + std::to_string(*held) +
                                   " elements, expected " + std::to_string(needed));
  }

  Result<formats::FileTensor> ReadTensor(const DcpTensor& tensor, uint64_t* tensor_bytes) {
    VARVE_RETURN_IF_ERROR(CheckCoverage(tensor));
    formats::FileTensor added;
    added.name = tensor.name;
    added.dtype = tensor.type->dtype;
    VARVE_ASSIGN_OR_RETURN(added.shape, tensor.type->ShapeOf(tensor.shape));
    VARVE_ASSIGN_OR_RETURN(const uint64_t num_bytes, NumBytes(added.dtype, added.shape));
    *tensor_bytes += std::min(num_bytes, std::numeric_limits<uint64_t>::max() - *tensor_bytes);
    if (IsOptimizerState(tensor.name)) added.role = TensorRole::kOptimizer;
    std::vector<Piece> pieces;
    for (const DcpChunk& chunk : tensor.chunks) {
      VARVE_ASSIGN_OR_RETURN(Piece piece, ReadChunk(tensor, chunk));
      pieces.push_back(std::move(piece));
    }
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    uint64_t end = 0;
    bool is_joined = true;
    for (const Piece& piece : pieces) {
      is_joined = is_joined && piece.begin == end && IsRun(tensor.shape, piece.sizes);
      end = piece.begin + piece.num_bytes;
    }
    if (is_joined) {
      added.bytes = std::make_shared<JoinedBytes>(std::move(pieces));
    } else {
      added.bytes = Assemble(tensor.shape, static_cast<size_t>(tensor.type->element_bytes),
                             num_bytes, std::move(pieces));
    }
    return added;
  }

  // True when a box of these lengths is one run of the dense tensor: after the first axis of more
  // than one index, it has all indices.
  static bool IsRun(const std::vector<int64_t>& shape, const std::vector<int64_t>& sizes) {
    size_t i = 0;
    while (i < sizes.size() && sizes[i] == 1) ++i;
    for (++i; i < sizes.size(); ++i) {
      if (sizes[i] != shape[i]) return false;
    }
    return true;
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
  return Folder(paths[0]).Read();
}

}  // namespace varve::internal::cli
