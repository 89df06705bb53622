// SPDX-License-Identifier: Apache-2.0
//
// The fuzz target of tests/fuzz with changed files of torch and DCP, in random and repeatable ways.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cli/formats/torch_file.h"
#include "cli/formats/zip_entry_reader.h"
#include "tests/cli/formats/safetensors_builder.h"
#include "tests/fuzz/torch_fuzz.h"

namespace varve::internal::formats {
namespace {

std::string ContentOf(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string PickleOf(const std::filesystem::path& path) {
  const auto file = InputFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  const auto entries = ParseZip((*file)->bytes(), FetcherOf(file->get()));
  EXPECT_TRUE(entries.ok()) << entries.status().ToString();
  for (const ZipEntry& entry : *entries) {
    if (!entry.name.ends_with("data.pkl")) continue;
    const auto bytes = ReadZipEntry(*file, entry, "data.pkl", 1 << 20);
    return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
  }
  return {};
}

// Inputs of the fuzz target: a byte that says the kind, then a file.
std::vector<std::string> Seeds() {
  const std::filesystem::path folder = VARVE_GOLDEN_TORCH;
  std::vector<std::string> seeds;
  for (const char* name : {"module0.pt", "views0.pt", "values0.pt", "training0.pt"}) {
    seeds.push_back(std::string(1, '\0') + ContentOf(folder / name));
    seeds.push_back("\x01" + PickleOf(folder / name));
  }
  seeds.push_back("\x02" + ContentOf(folder / "dcp1/.metadata"));
  std::stringstream npy;
  npy << "\x03\x93NUMPY" << '\x01' << '\0' << '\x3a' << '\0'
      << "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\n";
  seeds.push_back(npy.str());
  return seeds;
}

TEST(TorchMutationsTest, SurvivesChangedFiles) {
  constexpr int kRounds = 3000;
  std::mt19937 random(11);
  const std::vector<std::string> seeds = Seeds();
  for (const std::string& seed : seeds) {
    ASSERT_GT(seed.size(), 20u);
    for (int round = 0; round < kRounds; ++round) {
      std::string input = seed;
      const size_t changes = 1 + random() % 4;
      for (size_t i = 0; i < changes; ++i) {
        const size_t at = 1 + random() % (input.size() - 1);
        switch (random() % 4) {
          case 0:
            input[at] = static_cast<char>(random());
            break;
          case 1:
            input[at] = static_cast<char>(input[at] ^ (1 << random() % 8));
            break;
          case 2:
            input.erase(at, std::min<size_t>(random() % 8, input.size() - at - 1));
            break;
          default:
            input.insert(at, input.substr(1 + random() % (input.size() - 1), random() % 16));
        }
      }
      fuzz::ReadHostileFile(AsBytes(input));
    }
  }
}

}  // namespace
}  // namespace varve::internal::formats
