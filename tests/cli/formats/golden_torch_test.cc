// SPDX-License-Identifier: Apache-2.0
//
// Files of torch 2.15 (tests/golden/torch): their values are those that the Python package writes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/formats/torch_file.h"

namespace varve::internal::formats {
namespace {

// One text of the files has half a pair of surrogates, which this reader of JSON refuses.
nlohmann::json Parse(std::string text) {
  const std::string surrogate = "\\ud800";
  for (size_t at = 0; (at = text.find(surrogate, at)) != std::string::npos;) {
    text.replace(at, surrogate.size(), "?");
  }
  return nlohmann::json::parse(text);
}

TEST(GoldenTorchTest, ValuesAreThoseOfThePythonPackage) {
  const std::filesystem::path folder = VARVE_GOLDEN_TORCH;
  std::ifstream file_of_expected(folder / "expected.json");
  const auto recorded = Parse({std::istreambuf_iterator<char>(file_of_expected), {}});
  size_t num_files = 0;
  for (const auto& [name, expected] : recorded.items()) {
    if (!expected.contains("item")) continue;
    const auto file = TorchFile::Open(folder / name);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_EQ(Parse((*file)->tree().json), expected["item"]) << name;
    EXPECT_EQ((*file)->tree().tensors.size(), expected["tensors"].size()) << name;
    ++num_files;
  }
  EXPECT_GE(num_files, 6u);
}

}  // namespace
}  // namespace varve::internal::formats
