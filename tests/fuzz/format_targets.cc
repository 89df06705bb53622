// SPDX-License-Identifier: Apache-2.0
//
// Files of others that the command imports. What parses lies within the input.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cli/foreign/infinitrain_items.h"
#include "cli/formats/infinitrain_ckpt.h"
#include "cli/formats/infinitrain_state.h"
#include "cli/formats/llmc_model.h"
#include "cli/formats/llmc_state.h"
#include "cli/formats/npy.h"
#include "cli/formats/safetensors.h"
#include "cli/formats/safetensors_index.h"
#include "cli/formats/strict_json.h"
#include "tests/fuzz/targets.h"
#include "tests/fuzz/torch_fuzz.h"

namespace varve::internal::fuzz {
namespace {

using namespace formats;

void RequireInside(std::span<const FileTensor> tensors, std::span<const std::byte> file) {
  for (const FileTensor& tensor : tensors) {
    const bool is_inside = tensor.data.empty() ||
                           (tensor.data.data() >= file.data() &&
                            tensor.data.data() + tensor.data.size() <= file.data() + file.size());
    if (!is_inside) std::abort();
  }
}

void ReadSafetensors(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const auto header = ParseSafetensors(exact.bytes());
  if (!header.ok()) return;
  for (const SafetensorsTensor& tensor : header->tensors) {
    if (tensor.begin > tensor.end || header->data_begin + tensor.end > input.size()) std::abort();
  }
}

void ReadCkpt(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const auto tensors = ParseCkpt(exact.bytes());
  if (tensors.ok()) RequireInside(*tensors, exact.bytes());
}

// The first byte says whether it is a model or a state. The others come behind a header of zeros
// but for its numbers, so that mutations need not make 1,024 bytes.
void ReadLlmc(std::span<const std::byte> input) {
  constexpr size_t kNumbers = 96;
  if (input.empty()) return;
  std::string file(kLlmcHeaderBytes, '\0');
  const auto rest = input.subspan(1);
  const size_t head = std::min(rest.size(), kNumbers);
  std::memcpy(file.data(), rest.data(), head);
  file.append(reinterpret_cast<const char*>(rest.data()) + head, rest.size() - head);
  const ExactBytes exact(std::as_bytes(std::span(file)));
  if ((std::to_integer<int>(input[0]) & 1) != 0) {
    const auto model = ParseLlmcModel(exact.bytes());
    if (model.ok()) RequireInside(model->tensors, exact.bytes());
  } else {
    const auto state = ParseLlmcState(exact.bytes(), 1000);
    if (state.ok()) RequireInside(state->tensors, exact.bytes());
  }
}

void ReadJson(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  ParseSafetensorsIndex(exact.text()).status().IgnoreError();
  ParseInfiniTrainState(exact.text()).status().IgnoreError();
}

// An item of a store says which file has which tensors. An export writes those files.
void ReadLayoutItem(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const auto layout = cli::ParseLayoutItem(exact.text());
  if (!layout.ok()) return;
  for (const CkptLayout& file : *layout) {
    Require(file.file == kModelCkpt || file.file == kOptimizerCkpt);
  }
  const std::string once = cli::BuildLayoutItem(*layout);
  const auto again = cli::ParseLayoutItem(once);
  Require(again.ok() && cli::BuildLayoutItem(*again) == once);
}

void AppendNumber(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) *out += static_cast<char>(value >> (8 * i));
}

std::vector<std::string> SafetensorsSeeds() {
  std::vector<std::string> seeds;
  for (const std::string json :
       {R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})",
        R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
        R"("c":{"dtype":"U8","shape":[],"data_offsets":[6,7]}})"}) {
    std::string file;
    AppendNumber(json.size(), 8, &file);
    seeds.push_back(file + json + std::string(seeds.empty() ? 16 : 7, 'x'));
  }
  return seeds;
}

std::vector<std::string> CkptSeeds() {
  TensorInfo tensor;
  tensor.name = "layer.weight";
  tensor.dtype = DType::kF32;
  tensor.shape = {2, 3};
  tensor.logical_bytes = 24;
  const auto entry = BuildCkptEntry(tensor);
  return {BuildCkptHeader(1) + (entry.ok() ? *entry : "") + std::string(24, 'x'),
          BuildCkptHeader(0)};
}

std::vector<std::string> LayoutSeeds() {
  const std::vector<CkptLayout> layout = {{std::string(kModelCkpt), {"wte", "h.0 \"é\""}},
                                          {std::string(kOptimizerCkpt), {"wte.m"}}};
  return {cli::BuildLayoutItem(layout), cli::BuildLayoutItem({}), R"({"../model.ckpt":["a"]})"};
}

std::vector<std::string> LlmcSeeds() {
  std::string model = "\x01", state("\0", 1);
  for (const uint32_t value : {kLlmcGpt2Magic, 3u, 4u, 128u, 1u, 2u, 4u, 128u}) {
    AppendNumber(value, 4, &model);
  }
  for (const uint32_t value : {20240527u, 1u, 1u, 0u, 0u, 0u, 0u, 0u}) {
    AppendNumber(value, 4, &state);
  }
  std::string llama = "\x01";
  for (const uint32_t value : {kLlmcLlama3Magic, 5u, 4u, 128u, 1u, 2u, 2u, 8u, 1u, 16u}) {
    AppendNumber(value, 4, &llama);
  }
  return {model, state, llama};
}

std::vector<std::string> TorchSeeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"module0.pt", "values0.pt", "training0.pt"}) {
    const std::string file = ReadGolden(std::string("torch/") + name);
    seeds.push_back(std::string(1, '\0') + file);
    // The pickle is stored without compression.
    const size_t at = file.find("\x80\x02");
    if (at != std::string::npos) seeds.push_back("\x01" + file.substr(at, 4000));
  }
  seeds.push_back("\x02" + ReadGolden("torch/dcp1/.metadata"));
  seeds.push_back("\x03\x93NUMPY" + std::string("\x01\0\x3a\0", 4) +
                  "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\n");
  return seeds;
}

}  // namespace

std::vector<FuzzTarget> FormatTargets() {
  return {{"safetensors", ReadSafetensors, SafetensorsSeeds()},
          {"infinitrain_ckpt", ReadCkpt, CkptSeeds()},
          {"infinitrain_layout", ReadLayoutItem, LayoutSeeds()},
          {"llmc", ReadLlmc, LlmcSeeds()},
          {"torch_npz_dcp", ReadHostileFile, TorchSeeds()},
          {"json",
           ReadJson,
           {R"({"metadata":{"total_size":24},"weight_map":{"a":"x.safetensors"}})",
            R"({"global_step":5,"lr":0.1,"nested":{"list":[1,2,3],"none":null}})"}}};
}

}  // namespace varve::internal::fuzz
