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

Batch DrawBatch(const std::string& text, int B, int T, std::mt19937_64* rng) {
  std::uniform_int_distribution<size_t> any_start(0, text.size() - T - 1);
  Batch batch;
  for (int b = 0; b < B; ++b) {
    const auto start = text.begin() + static_cast<int64_t>(any_start(*rng));
    batch.inputs.insert(batch.inputs.end(), start, start + T);
    batch.targets.insert(batch.targets.end(), start + 1, start + 1 + T);
  }
  return batch;
}

}  // namespace gpt
