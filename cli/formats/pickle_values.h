// SPDX-License-Identifier: Apache-2.0
//
// Plain values of a pickle, asked for by type. Errors are kInvalidArgument, and name the offset in
// the pickle, what is there and what was expected. `what` names the value in them. Stateless.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cli/formats/pickle.h"
#include "varve/result.h"

namespace varve::internal::formats {

// An error about a value.
Status PickleError(const PickleValue& value, std::string_view problem);

Result<int64_t> PickleInt(const Pickle& pickle, PickleId id, std::string_view what);
Result<std::string_view> PickleString(const Pickle& pickle, PickleId id, std::string_view what);
// The items of a tuple or list, or of a torch.Size.
Result<std::span<const PickleId>> PickleItems(const Pickle& pickle, PickleId id,
                                              std::string_view what);
// The same, of integers from 0 on.
Result<std::vector<int64_t>> PickleLengths(const Pickle& pickle, PickleId id,
                                           std::string_view what);

// The function and the arguments of a call. `function` is empty for a value that is none.
struct PickleCall {
  std::string_view function;
  std::span<const PickleId> args;
};
PickleCall AsCall(const Pickle& pickle, PickleId id);
// Checks the number of arguments.
Status ExpectArgs(const Pickle& pickle, PickleId id, size_t least, size_t most);

}  // namespace varve::internal::formats
