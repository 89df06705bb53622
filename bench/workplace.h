// SPDX-License-Identifier: Apache-2.0
//
// The folder in which benchmarks make stores and files, and what they ask of its file system.
// All of them end the program when something fails: a number that follows would mean nothing.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "varve/result.h"

namespace varve::internal::bench {

[[noreturn]] void Fail(const std::string& message);
void Require(const Status& status);

template <typename T>
T Must(Result<T> result) {
  Require(result.status());
  return *std::move(result);
}

// Gives a new path below a folder for each call. All of them are removed with the object.
class Workplace {
 public:
  explicit Workplace(const std::filesystem::path& root);
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  std::filesystem::path NewPath(const std::string& what);
  // Removes a file or folder and waits until the file system has done so.
  void Remove(const std::filesystem::path& path);
  // Waits until nothing is left to write, so that no measure pays for what came before it.
  void Settle() const;

 private:
  std::filesystem::path folder_;
  int next_ = 0;
};

// Bytes that the file system has allocated to all files below `path`.
uint64_t DiskBytes(const std::filesystem::path& path);

// Drops all files below `path` from the system's cache. Fails when they stay.
void DropFromCache(const std::filesystem::path& path);

}  // namespace varve::internal::bench
