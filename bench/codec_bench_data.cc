// SPDX-License-Identifier: Apache-2.0
#include "bench/codec_bench_data.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace varve::internal::bench {

void Fail(const std::string& message) {
  std::fprintf(stderr, "codec_bench: %s\n", message.c_str());
  std::exit(1);
}

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

File ReadSafetensors(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  uint64_t header_bytes = 0;
  in.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  if (!in || header_bytes > (uint64_t{100} << 20)) Fail(path.string() + " is no safetensors file");
  std::string header(header_bytes, '\0');
  in.read(header.data(), static_cast<std::streamsize>(header_bytes));
  File file;
  const nlohmann::json parsed = nlohmann::json::parse(header);
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      file.metadata = value.get<std::map<std::string, std::string>>();
      continue;
    }
    const std::optional<DType> dtype = ParseDType(value["dtype"].get<std::string>());
    if (!dtype) Fail(path.string() + ": " + name + " has an unknown dtype");
    const uint64_t begin = value["data_offsets"][0];
    const uint64_t end = value["data_offsets"][1];
    Tensor tensor{.dtype = *dtype, .raw = std::vector<std::byte>(end - begin)};
    in.seekg(static_cast<std::streamoff>(8 + header_bytes + begin));
    in.read(reinterpret_cast<char*>(tensor.raw.data()), static_cast<std::streamsize>(end - begin));
    if (!in) Fail(path.string() + " is cut short");
    if (!tensor.raw.empty()) file.tensors.emplace(name, std::move(tensor));
  }
  return file;
}

}  // namespace varve::internal::bench
