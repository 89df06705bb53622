// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/foreign/dcp_items.h"
#include "cli/foreign/dcp_pieces.h"
#include "cli/foreign/export_plan.h"
#include "cli/foreign/zip_parts.h"
#include "cli/formats/byte_reader.h"
#include "cli/formats/pickle_writer.h"
#include "cli/formats/strict_json.h"
#include "cli/formats/torch_types.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

namespace pickled = formats::pickled;
using formats::TorchType;
using nlohmann::json;
using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr char kDataFile[] = "__0_0.distcp";
constexpr char kMetadataFile[] = ".metadata";
constexpr char kModule[] = "torch.distributed.checkpoint.metadata";
constexpr char kArchive[] = "archive/";  // the folder that torch.save uses

template <typename... Items>
std::string Tuple(Items... items) {
  const std::string list[] = {std::move(items)...};
  return pickled::Tuple(list);
}

std::string ClassOf(std::string_view name) { return pickled::Global(kModule, name); }

std::string Field(std::string_view name) { return pickled::Text(name); }

// The shape that torch says for a tensor of varve's.
std::vector<int64_t> TorchShape(const TensorInfo& tensor, const TorchType& type) {
  std::vector<int64_t> shape = tensor.shape;
  if (DTypeBits(tensor.dtype) < 8 * type.element_bytes) shape.back() /= 2;
  return shape;
}

// The pickle that torch.save writes for a dense tensor.
std::string TensorPickle(const TensorInfo& tensor, const TorchType& type) {
  const std::vector<int64_t> shape = TorchShape(tensor, type);
  const bool has_class = !type.storage.empty();
  const std::string storage_class = has_class ? pickled::Global("torch", type.storage)
                                              : pickled::Global("torch.storage", "UntypedStorage");
  const uint64_t unit = has_class ? static_cast<uint64_t>(type.element_bytes) : 1;
  const std::string storage = pickled::Persistent(
      Tuple(pickled::Text("storage"), storage_class, pickled::Text("0"), pickled::Text("cpu"),
            pickled::Int(static_cast<int64_t>(tensor.logical_bytes / unit))));
  std::vector<std::string> arguments = {
      storage,
      pickled::Int(0),
      pickled::Ints(shape),
      pickled::Ints(RowMajor(shape)),
      pickled::Bool(false),
      pickled::Call(pickled::Global("collections", "OrderedDict"), pickled::Ints({}))};
  if (!has_class) arguments.push_back(pickled::Global("torch", type.name));
  const char* const function = has_class ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3";
  return pickled::Whole(
      pickled::Call(pickled::Global("torch._utils", function), pickled::Tuple(arguments)));
}

// What varve keeps of the planner's data, as values of Python.
Result<std::string> FromJson(const json& value) {
  if (value.is_null()) return pickled::None();
  if (value.is_boolean()) return pickled::Bool(value.get<bool>());
  if (value.is_number_integer()) return pickled::Int(value.get<int64_t>());
  if (value.is_number_float()) return pickled::Float(value.get<double>());
  if (value.is_string()) return pickled::Text(value.get_ref<const std::string&>());
  std::vector<std::string> items;
  if (value.is_array()) {
    for (const json& item : value) {
      VARVE_ASSIGN_OR_RETURN(std::string pushed, FromJson(item));
      items.push_back(std::move(pushed));
    }
    return pickled::List(items);
  }
  if (value.size() == 1 && value.contains("tuple") && value["tuple"].is_array()) {
    for (const json& item : value["tuple"]) {
      VARVE_ASSIGN_OR_RETURN(std::string pushed, FromJson(item));
      items.push_back(std::move(pushed));
    }
    return pickled::Tuple(items);
  }
  if (value.size() == 1 && value.contains("dict") && value["dict"].is_array()) {
    Pairs pairs;
    for (const json& pair : value["dict"]) {
      if (!pair.is_array() || pair.size() != 2) return Status::Corruption("a dict has no pairs");
      VARVE_ASSIGN_OR_RETURN(std::string key, FromJson(pair[0]));
      VARVE_ASSIGN_OR_RETURN(std::string item, FromJson(pair[1]));
      pairs.emplace_back(std::move(key), std::move(item));
    }
    return pickled::Dict(pairs);
  }
  return Status::Corruption("there is a kind of value that DCP's planner does not write");
}

struct Values {
  std::vector<std::string> names;
  std::string planner = pickled::None();
};

Result<Values> ReadValues(const CheckpointReader& reader) {
  Values values;
  VARVE_ASSIGN_OR_RETURN(const std::optional<std::string> text, FindItem(reader, kDcpItem));
  if (!text) return values;
  const std::string what = std::string("item ") + kDcpItem;
  const Result<json> root = formats::ParseStrictJson(*text);
  if (!root.ok()) return Status::Corruption(what + ": " + root.status().message());
  if (!root->is_object() || !root->contains("items") || !(*root)["items"].is_array() ||
      !root->contains("planner_data")) {
    return Status::Corruption(what + ": it lacks items or planner_data");
  }
  for (const json& name : (*root)["items"]) {
    if (!name.is_string()) return Status::Corruption(what + ": a name is no string");
    values.names.push_back(name.get<std::string>());
  }
  Result<std::string> planner = FromJson((*root)["planner_data"]);
  if (!planner.ok()) return planner.status().WithContext(what);
  values.planner = *std::move(planner);
  return values;
}

