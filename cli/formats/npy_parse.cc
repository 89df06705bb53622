// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/util.h"
#include "cli/formats/byte_reader.h"
#include "cli/formats/npy.h"

namespace varve::internal::formats {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kShortStart = 10;             // magic, version, and a length of 16 bits
constexpr uint64_t kMaxHeaderBytes = 1 << 20;  // NumPy itself takes 10,000 unless told otherwise
constexpr size_t kMaxAxes = 64;                // NumPy's limit

struct NumberKind {
  std::string_view code;
  DType dtype;
};
constexpr NumberKind kKinds[] = {
    {"b1", DType::kBool}, {"u1", DType::kU8},  {"i1", DType::kI8},  {"u2", DType::kU16},
    {"i2", DType::kI16},  {"u4", DType::kU32}, {"i4", DType::kI32}, {"u8", DType::kU64},
    {"i8", DType::kI64},  {"f2", DType::kF16}, {"f4", DType::kF32}, {"f8", DType::kF64},
    {"c8", DType::kC64},
};

Result<DType> TypeOf(std::string_view descr) {
  const std::string quoted = "the dtype '" + std::string(descr) + "'";
  if (descr.find('O') != std::string_view::npos) {
    return Status::InvalidArgument(quoted +
                                   " is of Python objects, which are pickled: varve never runs "
                                   "such code. Save arrays of numbers");
  }
  const char order = descr.empty() ? '?' : descr.front();
  if (order == '<' || order == '>' || order == '|' || order == '=') {
    for (const NumberKind& kind : kKinds) {
      if (kind.code != descr.substr(1)) continue;
      if (order == '>' && DTypeBits(kind.dtype) > 8) {
        return Status::InvalidArgument(quoted +
                                       " is big-endian: save array.astype(array.dtype.newbyteorder"
                                       "('<')) instead");
      }
      return kind.dtype;
    }
  }
  return Status::InvalidArgument(quoted +
                                 " is none that varve has: save the array as numbers of "
                                 "8 to 64 bits");
}

// Parses the dictionary, a literal of Python with three keys.
class Literal {
 public:
  // `begin` is where the text starts in the file.
  Literal(std::string_view text, uint64_t begin) : text_(text), begin_(begin) {}

  Result<NpyArray> Parse() {
    NpyArray array;
    VARVE_RETURN_IF_ERROR(Expect('{'));
    while (!Take('}')) {
      VARVE_ASSIGN_OR_RETURN(const std::string_view key, String());
      VARVE_RETURN_IF_ERROR(Expect(':'));
      VARVE_RETURN_IF_ERROR(Value(key, &array));
      if (!Take(',')) {
        VARVE_RETURN_IF_ERROR(Expect('}'));
        break;
      }
    }
    SkipSpace();
    if (at_ != text_.size()) return Error("the header goes on after its dictionary");
    if (!descr_ || !has_order_ || !has_shape_) {
      return Error("the dictionary lacks one of 'descr', 'fortran_order' and 'shape'");
    }
    VARVE_ASSIGN_OR_RETURN(array.dtype, TypeOf(*descr_));
    VARVE_ASSIGN_OR_RETURN(array.num_bytes, NumBytes(array.dtype, array.shape));
    return array;
  }

 private:
  Status Error(std::string_view problem) const { return ErrorAt(begin_ + at_, problem); }

  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool Take(char wanted) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  Status Expect(char wanted) {
    if (Take(wanted)) return Status::Ok();
    return Error("the header has no '" + std::string(1, wanted) + "' here");
  }

  Result<std::string_view> String() {
    SkipSpace();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') return Error("the header has no string here");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return Error("a string of the header does not end");
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    if (value.find('\\') != std::string_view::npos) return Error("a string has an escape");
    at_ = end + 1;
    return value;
  }

  Status Value(std::string_view key, NpyArray* array) {
    SkipSpace();
    if (key == "descr" && !descr_) {
      if (at_ < text_.size() && text_[at_] == '[') {
        return Error(
            "the dtype has fields, which varve does not read: save each field as an array");
      }
      VARVE_ASSIGN_OR_RETURN(descr_, String());
      return Status::Ok();
    }
    if (key == "fortran_order" && !has_order_) {
      has_order_ = true;
      for (const bool value : {true, false}) {
        const std::string_view word = value ? "True" : "False";
        if (!text_.substr(at_).starts_with(word)) continue;
        at_ += word.size();
        array->is_fortran = value;
        return Status::Ok();
      }
      return Error("'fortran_order' is neither True nor False");
    }
    if (key == "shape" && !has_shape_) {
      has_shape_ = true;
      return Shape(&array->shape);
    }
    return Error("the key '" + std::string(key) + "' comes twice, or is none of a .npy file");
  }

  Status Shape(std::vector<int64_t>* shape) {
    VARVE_RETURN_IF_ERROR(Expect('('));
    while (!Take(')')) {
      SkipSpace();
      int64_t length = 0;
      const char* const first = text_.data() + at_;
      const auto [last, error] = std::from_chars(first, text_.data() + text_.size(), length);
      if (error != std::errc() || length < 0) return Error("the shape has no length here");
      if (shape->size() == kMaxAxes) return Error("the shape has more than 64 axes");
      at_ += static_cast<size_t>(last - first);
      shape->push_back(length);
      if (Take(',')) continue;
      VARVE_RETURN_IF_ERROR(Expect(')'));
      if (shape->size() == 1) return Error("the shape is no tuple");
      break;
    }
    return Status::Ok();
  }

  const std::string_view text_;
  const uint64_t begin_;
  size_t at_ = 0;
  std::optional<std::string_view> descr_;
  bool has_order_ = false;
  bool has_shape_ = false;
};

}  // namespace

Result<uint64_t> NpyHeaderBytes(std::span<const std::byte> start) {
  if (start.size() < kShortStart || !AsString(start).starts_with(kMagic)) {
    return ErrorAt(0, "this is no .npy file, which starts with \\x93NUMPY");
  }
  const int version = std::to_integer<int>(start[kMagic.size()]);
  if (version < 1 || version > 3) {
    return ErrorAt(kMagic.size(),
                   "the version is " + std::to_string(version) + ", expected 1, 2 or 3");
  }
  if (version > 1 && start.size() < kNpyStartBytes) return ErrorAt(8, "the file is cut short");
  const uint64_t length =
      version == 1 ? std::to_integer<uint64_t>(start[8]) | std::to_integer<uint64_t>(start[9]) << 8
                   : LoadU32(start.subspan(8));
  if (length > kMaxHeaderBytes) {
    return ErrorAt(8, "the header has " + std::to_string(length) + " bytes, expected at most " +
                          std::to_string(kMaxHeaderBytes));
  }
  return (version == 1 ? kShortStart : kNpyStartBytes) + length;
}

Result<NpyArray> ParseNpyHeader(std::span<const std::byte> header) {
  VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, NpyHeaderBytes(header));
  if (header.size() != bytes) {
    return ErrorAt(8, "the header has " + std::to_string(bytes) + " bytes, and the file has " +
                          std::to_string(header.size()));
  }
  const bool is_short = std::to_integer<int>(header[kMagic.size()]) == 1;
  const size_t begin = is_short ? kShortStart : kNpyStartBytes;
  return Literal(AsString(header.subspan(begin)), begin).Parse();
}

}  // namespace varve::internal::formats
