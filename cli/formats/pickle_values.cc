// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/pickle_values.h"

#include <string>

#include "cli/formats/byte_reader.h"

namespace varve::internal::formats {
namespace {

Status Unexpected(const PickleValue& value, std::string_view what, std::string_view expected) {
  return PickleError(value, std::string(what) + " is " + std::string(PickleKindName(value.kind)) +
                                ", expected " + std::string(expected));
}

}  // namespace

Status PickleError(const PickleValue& value, std::string_view problem) {
  return ErrorAt(value.offset, problem);
}

Result<int64_t> PickleInt(const Pickle& pickle, PickleId id, std::string_view what) {
  const PickleValue& value = pickle[id];
  if (value.kind == PickleKind::kInt) return value.integer;
  return Unexpected(value, what, "an integer of 64 bits");
}

Result<std::string_view> PickleString(const Pickle& pickle, PickleId id, std::string_view what) {
  const PickleValue& value = pickle[id];
  if (value.kind == PickleKind::kString) return value.text;
  return Unexpected(value, what, "a string");
}

Result<std::span<const PickleId>> PickleItems(const Pickle& pickle, PickleId id,
                                              std::string_view what) {
  const PickleValue& value = pickle[id];
  if (value.kind == PickleKind::kTuple || value.kind == PickleKind::kList) {
    return std::span<const PickleId>(value.items);
  }
  const PickleCall call = AsCall(pickle, id);
  if (call.function == "torch.Size" && call.args.size() == 1) {
    const PickleValue& inner = pickle[call.args[0]];
    if (inner.kind == PickleKind::kTuple) return std::span<const PickleId>(inner.items);
  }
  return Unexpected(value, what, "a tuple or list");
}

Result<std::vector<int64_t>> PickleLengths(const Pickle& pickle, PickleId id,
                                           std::string_view what) {
  VARVE_ASSIGN_OR_RETURN(const auto items, PickleItems(pickle, id, what));
  std::vector<int64_t> lengths;
  lengths.reserve(items.size());
  for (const PickleId item : items) {
    VARVE_ASSIGN_OR_RETURN(const int64_t length, PickleInt(pickle, item, what));
    if (length < 0) {
      return PickleError(pickle[item], std::string(what) + " holds " + std::to_string(length) +
                                           ", expected no negative number");
    }
    lengths.push_back(length);
  }
  return lengths;
}

PickleCall AsCall(const Pickle& pickle, PickleId id) {
  const PickleValue& value = pickle[id];
  if (value.kind != PickleKind::kCall) return {};
  return {.function = pickle[value.function].text, .args = pickle[value.args].items};
}

Status ExpectArgs(const Pickle& pickle, PickleId id, size_t least, size_t most) {
  const PickleCall call = AsCall(pickle, id);
  if (call.args.size() >= least && call.args.size() <= most) return Status::Ok();
  return PickleError(pickle[id], std::string(call.function) + " has " +
                                     std::to_string(call.args.size()) + " arguments, expected " +
                                     std::to_string(least) +
                                     (least == most ? "" : " to " + std::to_string(most)));
}

}  // namespace varve::internal::formats
