// SPDX-License-Identifier: Apache-2.0
//
// The values of a pickle of torch.save as the JSON and the named tensors that the Python package
// makes of a state dict (python/varve/torch/_trees.py says how they look). So varve.torch.load
// gives an import back as torch.load gives the file. Stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cli/formats/pickle.h"
#include "cli/formats/torch_tensors.h"
#include "varve/result.h"

namespace varve::internal::formats {

struct NamedTorchTensor : TorchTensor {
  std::string name;      // the keys and indices on its path, joined by "."
  std::string alias_of;  // the first tensor of the tree that lies in the same place
};

// A number or text that is the value of a key, or the root.
struct PlainValue {
  std::string path;  // empty: it is the root
  std::variant<int64_t, double, std::string> value;
};

struct TorchTree {
  std::vector<NamedTorchTensor> tensors;
  std::string json;
  bool has_plain = false;         // something else than tensors by name
  std::vector<PlainValue> plain;  // the first kMaxPlainValues of them
};

inline constexpr size_t kMaxPlainValues = 1000;
inline constexpr size_t kMaxTreeBytes = size_t{64} << 20;  // of the JSON

// Reads the value `root`. The pickle's bytes must outlive the result. kInvalidArgument names the
// path or the offset of what is not a tensor, a container or a plain value, of a value in more than
// 100 containers, and of a pickle whose values, written out, would be too large.
Result<TorchTree> ReadTorchTree(const Pickle& pickle, PickleId root);

// Writes text as a string of JSON. Surrogates that stand alone are escaped.
void AppendJsonString(std::string_view text, std::string* json);

}  // namespace varve::internal::formats
