// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/dcp_metadata.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "cli/formats/pickle.h"
#include "cli/formats/pickle_values.h"
#include "cli/formats/safetensors_index.h"
#include "cli/formats/torch_tree.h"

namespace varve::internal::formats {
namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata.";
constexpr size_t kMaxChunks = 65'536;  // of a tensor

// Classes of DCP. What is not read of them is ignored.
constexpr std::string_view kClasses[] = {
    "builtins.getattr",  // CheckGetattr says of what
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.serialization._get_layout",
};
constexpr std::string_view kGetattr = "builtins.getattr";
constexpr std::string_view kMemoryFormat =
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING";

bool IsDcpGlobal(std::string_view name) {
  return std::binary_search(std::begin(kClasses), std::end(kClasses), name) || IsTorchGlobal(name);
}

using Offsets = std::vector<int64_t>;

class MetadataReader {
 public:
  explicit MetadataReader(const Pickle& pickle) : pickle_(pickle) {}

  Result<DcpMetadata> Read() {
    VARVE_RETURN_IF_ERROR(CheckGetattr());
    VARVE_RETURN_IF_ERROR(ExpectClass(pickle_.root, "Metadata"));
    VARVE_ASSIGN_OR_RETURN(const PickleId places, Field(pickle_.root, "storage_data"));
    VARVE_RETURN_IF_ERROR(ReadPlaces(places));
    VARVE_ASSIGN_OR_RETURN(const PickleId entries, Field(pickle_.root, "state_dict_metadata"));
    VARVE_RETURN_IF_ERROR(ReadEntries(entries));
    VARVE_ASSIGN_OR_RETURN(const PickleId planner, Field(pickle_.root, "planner_data"));
    Result<TorchTree> tree = ReadTorchTree(pickle_, planner);
    if (!tree.ok()) return tree.status().WithContext("planner_data");
    if (!tree->tensors.empty()) {
      return PickleError(pickle_[planner], "planner_data holds a tensor, expected none");
    }
    metadata_.planner_json = std::move(tree->json);
    return std::move(metadata_);
  }

 private:
  // The first releases of Python 3.11 pickle a member of an enum as a getattr of the enum. DCP has
  // one enum.
  Status CheckGetattr() const {
    for (PickleId id = 0; id < pickle_.values.size(); ++id) {
      const PickleCall call = AsCall(pickle_, id);
      if (call.function != kGetattr) continue;
      const bool is_member = call.args.size() == 2 &&
                             pickle_[call.args[0]].kind == PickleKind::kGlobal &&
                             pickle_[call.args[0]].text == kMemoryFormat &&
                             pickle_[call.args[1]].kind == PickleKind::kString;
      if (is_member) continue;
      return PickleError(pickle_[id], "the pickle uses builtins.getattr, expected that of " +
                                          std::string(kMemoryFormat) + " only");
    }
    return Status::Ok();
  }

  std::string_view ClassOf(PickleId id) const {
    const std::string_view function = AsCall(pickle_, id).function;
    return function.starts_with(kModule) ? function.substr(kModule.size()) : std::string_view();
  }

  Status ExpectClass(PickleId id, std::string_view name) const {
    if (ClassOf(id) == name) return Status::Ok();
    const std::string_view found = AsCall(pickle_, id).function;
    return PickleError(pickle_[id],
                       "there is " +
                           std::string(found.empty() ? PickleKindName(pickle_[id].kind) : found) +
                           ", expected a " + std::string(name) + " of DCP");
  }

  // A field of an object, or none.
  PickleId FindField(PickleId id, std::string_view name) const {
    const PickleId state = pickle_[id].state;
    if (state == kNoPickleValue || pickle_[state].kind != PickleKind::kDict) return kNoPickleValue;
    const std::vector<PickleId>& items = pickle_[state].items;
    for (size_t i = 0; i < items.size(); i += 2) {
      const PickleValue& key = pickle_[items[i]];
      if (key.kind == PickleKind::kString && key.text == name) return items[i + 1];
    }
    return kNoPickleValue;
  }

  Result<PickleId> Field(PickleId id, std::string_view name) const {
    const PickleId found = FindField(id, name);
    if (found != kNoPickleValue) return found;
    return PickleError(pickle_[id], "the object has no field " + std::string(name));
  }

  Result<std::span<const PickleId>> DictItems(PickleId id, std::string_view what) const {
    const PickleValue& value = pickle_[id];
    if (value.kind == PickleKind::kDict) return std::span<const PickleId>(value.items);
    return PickleError(value, std::string(what) + " is " + std::string(PickleKindName(value.kind)) +
                                  ", expected a dict");
  }