// Gathers the file of data and the metadata that says what lies where.
class Writer {
 public:
  Status AddTensor(const TensorInfo& tensor) {
    const TorchType* const type = formats::TorchTypeOf(tensor.dtype);
    if (type == nullptr) {
      return Status(StatusCode::kFailedPrecondition,
                    "tensor \"" + tensor.name + "\" has the dtype " +
                        std::string(DTypeName(tensor.dtype)) + ", which torch has not");
    }
    ZipParts zip;
    const std::string folder = kArchive;
    zip.AddText(folder + "data.pkl", TensorPickle(tensor, *type));
    zip.AddText(folder + "byteorder", "little");
    zip.AddText(folder + "version", "3\n");
    zip.AddTensor(folder + "data/0", "", tensor);
    std::vector<ExportPart> parts = zip.Finish();
    const std::vector<int64_t> shape = TorchShape(tensor, *type);
    const std::vector<int64_t> zeros(shape.size(), 0);
    const std::string size = pickled::Size(shape);
    const std::string offset = pickled::Size(zeros);
    AddPlace(tensor.name, offset, zip.size());
    for (ExportPart& part : parts) file_.push_back(std::move(part));
    const std::string layout = pickled::Call(pickled::Global("torch.serialization", "_get_layout"),
                                             Tuple(pickled::Text("torch.strided")));
    const std::string contiguous =
        pickled::Call(ClassOf("_MEM_FORMAT_ENCODING"), Tuple(pickled::Int(0)));
    const std::string properties = pickled::Object(
        ClassOf("TensorProperties"), Tuple(pickled::Global("torch", type->name), layout,
                                           pickled::Bool(false), contiguous, pickled::Bool(false)));
    const std::string chunks[] = {
        pickled::Object(ClassOf("ChunkStorageMetadata"),
                        pickled::Dict(Pairs{{Field("offsets"), offset}, {Field("sizes"), size}}))};
    entries_.emplace_back(
        Field(tensor.name),
        pickled::Object(ClassOf("TensorStorageMetadata"),
                        pickled::Dict(Pairs{{Field("properties"), properties},
                                            {Field("size"), size},
                                            {Field("chunks"), pickled::List(chunks)}})));
    return Status::Ok();
  }

  void AddValue(const std::string& name, std::string bytes) {
    AddPlace(name, pickled::None(), bytes.size());
    file_.emplace_back(std::move(bytes));
    entries_.emplace_back(Field(name),
                          pickled::Object(ClassOf("BytesStorageMetadata"), pickled::Dict(Pairs{})));
  }

  std::string Metadata(const std::string& planner) const {
    return pickled::Whole(
        pickled::Object(ClassOf("Metadata"),
                        pickled::Dict(Pairs{{Field("state_dict_metadata"), pickled::Dict(entries_)},
                                            {Field("planner_data"), planner},
                                            {Field("storage_data"), pickled::Dict(places_)},
                                            {Field("storage_meta"), pickled::None()},
                                            {Field("version"), pickled::None()}})));
  }
  std::vector<ExportPart> TakeFile() { return std::move(file_); }

 private:
  void AddPlace(const std::string& name, const std::string& offset, uint64_t length) {
    places_.emplace_back(
        pickled::Object(ClassOf("MetadataIndex"),
                        pickled::Dict(Pairs{{Field("fqn"), pickled::Text(name)},
                                            {Field("offset"), offset},
                                            {Field("index"), pickled::None()}})),
        pickled::Object(
            pickled::Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            pickled::Dict(Pairs{{Field("relative_path"), pickled::Text(kDataFile)},
                                {Field("offset"), pickled::Int(static_cast<int64_t>(size_))},
                                {Field("length"), pickled::Int(static_cast<int64_t>(length))},
                                {Field("transform_descriptors"), pickled::None()}})));
    size_ += length;
  }

  std::vector<ExportPart> file_;
  uint64_t size_ = 0;
  Pairs entries_;
  Pairs places_;
};

}  // namespace

Result<ExportPlan> PlanDcp(const ExportRequest& request) {
  VARVE_RETURN_IF_ERROR(RefuseShards(request.tensors, "a folder of DCP"));
  VARVE_ASSIGN_OR_RETURN(const Values values, ReadValues(request.reader));
  Writer writer;
  for (const TensorInfo& tensor : request.tensors) {
    VARVE_RETURN_IF_ERROR(writer.AddTensor(tensor));
  }
  for (const std::string& name : values.names) {
    VARVE_ASSIGN_OR_RETURN(std::optional<std::string> bytes, FindItem(request.reader, name));
    if (!bytes) {
      return Status::Corruption(std::string("item ") + kDcpItem + " names the item \"" + name +
                                "\", which the step does not have");
    }
    writer.AddValue(name, *std::move(bytes));
  }
  ExportPlan plan;
  plan.folder = request.out;
  plan.files.push_back({.path = request.out / kDataFile, .parts = writer.TakeFile()});
  plan.Add(request.out / kMetadataFile, writer.Metadata(values.planner));
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> items, request.reader.ListBytes());
  size_t known = values.names.size();
  for (const std::string& item : items) known += item == kDcpItem;
  if (items.size() > known) {
    plan.notes.push_back(Count(items.size() - known, "opaque item") +
                         " not exported: no value of DCP's is in them");
  }
  return plan;
}

}  // namespace varve::internal::cli
