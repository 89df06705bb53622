// SPDX-License-Identifier: Apache-2.0
//
// Writes pickles for tests, operation by operation, honest ones and others.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/cli/formats/zip_builder.h"

namespace varve::internal::formats::pickles {

inline std::string Whole(const std::string& operations) { return "\x80\x02" + operations + "."; }
inline std::string Int(int32_t value) { return "J" + Little(static_cast<uint32_t>(value), 4); }
inline std::string Float(double value) {
  std::string bytes = Little(std::bit_cast<uint64_t>(value), 8);
  return "G" + std::string(bytes.rbegin(), bytes.rend());
}
inline std::string Text(std::string_view text) {
  return "X" + Little(text.size(), 4) + std::string(text);
}
inline std::string Global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
// Makes a tuple of any number of items. Each item is the operations that push it.
template <typename... Items>
std::string Tuple(const Items&... items) {
  return "(" + (std::string() + ... + items) + "t";
}
template <typename... Items>
std::string List(const Items&... items) {
  return "](" + (std::string() + ... + items) + "e";
}
// Keys and values by turns.
template <typename... Items>
std::string Dict(const Items&... items) {
  return "}(" + (std::string() + ... + items) + "u";
}
template <typename... Args>
std::string Call(std::string_view module, std::string_view name, const Args&... args) {
  return Global(module, name) + Tuple(args...) + "R";
}

inline std::string Storage(std::string_view type, std::string_view key, int32_t count,
                           std::string_view device = "cpu") {
  return Tuple(Text("storage"), Global("torch", type), Text(key), Text(device), Int(count)) + "Q";
}
// A tensor of torch.save: where it begins, its shape and its strides are operations.
inline std::string Tensor(const std::string& storage, int32_t offset, const std::string& shape,
                          const std::string& strides) {
  return Call("torch._utils", "_rebuild_tensor_v2", storage, Int(offset), shape, strides, "\x89",
              Call("collections", "OrderedDict"));
}
// A vector of float32 that is all of its storage.
inline std::string Vector(std::string_view key, int32_t count) {
  return Tensor(Storage("FloatStorage", key, count), 0, Tuple(Int(count)), Tuple(Int(1)));
}

// A file of torch.save.
inline std::string TorchText(const std::string& pickle,
                             const std::vector<std::pair<std::string, std::string>>& storages,
                             std::string_view order = "little") {
  ZipBuilder zip;
  zip.Add({.name = "x/data.pkl", .contents = pickle});
  zip.Add({.name = "x/byteorder", .contents = std::string(order)});
  for (const auto& [key, bytes] : storages) {
    zip.Add({.name = "x/data/" + key, .contents = bytes});
  }
  return zip.Add({.name = "x/version", .contents = "3\n"}).Build();
}

}  // namespace varve::internal::formats::pickles