  Status ReadPlaces(PickleId id) {
    VARVE_ASSIGN_OR_RETURN(const auto items, DictItems(id, "storage_data"));
    for (size_t i = 0; i < items.size(); i += 2) {
      VARVE_RETURN_IF_ERROR(ExpectClass(items[i], "MetadataIndex"));
      VARVE_ASSIGN_OR_RETURN(const PickleId name_id, Field(items[i], "fqn"));
      VARVE_ASSIGN_OR_RETURN(const std::string_view name, PickleString(pickle_, name_id, "fqn"));
      Offsets offsets;
      const PickleId offset_id = FindField(items[i], "offset");
      if (offset_id != kNoPickleValue && pickle_[offset_id].kind != PickleKind::kNone) {
        VARVE_ASSIGN_OR_RETURN(offsets, PickleLengths(pickle_, offset_id, "an offset"));
      }
      Result<DcpPlace> place = ReadPlace(items[i + 1]);
      if (!place.ok()) return place.status().WithContext("\"" + std::string(name) + "\"");
      const bool is_new = places_[name].emplace(std::move(offsets), *std::move(place)).second;
      if (!is_new) {
        return PickleError(pickle_[items[i]],
                           "\"" + std::string(name) + "\" has two places for one chunk");
      }
    }
    return Status::Ok();
  }

  Result<uint64_t> Count(PickleId object, std::string_view field) const {
    VARVE_ASSIGN_OR_RETURN(const PickleId id, Field(object, field));
    VARVE_ASSIGN_OR_RETURN(const int64_t value, PickleInt(pickle_, id, field));
    if (value >= 0) return static_cast<uint64_t>(value);
    return PickleError(pickle_[id], std::string(field) + " is " + std::to_string(value) +
                                        ", expected no negative number");
  }

  Result<DcpPlace> ReadPlace(PickleId id) const {
    VARVE_ASSIGN_OR_RETURN(const PickleId path_id, Field(id, "relative_path"));
    VARVE_ASSIGN_OR_RETURN(const std::string_view path,
                           PickleString(pickle_, path_id, "relative_path"));
    if (!IsPlainFileName(path)) {
      return PickleError(pickle_[path_id], "relative_path is \"" + std::string(path) +
                                               "\", expected a file of the folder");
    }
    const PickleId transforms = FindField(id, "transform_descriptors");
    if (transforms != kNoPickleValue && pickle_[transforms].kind != PickleKind::kNone &&
        !pickle_[transforms].items.empty()) {
      return PickleError(pickle_[transforms],
                         "the bytes went through an extension of DCP's when they were saved, which "
                         "varve does not know: save without _extensions");
    }
    DcpPlace place{.file = std::string(path)};
    VARVE_ASSIGN_OR_RETURN(place.offset, Count(id, "offset"));
    VARVE_ASSIGN_OR_RETURN(place.length, Count(id, "length"));
    return place;
  }

  Status ReadEntries(PickleId id) {
    VARVE_ASSIGN_OR_RETURN(const auto items, DictItems(id, "state_dict_metadata"));
    for (size_t i = 0; i < items.size(); i += 2) {
      VARVE_ASSIGN_OR_RETURN(const std::string_view name,
                             PickleString(pickle_, items[i], "the name of a tensor"));
      VARVE_RETURN_IF_ERROR(ReadEntry(std::string(name), items[i + 1])
                                .WithContext("\"" + std::string(name.substr(0, 200)) + "\""));
    }
    return Status::Ok();
  }

