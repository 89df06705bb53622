// SPDX-License-Identifier: Apache-2.0
//
// The table of fuzz targets: every decoder of bytes that varve did not write itself, or that a disk
// may have changed. A target decodes its input. Any Status is fine. It ends the process when a
// decoder says ok to something that it does not hold to, such as a record that is another one when
// it is encoded and decoded again. Stateless. Any thread may run any target.
//
// The same table is run in two ways: by libFuzzer (varve_fuzz), and by the test fuzz_test, with
// mutations of the seeds.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace varve::internal::fuzz {

struct FuzzTarget {
  std::string_view name;
  void (*run)(std::span<const std::byte> input);
  std::vector<std::string> seeds;  // valid inputs, for mutations to start from
  // Opens whole stores, so that few inputs must do where time is short.
  bool is_slow = false;

  // What an input may take of the processor. 40 calls of a store took 11 s, with the sanitizers.
  double most_seconds() const { return is_slow ? 60 : 5; }
};

std::vector<FuzzTarget> FrameTargets();
std::vector<FuzzTarget> HintTargets();  // what trainers say of their optimizers
std::vector<FuzzTarget> StoreTargets();
std::vector<FuzzTarget> CatalogueTargets();
std::vector<FuzzTarget> FileTargets();     // FORMAT, GROUP, seals, the log of a group
std::vector<FuzzTarget> HookTargets();     // what ranks send each other
std::vector<FuzzTarget> ObjectTargets();   // what object stores answer
std::vector<FuzzTarget> WholeTargets();    // stores with damaged files, and calls of stores
std::vector<FuzzTarget> CommandTargets();  // texts of the command line
std::vector<FuzzTarget> FormatTargets();   // files of others

// All of these. Defined where they are linked together.
std::vector<FuzzTarget> AllTargets();

// A block of the exact size, so that the address sanitizer sees any byte past the end.
class ExactBytes {
 public:
  explicit ExactBytes(std::span<const std::byte> bytes)
      : size_(bytes.size()), block_(new std::byte[bytes.size()]) {
    for (size_t i = 0; i < size_; ++i) block_[i] = bytes[i];
  }
  ExactBytes(const ExactBytes&) = delete;
  ExactBytes& operator=(const ExactBytes&) = delete;
  ~ExactBytes() { delete[] block_; }
  std::span<const std::byte> bytes() const { return {block_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(block_), size_}; }

 private:
  const size_t size_;
  std::byte* const block_;
};

// The bytes of a file of tests/golden. Empty when it is missing.
std::string ReadGolden(const std::string& name);

// The processor's time of all threads of this process. Unlike the time on the wall, it does not
// tell how busy the machine is.
double ProcessorSeconds();

// Ends the process unless it holds.
inline void Require(bool holds) {
  if (!holds) std::abort();
}

// A folder of this process: in $TMPDIR, otherwise in memory where that is possible. It is removed
// when the process ends in order.
const std::filesystem::path& ScratchFolder();
void WriteFile(const std::filesystem::path& path, std::string_view bytes);
std::string ReadFile(const std::filesystem::path& path);

}  // namespace varve::internal::fuzz
