// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/pickle.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <unordered_map>
#include <utility>

#include "base/util.h"
#include "cli/formats/byte_reader.h"

namespace varve::internal::formats {
namespace {

constexpr size_t kMaxNameBytes = 512;    // of a module or class
constexpr size_t kMaxNumberBytes = 255;  // of an integer
constexpr int kMinProtocol = 2;
constexpr int kMaxProtocol = 5;

// The codes of operations, as pickletools names them.
enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobalOp = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kEmptyDict = '}',
  kBinFloat = 'G',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

std::string Hex(uint8_t code) {
  char text[5];
  std::snprintf(text, sizeof(text), "0x%02x", code);
  return text;
}

// The decimal digits of a little-endian number in two's complement.
std::string DecimalOf(std::span<const std::byte> bytes) {
  const bool is_negative = !bytes.empty() && std::to_integer<int>(bytes.back()) >= 0x80;
  std::vector<uint32_t> magnitude;  // bytes, of the largest first
  uint32_t carry = 1;
  for (const std::byte byte : bytes) {
    uint32_t value = std::to_integer<uint32_t>(byte);
    if (is_negative) {
      value = (value ^ 0xff) + carry;
      carry = value >> 8;
      value &= 0xff;
    }
    magnitude.push_back(value);
  }
  std::reverse(magnitude.begin(), magnitude.end());
  std::string digits;
  while (std::any_of(magnitude.begin(), magnitude.end(), [](uint32_t v) { return v != 0; })) {
    uint32_t rest = 0;
    for (uint32_t& value : magnitude) {
      const uint32_t all = rest << 8 | value;
      value = all / 10;
      rest = all % 10;
    }
    digits += static_cast<char>('0' + rest);
  }
  if (digits.empty()) digits = "0";
  if (is_negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

// Python's names of what protocol 2 calls by the names of Python 2.
std::string Renamed(std::string_view module, std::string_view name) {
  if (module == "__builtin__") module = "builtins";
  if (module == "copy_reg") module = "copyreg";
  return std::string(module) + "." + std::string(name);
}

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const IsAllowedGlobal& is_allowed)
      : bytes_(bytes), reader_(bytes), is_allowed_(is_allowed) {}

  Result<Pickle> Run() {
    if (bytes_.size() > kMaxPickleBytes) {
      return ErrorAt(0, "the pickle has " + std::to_string(bytes_.size()) +
                            " bytes, expected at most " + std::to_string(kMaxPickleBytes));
    }
    while (pickle_.root == kNoPickleValue) {
      op_offset_ = reader_.offset();
      VARVE_ASSIGN_OR_RETURN(const uint8_t op, reader_.U8("the next operation of the pickle"));
      VARVE_RETURN_IF_ERROR(Do(op));
    }
    if (reader_.left() > 0) {
      return ErrorAt(reader_.offset(), "the pickle goes on after its end");
    }
    return std::move(pickle_);
  }

 private:
  Status Error(std::string_view problem) const { return ErrorAt(op_offset_, problem); }

  Status Do(uint8_t op) {
    switch (op) {
      case kProto:
        return Protocol();
      case kFrame:
        return Frame();
      case kStop:
        return Stop();
      case kMark:
        marks_.push_back(stack_.size());
        return Status::Ok();
      case kPop:
        return stack_.size() > Floor() ? (stack_.pop_back(), Status::Ok()) : TooFew();
      case kNone:
        return PushShared(&none_, {.kind = PickleKind::kNone});
      case kNewTrue:
        return PushShared(&true_, {.kind = PickleKind::kBool, .integer = 1});
      case kNewFalse:
        return PushShared(&false_, {.kind = PickleKind::kBool, .integer = 0});
      case kBinInt1:
      case kBinInt2:
      case kBinInt:
      case kLong1:
      case kLong4:
        return Integer(op);
      case kBinFloat:
        return Float();
      case kShortBinUnicode:
        return Text(PickleKind::kString, 1);
      case kBinUnicode:
        return Text(PickleKind::kString, 4);
      case kBinUnicode8:
        return Text(PickleKind::kString, 8);
      case kShortBinString:
      case kShortBinBytes:
        return Text(PickleKind::kBytes, 1);
      case kBinString:
      case kBinBytes:
        return Text(PickleKind::kBytes, 4);
      case kBinBytes8:
      case kByteArray8:
        return Text(PickleKind::kBytes, 8);
      case kEmptyTuple:
        return Push({.kind = PickleKind::kTuple});
      case kEmptyList:
        return Push({.kind = PickleKind::kList});
      case kEmptyDict:
        return Push({.kind = PickleKind::kDict});
      case kEmptySet:
        return Push({.kind = PickleKind::kSet});
      case kTuple1:
        return TupleOf(1);
      case kTuple2:
        return TupleOf(2);
      case kTuple3:
        return TupleOf(3);
      case kTuple:
        return Collect(PickleKind::kTuple);
      case kFrozenSet:
        return Collect(PickleKind::kSet);
      case kAppend:
        return Put(PickleKind::kList, 1);
      case kAppends:
        return PutMarked(PickleKind::kList);
      case kSetItem:
        return Put(PickleKind::kDict, 2);
      case kSetItems:
        return PutMarked(PickleKind::kDict);
      case kAddItems:
        return PutMarked(PickleKind::kSet);
      case kGlobalOp:
        return Global();
      case kStackGlobal:
        return StackGlobal();
      case kReduce:
      case kNewObj:
        return Call();
      case kBuild:
        return Build();
      case kBinPersId:
        return Persistent();
      case kBinGet:
        return Get(1);
      case kLongBinGet:
        return Get(4);
      case kBinPut:
        return Memoize(1);
      case kLongBinPut:
        return Memoize(4);
      case kMemoize:
        return Memoize(0);
      default:
        return Error("the operation " + Hex(op) +
                     " of the pickle is none that files of tensors have, and varve refuses it");
    }
  }

  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Status TooFew() const { return Error("the operation takes more values than there are"); }

  Status Push(PickleValue value) {
    if (pickle_.values.size() == kMaxPickleValues) {
      return Error("the pickle has more than " + std::to_string(kMaxPickleValues) +
                   " values, which varve refuses");
    }
    value.offset = static_cast<uint32_t>(op_offset_);
    stack_.push_back(static_cast<PickleId>(pickle_.values.size()));
    pickle_.values.push_back(std::move(value));
    return Status::Ok();
  }

  // Pushes a value of which one is enough, as it cannot change.
  Status PushShared(PickleId* known, PickleValue value) {
    if (*known != kNoPickleValue) {
      stack_.push_back(*known);
      return Status::Ok();
    }
    VARVE_RETURN_IF_ERROR(Push(std::move(value)));
    *known = stack_.back();
    return Status::Ok();
  }

  Result<PickleId> Pop() {
    if (stack_.size() <= Floor()) return TooFew();
    const PickleId id = stack_.back();
    stack_.pop_back();
    return id;
  }

  Result<uint64_t> Length(size_t bytes) {
    VARVE_ASSIGN_OR_RETURN(const auto field, reader_.Bytes("a length", bytes));
    uint64_t length = 0;
    for (size_t i = bytes; i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(field[i]);
    return length;
  }

  Status Protocol() {
    VARVE_ASSIGN_OR_RETURN(const uint8_t protocol, reader_.U8("the protocol"));
    if (protocol >= kMinProtocol && protocol <= kMaxProtocol) return Status::Ok();
    return Error("the pickle has protocol " + std::to_string(protocol) + ", expected 2 to 5");
  }

  Status Frame() {
    VARVE_ASSIGN_OR_RETURN(const uint64_t length, Length(8));
    if (length <= reader_.left()) return Status::Ok();
    return Error("a frame of the pickle has " + std::to_string(length) + " bytes, and " +
                 std::to_string(reader_.left()) + " are left");
  }

  Status Stop() {
    VARVE_ASSIGN_OR_RETURN(const PickleId root, Pop());
    if (!stack_.empty() || !marks_.empty()) return Error("the pickle ends with values left over");
    pickle_.root = root;
    return Status::Ok();
  }

  Status Integer(uint8_t op) {
    uint64_t bytes = op == kBinInt1 ? 1 : op == kBinInt2 ? 2 : 4;
    if (op == kLong1 || op == kLong4) {
      VARVE_ASSIGN_OR_RETURN(bytes, Length(op == kLong1 ? 1 : 4));
      if (bytes > kMaxNumberBytes) {
        return Error("an integer has " + std::to_string(bytes) + " bytes, expected at most " +
                     std::to_string(kMaxNumberBytes));
      }
    }
    VARVE_ASSIGN_OR_RETURN(const auto field, reader_.Bytes("an integer", bytes));
    if (bytes > 8) {
      pickle_.made.push_back(DecimalOf(field));
      return Push({.kind = PickleKind::kBigInt, .text = pickle_.made.back()});
    }
    uint64_t value = 0;
    for (size_t i = field.size(); i-- > 0;)
      value = value << 8 | std::to_integer<uint64_t>(field[i]);
    const bool is_signed = op != kBinInt1 && op != kBinInt2;
    if (is_signed && bytes > 0 && bytes < 8 && (value >> (8 * bytes - 1)) != 0) {
      value |= ~uint64_t{0} << (8 * bytes);
    }
    return Push({.kind = PickleKind::kInt, .integer = static_cast<int64_t>(value)});
  }

  Status Float() {
    VARVE_ASSIGN_OR_RETURN(const auto field, reader_.Bytes("a float", 8));
    uint64_t bits = 0;
    for (const std::byte byte : field) bits = bits << 8 | std::to_integer<uint64_t>(byte);
    PickleValue value{.kind = PickleKind::kFloat};
    value.number = std::bit_cast<double>(bits);
    return Push(std::move(value));
  }

  Status Text(PickleKind kind, size_t length_bytes) {
    VARVE_ASSIGN_OR_RETURN(const uint64_t length, Length(length_bytes));
    VARVE_ASSIGN_OR_RETURN(const auto field, reader_.Bytes("a string", length));
    return Push({.kind = kind, .text = AsString(field)});
  }

  Status TupleOf(size_t count) {
    if (stack_.size() < Floor() + count) return TooFew();
    PickleValue tuple{.kind = PickleKind::kTuple};
    tuple.items.assign(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return Push(std::move(tuple));
  }

  Result<std::vector<PickleId>> TakeMarked() {
    if (marks_.empty()) return Error("the operation has no mark before it");
    std::vector<PickleId> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()),
                                stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  Status Collect(PickleKind kind) {
    PickleValue value{.kind = kind};
    VARVE_ASSIGN_OR_RETURN(value.items, TakeMarked());
    return Push(std::move(value));
  }

  Status Put(PickleKind kind, size_t count) {
    if (stack_.size() < Floor() + count) return TooFew();
    const std::vector<PickleId> items(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return PutAll(kind, items);
  }

  Status PutMarked(PickleKind kind) {
    VARVE_ASSIGN_OR_RETURN(const std::vector<PickleId> items, TakeMarked());
    return PutAll(kind, items);
  }

  // A class of dicts, such as OrderedDict, takes items, too.
  Status PutAll(PickleKind kind, const std::vector<PickleId>& items) {
    if (stack_.size() <= Floor()) return TooFew();
    PickleValue& target = pickle_.values[stack_.back()];
    const bool takes =
        target.kind == kind || (kind == PickleKind::kDict && target.kind == PickleKind::kCall);
    if (!takes) {
      return Error("items of " + std::string(PickleKindName(kind)) + " are put into " +
                   std::string(PickleKindName(target.kind)));
    }
    if (kind == PickleKind::kDict && items.size() % 2 != 0) return Error("a key has no value");
    target.items.insert(target.items.end(), items.begin(), items.end());
    return Status::Ok();
  }

  Result<std::string_view> Line() {
    const std::string_view rest = AsString(bytes_.subspan(reader_.offset()));
    const size_t end = rest.substr(0, kMaxNameBytes + 1).find('\n');
    if (end == std::string_view::npos) return Error("a name is cut short or too long");
    VARVE_RETURN_IF_ERROR(reader_.Skip("a name", end + 1).status());
    return rest.substr(0, end);
  }

  Status Global() {
    VARVE_ASSIGN_OR_RETURN(const std::string_view module, Line());
    VARVE_ASSIGN_OR_RETURN(const std::string_view name, Line());
    return PushGlobal(module, name);
  }

  Status StackGlobal() {
    VARVE_ASSIGN_OR_RETURN(const PickleId name, Pop());
    VARVE_ASSIGN_OR_RETURN(const PickleId module, Pop());
    const PickleValue& first = pickle_.values[module];
    const PickleValue& second = pickle_.values[name];
    if (first.kind != PickleKind::kString || second.kind != PickleKind::kString) {
      return Error("a class or function is not named by strings");
    }
    return PushGlobal(first.text, second.text);
  }

  Status PushGlobal(std::string_view module, std::string_view name) {
    std::string full = Renamed(module, name);
    if (full.size() > 2 * kMaxNameBytes) return Error("a name is too long");
    if (!is_allowed_(full)) {
      return Error("the pickle uses " + full +
                   ", which is neither a tensor, a container nor a plain value. varve executes no "
                   "pickled code, and refuses the file");
    }
    const auto [known, is_new] = globals_.try_emplace(std::move(full), kNoPickleValue);
    if (is_new) {
      pickle_.made.push_back(known->first);
      VARVE_RETURN_IF_ERROR(Push({.kind = PickleKind::kGlobal, .text = pickle_.made.back()}));
      known->second = stack_.back();
      return Status::Ok();
    }
    stack_.push_back(known->second);
    return Status::Ok();
  }

  Status Call() {
    PickleValue call{.kind = PickleKind::kCall};
    VARVE_ASSIGN_OR_RETURN(call.args, Pop());
    VARVE_ASSIGN_OR_RETURN(call.function, Pop());
    if (pickle_.values[call.function].kind != PickleKind::kGlobal) {
      return Error("what is called is " +
                   std::string(PickleKindName(pickle_.values[call.function].kind)) +
                   ", expected a class or function");
    }
    if (pickle_.values[call.args].kind != PickleKind::kTuple) {
      return Error("the arguments of a call are no tuple");
    }
    return Push(std::move(call));
  }

  Status Build() {
    VARVE_ASSIGN_OR_RETURN(const PickleId state, Pop());
    if (stack_.size() <= Floor()) return TooFew();
    PickleValue& target = pickle_.values[stack_.back()];
    if (target.kind != PickleKind::kCall || target.state != kNoPickleValue) {
      return Error("a state is set on " + std::string(PickleKindName(target.kind)) +
                   ", expected an object without one");
    }
    target.state = state;
    return Status::Ok();
  }

  Status Persistent() {
    PickleValue value{.kind = PickleKind::kPersistent};
    VARVE_ASSIGN_OR_RETURN(value.args, Pop());
    return Push(std::move(value));
  }

  Status Get(size_t bytes) {
    VARVE_ASSIGN_OR_RETURN(const uint64_t index, Length(bytes));
    const auto found = memo_.find(index);
    if (found == memo_.end()) return Error("there is no memo " + std::to_string(index));
    stack_.push_back(found->second);
    return Status::Ok();
  }

  // 0 bytes: the index is the next one.
  Status Memoize(size_t bytes) {
    uint64_t index = memo_.size();
    if (bytes > 0) {
      VARVE_ASSIGN_OR_RETURN(index, Length(bytes));
    }
    if (stack_.size() <= Floor()) return TooFew();
    memo_[index] = stack_.back();
    return Status::Ok();
  }

  const std::span<const std::byte> bytes_;
  ByteReader reader_;
  const IsAllowedGlobal& is_allowed_;
  Pickle pickle_;
  uint64_t op_offset_ = 0;
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;  // the sizes of the stack at the open marks
  std::unordered_map<uint64_t, PickleId> memo_;
  std::unordered_map<std::string, PickleId> globals_;
  PickleId none_ = kNoPickleValue;
  PickleId true_ = kNoPickleValue;
  PickleId false_ = kNoPickleValue;
};

}  // namespace

Result<Pickle> ParsePickle(std::span<const std::byte> bytes, const IsAllowedGlobal& is_allowed) {
  return Machine(bytes, is_allowed).Run();
}

std::string_view PickleKindName(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return "a bool";
    case PickleKind::kInt:
    case PickleKind::kBigInt:
      return "an integer";
    case PickleKind::kFloat:
      return "a float";
    case PickleKind::kString:
      return "a string";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kDict:
      return "a dict";
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kGlobal:
      return "a class or function";
    case PickleKind::kCall:
      return "an object";
    case PickleKind::kPersistent:
      return "a storage";
  }
  return "?";
}

}  // namespace varve::internal::formats