  Status ReadEntry(std::string name, PickleId id) {
    VARVE_RETURN_IF_ERROR(ValidateName("the name", name));
    const auto places = places_.find(name);
    if (ClassOf(id) == "BytesStorageMetadata") {
      if (places == places_.end() || !places->second.contains({})) {
        return PickleError(pickle_[id], "the value has no place in a file");
      }
      metadata_.values.push_back({places->second.at({}), std::move(name)});
      return Status::Ok();
    }
    VARVE_RETURN_IF_ERROR(ExpectClass(id, "TensorStorageMetadata"));
    DcpTensor tensor;
    VARVE_RETURN_IF_ERROR(ReadProperties(id, &tensor));
    VARVE_ASSIGN_OR_RETURN(const PickleId size, Field(id, "size"));
    VARVE_ASSIGN_OR_RETURN(tensor.shape, PickleLengths(pickle_, size, "the size of a tensor"));
    VARVE_RETURN_IF_ERROR(NumElements(tensor.shape).status());
    VARVE_ASSIGN_OR_RETURN(const PickleId chunks_id, Field(id, "chunks"));
    VARVE_ASSIGN_OR_RETURN(const auto chunks, PickleItems(pickle_, chunks_id, "chunks"));
    if (chunks.size() > kMaxChunks) {
      return PickleError(pickle_[id], "the tensor has " + std::to_string(chunks.size()) +
                                          " chunks, expected at most " +
                                          std::to_string(kMaxChunks));
    }
    for (const PickleId chunk : chunks) {
      VARVE_RETURN_IF_ERROR(
          ReadChunk(chunk, places == places_.end() ? nullptr : &places->second, &tensor));
    }
    tensor.name = std::move(name);
    metadata_.tensors.push_back(std::move(tensor));
    return Status::Ok();
  }

  // The state of properties is a tuple, whose first item is the dtype.
  Status ReadProperties(PickleId id, DcpTensor* tensor) const {
    VARVE_ASSIGN_OR_RETURN(const PickleId properties, Field(id, "properties"));
    VARVE_RETURN_IF_ERROR(ExpectClass(properties, "TensorProperties"));
    const PickleId state = pickle_[properties].state;
    const bool has_dtype = state != kNoPickleValue && pickle_[state].kind == PickleKind::kTuple &&
                           !pickle_[state].items.empty();
    if (has_dtype) {
      const PickleValue& dtype = pickle_[pickle_[state].items[0]];
      if (dtype.kind == PickleKind::kGlobal && dtype.text.starts_with(kTorchPrefix)) {
        tensor->type = FindTorchType(dtype.text.substr(kTorchPrefix.size()));
      }
    }
    if (tensor->type != nullptr) return Status::Ok();
    return PickleError(pickle_[properties], "the properties name no dtype that varve has");
  }

  Status ReadChunk(PickleId id, const std::map<Offsets, DcpPlace>* places,
                   DcpTensor* tensor) const {
    VARVE_RETURN_IF_ERROR(ExpectClass(id, "ChunkStorageMetadata"));
    VARVE_ASSIGN_OR_RETURN(const PickleId offsets_id, Field(id, "offsets"));
    VARVE_ASSIGN_OR_RETURN(const PickleId sizes_id, Field(id, "sizes"));
    DcpChunk chunk;
    VARVE_ASSIGN_OR_RETURN(chunk.offsets, PickleLengths(pickle_, offsets_id, "offsets"));
    VARVE_ASSIGN_OR_RETURN(chunk.sizes, PickleLengths(pickle_, sizes_id, "sizes"));
    const size_t axes = tensor->shape.size();
    if (chunk.offsets.size() != axes || chunk.sizes.size() != axes) {
      return PickleError(pickle_[id], "a chunk has another number of axes than its tensor");
    }
    bool is_empty = false;
    for (size_t i = 0; i < axes; ++i) {
      if (chunk.sizes[i] == 0) is_empty = true;
      if (chunk.offsets[i] > tensor->shape[i] ||
          chunk.sizes[i] > tensor->shape[i] - chunk.offsets[i]) {
        return PickleError(pickle_[id], "a chunk has " + std::to_string(chunk.sizes[i]) +
                                            " indices from " + std::to_string(chunk.offsets[i]) +
                                            " on axis " + std::to_string(i) + ", whose length is " +
                                            std::to_string(tensor->shape[i]));
      }
    }
    if (is_empty) return Status::Ok();  // as of the last ranks, when there are more than rows
    if (places != nullptr) {
      const auto found = places->find(chunk.offsets);
      if (found != places->end()) {
        static_cast<DcpPlace&>(chunk) = found->second;
        tensor->chunks.push_back(std::move(chunk));
        return Status::Ok();
      }
    }
    return PickleError(pickle_[id], "a chunk has no place in a file");
  }

  const Pickle& pickle_;
  std::map<std::string_view, std::map<Offsets, DcpPlace>> places_;
  DcpMetadata metadata_;
};

}  // namespace

Result<DcpMetadata> ParseDcpMetadata(std::span<const std::byte> bytes) {
  VARVE_ASSIGN_OR_RETURN(const Pickle pickle, ParsePickle(bytes, IsDcpGlobal));
  return MetadataReader(pickle).Read();
}

}  // namespace varve::internal::formats
