// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/pickle_writer.h"

#include <bit>

namespace varve::internal::formats::pickled {
namespace {

std::string Little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string Joined(std::span<const std::string> items) {
  std::string text = "(";
  for (const std::string& item : items) text += item;
  return text;
}

}  // namespace

std::string Whole(std::string_view value) { return "\x80\x02" + std::string(value) + "."; }
std::string None() { return "N"; }
std::string Bool(bool value) { return value ? "\x88" : "\x89"; }

std::string Int(int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX) {
    return "J" + Little(static_cast<uint64_t>(value), 4);
  }
  return "\x8a\x08" + Little(static_cast<uint64_t>(value), 8);
}

std::string Float(double value) {
  const std::string bytes = Little(std::bit_cast<uint64_t>(value), 8);
  return "G" + std::string(bytes.rbegin(), bytes.rend());
}

std::string Text(std::string_view value) {
  return "X" + Little(value.size(), 4) + std::string(value);
}

std::string Global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}

std::string Tuple(std::span<const std::string> items) { return Joined(items) + "t"; }
std::string List(std::span<const std::string> items) { return "]" + Joined(items) + "e"; }

std::string Dict(std::span<const std::pair<std::string, std::string>> items) {
  std::string text = "}(";
  for (const auto& [key, value] : items) text.append(key).append(value);
  return text + "u";
}

std::string Ints(std::span<const int64_t> values) {
  std::string text = "(";
  for (const int64_t value : values) text += Int(value);
  return text + "t";
}

std::string Size(std::span<const int64_t> lengths) {
  const std::string arguments[] = {Ints(lengths)};
  return Call(Global("torch", "Size"), Tuple(arguments));
}

std::string Call(std::string_view function, std::string_view arguments) {
  return std::string(function).append(arguments) + "R";
}

std::string Object(std::string_view class_name, std::string_view state) {
  return std::string(class_name).append(")\x81").append(state) + "b";
}

std::string Persistent(std::string_view id) { return std::string(id) + "Q"; }

}  // namespace varve::internal::formats::pickled
