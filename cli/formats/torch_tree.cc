// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/torch_tree.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "cli/formats/pickle_values.h"
#include "varve/tensor.h"

namespace varve::internal::formats {
namespace {

constexpr int kMaxDepth = 100;

std::string FloatText(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  std::string result(text, end);
  // A reader of JSON takes a number without these for an integer.
  if (result.find_first_of(".en") == std::string::npos) result += ".0";
  return result;
}

std::string Base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t have = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < have ? static_cast<uint8_t>(bytes[i + k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += k <= have ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

// Decodes one character of UTF-8 in which surrogates may occur. Returns its bytes, 0 if there is
// none.
size_t DecodeUtf8(std::string_view text, uint32_t* code) {
  const auto first = static_cast<uint8_t>(text[0]);
  const size_t size = first < 0x80   ? 1
                      : first < 0xc2 ? 0
                      : first < 0xe0 ? 2
                      : first < 0xf0 ? 3
                      : first < 0xf5 ? 4
                                     : 0;
  if (size == 0 || size > text.size()) return 0;
  *code = size == 1 ? first : first & (0x7fU >> size);
  for (size_t i = 1; i < size; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    *code = *code << 6 | (next & 0x3fU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  return *code >= kLeast[size] && *code <= 0x10ffff ? size : 0;
}

bool IsSurrogate(uint32_t code) { return code >= 0xd800 && code < 0xe000; }

// Says whether the text is UTF-8, with surrogates or without.
bool IsUtf8(std::string_view text, bool may_have_surrogates) {
  while (!text.empty()) {
    uint32_t code = 0;
    const size_t size = DecodeUtf8(text, &code);
    if (size == 0 || (IsSurrogate(code) && !may_have_surrogates)) return false;
    text.remove_prefix(size);
  }
  return true;
}

// Bytes from text whose characters are all below 256, as Python pickles bytes in protocol 2.
Result<std::string> BytesOfLatin1(const PickleValue& value) {
  std::string bytes;
  for (std::string_view text = value.text; !text.empty();) {
    uint32_t code = 0;
    const size_t size = DecodeUtf8(text, &code);
    if (size == 0 || code > 0xff) return PickleError(value, "the text holds no bytes");
    bytes += static_cast<char>(code);
    text.remove_prefix(size);
  }
  return bytes;
}

class Encoder {
 public:
  explicit Encoder(const Pickle& pickle) : pickle_(pickle) {}

  Result<TorchTree> Encode(PickleId root) {
    if (IsTorchTensor(pickle_, root)) path_ = "tensor";
    NotePlain(root);
    VARVE_RETURN_IF_ERROR(Value(root, 0));
    tree_.has_plain = has_plain_;
    NoteSharing();
    Assemble();
    return std::move(tree_);
  }

 private:
  std::string Shown() const {
    constexpr size_t kShown = 200;
    if (path_.empty()) return "the file's value";
    return "\"" + path_.substr(0, kShown) + (path_.size() > kShown ? "..." : "") + "\"";
  }
  Status Error(PickleId id, std::string_view problem) const {
    return PickleError(pickle_[id], Shown() + " " + std::string(problem));
  }

  // Every value writes something, so that this bounds time and memory.
  Status Write(std::string_view text) {
    if (json_.size() + text.size() > kMaxTreeBytes) {
      return Status::InvalidArgument("at " + Shown() +
                                     ": the values of the pickle, written out, have more than " +
                                     std::to_string(kMaxTreeBytes) + " bytes, which varve refuses");
    }
    json_ += text;
    return Status::Ok();
  }
  Status WriteString(std::string_view text) {
    std::string quoted;
    if (text.size() < kMaxTreeBytes) AppendJsonString(text, &quoted);
    return text.size() < kMaxTreeBytes ? Write(quoted) : Write(text);
  }
  // {"kind": "text"}
  Status WriteTagged(std::string_view kind, std::string_view text) {
    has_plain_ = true;
    VARVE_RETURN_IF_ERROR(Write("{\"" + std::string(kind) + "\":"));
    VARVE_RETURN_IF_ERROR(WriteString(text));
    return Write("}");
  }

  Status Value(PickleId id, int depth) {
    if (depth > kMaxDepth) {
      return Error(
          id, "lies in more than " + std::to_string(kMaxDepth) + " containers, or contains itself");
    }
    if (IsTorchTensor(pickle_, id)) return Tensor(id);
    const PickleValue& value = pickle_[id];
    switch (value.kind) {
      case PickleKind::kDict:
        return Mapping("dict", value.items, kNoPickleValue, depth);
      case PickleKind::kList:
        return List(value.items, depth);
      case PickleKind::kTuple:
        return TaggedList("tuple", value.items, depth);
      case PickleKind::kSet:
        return TaggedList("set", value.items, depth);
      case PickleKind::kCall:
        return Object(id, depth);
      default:
        has_plain_ = true;
        return Scalar(id);
    }
  }

  Status Scalar(PickleId id) {
    const PickleValue& value = pickle_[id];
    switch (value.kind) {
      case PickleKind::kNone:
        return Write("null");
      case PickleKind::kBool:
        return Write(value.integer != 0 ? "true" : "false");
      case PickleKind::kInt:
        return Write(std::to_string(value.integer));
      case PickleKind::kBigInt:
        return Write(value.text);
      case PickleKind::kFloat:
        if (std::isfinite(value.number)) return Write(FloatText(value.number));
        return WriteTagged("float", FloatText(value.number));
      case PickleKind::kString:
        if (!IsUtf8(value.text, true)) return Error(id, "is a string that is no UTF-8");
        return WriteString(value.text);
      case PickleKind::kBytes:
        return WriteTagged("bytes", Base64(value.text));
      case PickleKind::kGlobal:
        if (value.text.starts_with(kTorchPrefix) &&
            FindTorchType(value.text.substr(kTorchPrefix.size())) != nullptr) {
          return WriteTagged("dtype", value.text.substr(kTorchPrefix.size()));
        }
        return Error(id, "is " + std::string(value.text) + ", which is no value");
      default:
        return Error(id, "is " + std::string(PickleKindName(value.kind)) +
                             ", expected a tensor, a container or a plain value");
    }
  }

  Status List(std::span<const PickleId> items, int depth) {
    has_plain_ = true;
    VARVE_RETURN_IF_ERROR(Write("["));
    const size_t size = path_.size();
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) VARVE_RETURN_IF_ERROR(Write(","));
      Enter(std::to_string(i));
      VARVE_RETURN_IF_ERROR(Value(items[i], depth + 1));
      path_.resize(size);
    }
    return Write("]");
  }

  Status TaggedList(std::string_view kind, std::span<const PickleId> items, int depth) {
    VARVE_RETURN_IF_ERROR(Write("{\"" + std::string(kind) + "\":"));
    VARVE_RETURN_IF_ERROR(List(items, depth));
    return Write("}");
  }

  void Enter(std::string_view key) {
    if (!path_.empty()) path_ += '.';
    path_ += key;
  }

  Result<std::string> KeyText(PickleId id) const {
    const PickleValue& key = pickle_[id];
    switch (key.kind) {
      case PickleKind::kString:
        return std::string(key.text);
      case PickleKind::kInt:
        return std::to_string(key.integer);
      case PickleKind::kBool:
        return std::string(key.integer != 0 ? "True" : "False");
      case PickleKind::kNone:
        return std::string("None");
      default:
        return Error(id, "has " + std::string(PickleKindName(key.kind)) +
                             " as a key, expected a string, an integer, a bool or None");
    }
  }

  Status Mapping(std::string_view kind, std::span<const PickleId> items, PickleId state,
                 int depth) {
    VARVE_RETURN_IF_ERROR(Write("{\"" + std::string(kind) + "\":["));
    const size_t size = path_.size();
    for (size_t i = 0; i < items.size(); i += 2) {
      VARVE_ASSIGN_OR_RETURN(const std::string key, KeyText(items[i]));
      VARVE_RETURN_IF_ERROR(Write(i > 0 ? ",[" : "["));
      const bool had_plain = has_plain_;
      VARVE_RETURN_IF_ERROR(Scalar(items[i]));
      has_plain_ = had_plain;
      VARVE_RETURN_IF_ERROR(Write(","));
      Enter(key);
      NotePlain(items[i + 1]);
      VARVE_RETURN_IF_ERROR(Value(items[i + 1], depth + 1));
      VARVE_RETURN_IF_ERROR(Write("]"));
      path_.resize(size);
    }
    VARVE_RETURN_IF_ERROR(Write("]"));
    if (state != kNoPickleValue) VARVE_RETURN_IF_ERROR(Attributes(state, depth));
    return Write("}");
  }

  // An OrderedDict of a module has one attribute, which says the versions of modules.
  Status Attributes(PickleId id, int depth) {
    constexpr std::string_view kMetadata = "_metadata";
    const PickleValue& state = pickle_[id];
    const bool is_metadata = state.kind == PickleKind::kDict && state.items.size() == 2 &&
                             pickle_[state.items[0]].kind == PickleKind::kString &&
                             pickle_[state.items[0]].text == kMetadata;
    if (!is_metadata) {
      if (state.kind == PickleKind::kDict && state.items.empty()) return Status::Ok();
      return Error(id, "is an OrderedDict with other attributes than _metadata");
    }
    VARVE_RETURN_IF_ERROR(Write(",\"metadata\":"));
    const size_t size = path_.size();
    const bool had_plain = has_plain_;
    const bool noted = std::exchange(notes_plain_, false);
    Enter(kMetadata);
    VARVE_RETURN_IF_ERROR(Value(state.items[1], depth + 1));
    path_.resize(size);
    notes_plain_ = noted;
    has_plain_ = had_plain;
    return Status::Ok();
  }

  void NotePlain(PickleId id) {
    const PickleValue& value = pickle_[id];
    if (!notes_plain_ || tree_.plain.size() == kMaxPlainValues || path_.size() > kMaxNameBytes ||
        !IsUtf8(path_, false)) {
      return;
    }
    if (value.kind == PickleKind::kInt) {
      tree_.plain.push_back({path_, value.integer});
    } else if (value.kind == PickleKind::kFloat) {
      tree_.plain.push_back({path_, value.number});
    } else if (value.kind == PickleKind::kString && value.text.size() <= kMaxNameBytes &&
               IsUtf8(value.text, false)) {
      tree_.plain.push_back({path_, std::string(value.text)});
    }
  }

  Status Object(PickleId id, int depth) {
    const PickleValue& value = pickle_[id];
    const PickleCall call = AsCall(pickle_, id);
    if (call.function == "collections.OrderedDict") {
      VARVE_RETURN_IF_ERROR(ExpectArgs(pickle_, id, 0, 0));
      return Mapping("ordered", value.items, value.state, depth);
    }
    if (value.state != kNoPickleValue || !value.items.empty()) {
      return Error(id, "is a " + std::string(call.function) + " with items or attributes");
    }
    has_plain_ = true;
    if (call.function == "collections.Counter") {
      VARVE_RETURN_IF_ERROR(ExpectArgs(pickle_, id, 1, 1));
      const PickleValue& counts = pickle_[call.args[0]];
      if (counts.kind != PickleKind::kDict) return Error(id, "is a Counter of no dict");
      return Mapping("counter", counts.items, kNoPickleValue, depth);
    }
    if (call.function == "torch.Size") {
      VARVE_ASSIGN_OR_RETURN(const auto lengths, PickleLengths(pickle_, id, "a torch.Size"));
      std::string text = "{\"size\":[";
      for (const int64_t length : lengths) text += std::to_string(length) + ",";
      if (!lengths.empty()) text.pop_back();
      return Write(text + "]}");
    }
    if (call.function == "torch.device") return Device(id, call);
    if (call.function == "builtins.set" || call.function == "builtins.frozenset") {
      VARVE_RETURN_IF_ERROR(ExpectArgs(pickle_, id, 1, 1));
      VARVE_ASSIGN_OR_RETURN(const auto items, PickleItems(pickle_, call.args[0], "a set"));
      return TaggedList("set", items, depth);
    }
    if (call.function == "builtins.complex") return Complex(id, call);
    VARVE_ASSIGN_OR_RETURN(const std::string bytes, BytesOf(id, call));
    return WriteTagged("bytes", Base64(bytes));
  }

  Status Device(PickleId id, const PickleCall& call) {
    VARVE_RETURN_IF_ERROR(ExpectArgs(pickle_, id, 1, 2));
    VARVE_ASSIGN_OR_RETURN(const std::string_view type,
                           PickleString(pickle_, call.args[0], "a device"));
    if (!IsUtf8(type, false)) return Error(id, "is a device whose name is no UTF-8");
    std::string name(type);
    if (call.args.size() == 2) {
      VARVE_ASSIGN_OR_RETURN(const int64_t index,
                             PickleInt(pickle_, call.args[1], "the number of a device"));
      name += ":" + std::to_string(index);
    }
    return WriteTagged("device", name);
  }

  Status Complex(PickleId id, const PickleCall& call) {
    VARVE_RETURN_IF_ERROR(ExpectArgs(pickle_, id, 2, 2));
    std::string text = "{\"complex\":[";
    for (const PickleId part : call.args) {
      const PickleValue& number = pickle_[part];
      if (number.kind != PickleKind::kFloat) return Error(id, "is a complex of no two floats");
      text += "\"" + FloatText(number.number) + "\",";
    }
    text.pop_back();
    return Write(text + "]}");
  }

  // bytes(), _codecs.encode(text, "latin1"), bytearray(text, "latin-1"), and
  // bytearray of bytes in any of these forms
  Result<std::string> BytesOf(PickleId id, const PickleCall& call) const {
    const bool is_known = call.function == "_codecs.encode" || call.function == "builtins.bytes" ||
                          call.function == "builtins.bytearray";
    if (!is_known) {
      return Error(id, "is a " + std::string(call.function) +
                           ", expected a tensor, a container or a plain value");
    }
    if (call.args.empty() && call.function != "_codecs.encode") return std::string();
    const PickleValue* const text = call.args.empty() ? nullptr : &pickle_[call.args[0]];
    if (call.args.size() == 1 && text->kind == PickleKind::kBytes) return std::string(text->text);
    const bool is_copy = call.args.size() == 1 && call.function == "builtins.bytearray";
    const PickleCall inner = AsCall(pickle_, call.args.empty() ? id : call.args[0]);
    if (is_copy && inner.function == "_codecs.encode") return BytesOf(call.args[0], inner);
    if (call.args.size() != 2 || text->kind != PickleKind::kString) {
      return Error(id, "is bytes that are made of neither text nor bytes");
    }
    VARVE_ASSIGN_OR_RETURN(const std::string_view encoding,
                           PickleString(pickle_, call.args[1], "an encoding"));
    if (encoding != "latin1" && encoding != "latin-1") {
      return Error(
          id, "has the encoding \"" + std::string(encoding.substr(0, 40)) + "\", expected latin1");
    }
    return BytesOfLatin1(*text);
  }

  Status Tensor(PickleId id) {
    Result<TorchTensor> read = ReadTorchTensor(pickle_, id);
    if (!read.ok()) return read.status().WithContext(Shown());
    NamedTorchTensor tensor;
    static_cast<TorchTensor&>(tensor) = *std::move(read);
    tensor.name = path_;
    // As of {"a": {"b": x}, "a.b": y}. The number of the last try is kept, so that many tensors of
    // one name take no quadratic time.
    while (!names_.insert(tensor.name).second) {
      tensor.name = path_ + "~" + std::to_string(++tries_[path_]);
    }
    Status status = ValidateName("the name", tensor.name);
    if (!status.ok()) return Error(id, "cannot be a tensor: " + status.message());
    if (!IsUtf8(tensor.device, false)) return Error(id, "has a device whose name is no UTF-8");
    VARVE_RETURN_IF_ERROR(Write("{\"tensor\":"));
    VARVE_RETURN_IF_ERROR(WriteString(tensor.name));
    places_.push_back(json_.size());
    tree_.tensors.push_back(std::move(tensor));
    return Write("}");
  }

  // What a reference to a tensor says besides the name.
  struct Notes {
    bool has_strides = false;
    std::optional<size_t> memory;
    uint64_t offset = 0;
  };

  // Tensors whose bytes overlap in a storage share memory again after a load.
  void NoteSharing() {
    notes_.resize(tree_.tensors.size());
    std::map<std::string_view, size_t> storages;
    std::vector<std::vector<size_t>> by_storage;  // in the order of their first tensors
    for (size_t i = 0; i < tree_.tensors.size(); ++i) {
      const NamedTorchTensor& tensor = tree_.tensors[i];
      if (tensor.num_bytes == 0) continue;
      notes_[i].has_strides = !tensor.IsContiguous() && tensor.IsDense();
      if (tensor.HasOverlap()) continue;
      const size_t storage = storages.emplace(tensor.storage, by_storage.size()).first->second;
      if (storage == by_storage.size()) by_storage.emplace_back();
      by_storage[storage].push_back(i);
    }
    for (std::vector<size_t>& tensors : by_storage) NoteStorage(&tensors);
  }

  void NoteStorage(std::vector<size_t>* tensors) {
    const auto& all = tree_.tensors;
    std::sort(tensors->begin(), tensors->end(), [&all](size_t a, size_t b) {
      return std::tie(all[a].begin, all[a].end, a) < std::tie(all[b].begin, all[b].end, b);
    });
    std::vector<size_t> group;
    uint64_t end = 0;
    for (const size_t i : *tensors) {
      if (!group.empty() && all[i].begin >= end) {
        NoteGroup(&group);
        group.clear();
        end = 0;
      }
      group.push_back(i);
      end = std::max(end, all[i].end);
    }
    NoteGroup(&group);
  }

  void NoteGroup(std::vector<size_t>* group) {
    if (group->size() < 2) return;
    constexpr uint64_t kAlignment = 16;  // so that each offset is one of whole elements
    const uint64_t base = tree_.tensors[group->front()].begin / kAlignment * kAlignment;
    std::sort(group->begin(), group->end());  // in the order of the tree
    using Place =
        std::tuple<uint64_t, const TorchType*, std::vector<int64_t>, std::vector<int64_t>>;
    std::map<Place, size_t> firsts;
    for (const size_t i : *group) {
      NamedTorchTensor& tensor = tree_.tensors[i];
      notes_[i] = {.has_strides = true, .memory = num_memories_, .offset = tensor.begin - base};
      const auto [first, is_new] =
          firsts.emplace(Place{tensor.begin, tensor.type, tensor.shape, tensor.strides}, i);
      if (!is_new) tensor.alias_of = tree_.tensors[first->second].name;
    }
    ++num_memories_;
  }

  std::string NotesOf(size_t i) const {
    const NamedTorchTensor& tensor = tree_.tensors[i];
    std::string text;
    if (tensor.type->is_other) text += ",\"dtype\":\"" + std::string(tensor.type->name) + "\"";
    if (notes_[i].has_strides) {
      text += ",\"strides\":[";
      for (const int64_t stride : tensor.strides) text += std::to_string(stride) + ",";
      if (!tensor.strides.empty()) text.pop_back();
      text += ']';
    }
    if (notes_[i].memory) {
      text += ",\"memory\":" + std::to_string(*notes_[i].memory) +
              ",\"offset\":" + std::to_string(notes_[i].offset);
    }
    if (tensor.device != "cpu") {
      text += ",\"device\":";
      AppendJsonString(tensor.device, &text);
    }
    return text;
  }

  void Assemble() {
    size_t from = 0;
    for (size_t i = 0; i < places_.size(); ++i) {
      tree_.json.append(json_, from, places_[i] - from);
      tree_.json += NotesOf(i);
      from = places_[i];
    }
    tree_.json.append(json_, from);
  }

  const Pickle& pickle_;
  TorchTree tree_;
  std::string json_;
  std::string path_;
  bool has_plain_ = false;
  bool notes_plain_ = true;
  std::set<std::string> names_;
  std::map<std::string, uint64_t> tries_;
  std::vector<size_t> places_;  // the end of each tensor's name in json_
  std::vector<Notes> notes_;
  size_t num_memories_ = 0;
};

}  // namespace

void AppendJsonString(std::string_view text, std::string* json) {
  *json += '"';
  while (!text.empty()) {
    uint32_t code = 0;
    const size_t size = std::max<size_t>(1, DecodeUtf8(text, &code));
    if (text[0] == '"' || text[0] == '\\') {
      *json += '\\';
      *json += text[0];
    } else if (code < 0x20 || code == 0x7f || IsSurrogate(code)) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", code);
      *json += escape;
    } else {
      json->append(text.substr(0, size));
    }
    text.remove_prefix(size);
  }
  *json += '"';
}

Result<TorchTree> ReadTorchTree(const Pickle& pickle, PickleId root) {
  return Encoder(pickle).Encode(root);
}

}  // namespace varve::internal::formats
