// SPDX-License-Identifier: Apache-2.0
//
// Writes pickles of protocol 2 for readers in Python. A value is the operations that push it, so
// values are put together as text. Stateless.
//
//   const std::string file = pickled::Whole(pickled::Dict({{pickled::Text("a"),
//   pickled::Int(1)}}));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace varve::internal::formats::pickled {

std::string Whole(std::string_view value);
std::string None();
std::string Bool(bool value);
std::string Int(int64_t value);
std::string Float(double value);
std::string Text(std::string_view value);
// The class or function of a module.
std::string Global(std::string_view module, std::string_view name);
std::string Tuple(std::span<const std::string> items);
std::string List(std::span<const std::string> items);
std::string Dict(std::span<const std::pair<std::string, std::string>> items);
// Numbers as a torch.Size.
std::string Size(std::span<const int64_t> lengths);
std::string Ints(std::span<const int64_t> values);  // as a tuple
// What a function gives for these arguments, which are a tuple.
std::string Call(std::string_view function, std::string_view arguments);
// An object of a class that is made without arguments and then gets this state.
std::string Object(std::string_view class_name, std::string_view state);
// An object that is not in the pickle, and for which it has an id.
std::string Persistent(std::string_view id);

}  // namespace varve::internal::formats::pickled
