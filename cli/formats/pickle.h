// SPDX-License-Identifier: Apache-2.0
//
// Reads a pickle of Python's, protocol 2 to 5, as data. Nothing is imported, called or built: a
// call stays a value that says which function was to be called, with what. Every name of a class or
// function is asked for when it comes, so that a pickle with any other is refused, whatever it
// would do with it. Memory and time grow with the bytes of the pickle only. Stateless.
//
//   VARVE_ASSIGN_OR_RETURN(Pickle pickle, ParsePickle(bytes, IsAllowed));
//   const PickleValue& root = pickle[pickle.root];
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"

namespace varve::internal::formats {

// The place of a value in its pickle. Values refer to each other by it, also in circles.
using PickleId = uint32_t;
inline constexpr PickleId kNoPickleValue = UINT32_MAX;

// More is refused. A checkpoint of 10,000 tensors has some 500,000.
inline constexpr size_t kMaxPickleValues = size_t{1} << 23;
inline constexpr uint64_t kMaxPickleBytes = uint64_t{1} << 30;

enum class PickleKind : uint8_t {
  kNone,
  kBool,        // integer
  kInt,         // integer
  kBigInt,      // text, in decimal digits: it needs more than 64 bits
  kFloat,       // number
  kString,      // text, UTF-8 in which surrogates may stand alone
  kBytes,       // text
  kTuple,       // items
  kList,        // items
  kDict,        // items: each key before its value
  kSet,         // items
  kGlobal,      // text: "module.name" of a class or function
  kCall,        // function, args, perhaps state. Items: what was put into it as into a dict
  kPersistent,  // args: what the pickler put instead of an object
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  uint32_t offset = 0;  // in the pickle
  PickleId function = kNoPickleValue;
  PickleId args = kNoPickleValue;
  PickleId state = kNoPickleValue;
  union {
    int64_t integer = 0;
    double number;
  };
  std::string_view text{};  // in the bytes of the pickle, or in Pickle::made
  std::vector<PickleId> items{};
};

struct Pickle {
  const PickleValue& operator[](PickleId id) const { return values[id]; }

  std::vector<PickleValue> values;
  PickleId root = kNoPickleValue;
  std::deque<std::string> made;  // texts that are not in the bytes
};

// Says whether the class or function "module.name" may occur.
using IsAllowedGlobal = std::function<bool(std::string_view name)>;

// Reads a whole pickle. The bytes must outlive what it returns. kInvalidArgument names the offset
// and what is there.
Result<Pickle> ParsePickle(std::span<const std::byte> bytes, const IsAllowedGlobal& is_allowed);

// What Python calls a value of this kind: "a dict".
std::string_view PickleKindName(PickleKind kind);

}  // namespace varve::internal::formats
