// SPDX-License-Identifier: Apache-2.0
#include "gpt/data.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <system_error>

namespace gpt {
namespace {

namespace fs = std::filesystem;

varve::Result<std::string> ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return varve::Status::IOError("cannot open " + path.string());
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return varve::Status::IOError("cannot read " + path.string());
  return text;
}

// The finalizer of SplitMix64: neighbours become unlike.
uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

varve::Result<std::string> ReadText(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return varve::Status::NotFound("no text at " + path.string());
  if (!fs::is_directory(path, error)) return ReadFile(path);

  std::vector<fs::path> files;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::file_type type = entry->symlink_status(error).type();
    if (type == fs::file_type::regular) files.push_back(entry->path());
  }
  if (error) return varve::Status::IOError("cannot list " + path.string() + ": " + error.message());
  std::sort(files.begin(), files.end());
  std::string text;
  for (const fs::path& file : files) {
    VARVE_ASSIGN_OR_RETURN(const std::string part, ReadFile(file));
    text += part;
  }
  return text;
}

size_t SampleStart(uint64_t seed, int64_t sample, size_t num_starts) {
  constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
  return Mix(Mix(seed) + static_cast<uint64_t>(sample) * kGoldenRatio) % num_starts;
}

Batch DrawBatch(const std::string& text, uint64_t seed, int64_t first, int B, int T) {
  Batch batch;
  for (int64_t sample = first; sample < first + B; ++sample) {
    const size_t at = SampleStart(seed, sample, text.size() - T);
    const auto start = text.begin() + static_cast<int64_t>(at);
    batch.inputs.insert(batch.inputs.end(), start, start + T);
    batch.targets.insert(batch.targets.end(), start + 1, start + 1 + T);
  }
  return batch;
}

}  // namespace gpt
