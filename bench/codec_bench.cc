// SPDX-License-Identifier: Apache-2.0
//
// codec_bench FOLDER [auto|zstd|rans]: ratio and speed of the codec over a folder of safetensors
// files, with the given entropy coder. VARVE_CPU=avx2 or portable measures the lower levels.
//
// Files are named SERIES+STEPS.safetensors. Every file of a series is encoded alone, and as a delta
// to SERIES+000. Two files of consecutive steps of Adam whose metadata has lr, beta1, beta2, eps,
// weight_decay, step and clip_factor are measured with optimizer replay, too
// (codec_bench_replay.h); bench/torch_steps.py makes such files. Tensors are grouped by the part of
// their name before the first dot. Ratio is encoded bytes / raw bytes. GB/s is raw bytes / CPU time
// of this thread, best of several passes, in chunks of 262,144 elements. Every method is decoded
// and compared before it is timed. tests/cli/store_matches_bench.py compares the bytes with what a
// store reports.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench/codec_bench_data.h"
#include "bench/codec_bench_methods.h"
#include "bench/codec_bench_replay.h"
#include "codec/predict/rounded_copy.h"

namespace varve::internal::bench {
namespace {

Entropy g_entropy = Entropy::kAuto;  // set once, at the start

std::string KindOf(const std::string& name) { return name.substr(0, name.find('.')); }

// The chunks of one kind of tensors, each with the same chunk of the base file when there is one.
std::vector<Chunk> MakeChunks(const File& file, const File* base, const std::string& kind) {
  std::vector<Chunk> chunks;
  for (const auto& [name, tensor] : file.tensors) {
    if (KindOf(name) != kind) continue;
    const Tensor* from = nullptr;
    if (base != nullptr) {
      const auto found = base->tensors.find(name);
      if (found == base->tensors.end() || found->second.raw.size() != tensor.raw.size()) continue;
      from = &found->second;
    }
    const auto step = static_cast<size_t>(kChunkElements * DTypeBits(tensor.dtype) / 8);
    for (size_t at = 0; at < tensor.raw.size(); at += step) {
      const size_t bytes = std::min(step, tensor.raw.size() - at);
      Chunk chunk;
      chunk.dtype = tensor.dtype;
      chunk.raw.assign(tensor.raw.begin() + at, tensor.raw.begin() + at + bytes);
      chunk.digest = ComputeDigest(0, chunk.raw);
      if (from != nullptr) {
        chunk.base.assign(from->raw.begin() + at, from->raw.begin() + at + bytes);
        chunk.base_digest = ComputeDigest(0, chunk.base);
      }
      chunks.push_back(std::move(chunk));
    }
  }
  return chunks;
}

// A delta may only lengthen the path of its base so far: the base counts as its own keyframe.
void SetBasePaths(std::vector<Chunk>* chunks) {
  const std::unique_ptr<Method> keyframe = MakeVarve(Compression::kFast, g_entropy);
  std::vector<std::byte> frame;
  for (Chunk& chunk : *chunks) {
    Chunk base;
    base.raw = chunk.base;
    base.dtype = chunk.dtype;
    keyframe->Encode(base, &frame);
    chunk.base_path_bytes = frame.size();
  }
}

Measured Measure(Method* method, const std::vector<Chunk>& chunks) {
  Measured result;
  std::vector<std::vector<std::byte>> encoded(chunks.size());
  std::vector<std::byte> out;
  for (size_t i = 0; i < chunks.size(); ++i) {
    method->Encode(chunks[i], &encoded[i]);
    out.assign(chunks[i].raw.size(), std::byte{0});
    if (!method->Decode(chunks[i], encoded[i], out) || out != chunks[i].raw) {
      Fail("a chunk did not decode to what was encoded");
    }
    result.raw_bytes += chunks[i].raw.size();
    result.encoded_bytes += encoded[i].size();
  }
  // Encoded bytes go to one warm buffer, decoded bytes to one warm buffer, as in a pipeline.
  std::vector<std::byte> frame;
  frame.reserve(size_t{8} << 20);
  std::vector<std::byte> raw(size_t{8} << 20);
  double encode = 1e9;
  double decode = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    double start = CpuSeconds();
    for (const Chunk& chunk : chunks) method->Encode(chunk, &frame);
    encode = std::min(encode, CpuSeconds() - start);
    start = CpuSeconds();
    for (size_t i = 0; i < chunks.size(); ++i) {
      method->Decode(chunks[i], encoded[i], std::span(raw).first(chunks[i].raw.size()));
    }
    decode = std::min(decode, CpuSeconds() - start);
  }
  result.encode_gbps = static_cast<double>(result.raw_bytes) / encode / 1e9;
  result.decode_gbps = static_cast<double>(result.raw_bytes) / decode / 1e9;
  return result;
}

// Names a measurement by series, kind and distance ("keyframe", "+001", ...).
struct Key {
  std::string series;
  std::string kind;
  std::string distance;
  auto operator<=>(const Key&) const = default;
};
using Results = std::map<Key, Measured>;

std::string Predictors(Compression compression, const std::vector<Chunk>& chunks) {
  std::map<std::string, int> counts;
  const std::unique_ptr<Method> method = MakeVarve(compression, g_entropy);
  std::vector<std::byte> frame;
  for (const Chunk& chunk : chunks) {
    method->Encode(chunk, &frame);
    ++counts[std::string(PredictorName(ParseFrame(frame)->predictor))];
  }
  std::string text;
  for (const auto& [name, count] : counts) text += "  " + std::to_string(count) + " " + name;
  return text;
}

void PrintRow(const char* method, const Measured& m, const std::string& note = "") {
  std::printf("  %-24s %10llu %7.4f %7.2f %7.2f%s\n", method,
              static_cast<unsigned long long>(m.encoded_bytes), m.ratio(), m.encode_gbps,
              m.decode_gbps, note.c_str());
}

void BenchGroup(const Key& key, std::vector<Chunk> chunks, Results* results) {
  if (chunks.empty()) return;
  const bool has_base = !chunks[0].base.empty();
  if (has_base) SetBasePaths(&chunks);
  std::printf("%s  %s  %s\n", key.series.c_str(), key.kind.c_str(), key.distance.c_str());
  const Compression compression = has_base ? Compression::kAuto : Compression::kFast;
  const Measured varve = Measure(MakeVarve(compression, g_entropy).get(), chunks);
  PrintRow("varve", varve, Predictors(compression, chunks));
  PrintRow("zstd 1", Measure(MakeZstd1().get(), chunks));
  PrintRow("planes + zstd 1", Measure(MakePlanesZstd1().get(), chunks));
  if (has_base) PrintRow("XOR + planes + zstd 1", Measure(MakeXorPlanesZstd1().get(), chunks));
  PrintRow("memcpy", Measure(MakeMemcpy().get(), chunks));
  (*results)[key] = varve;
}

// A BF16 tensor that is the rounded copy of its master adds nothing to the cost of the master.
Measured WholeState(const Results& results, const File& file, const std::string& series,
                    const std::string& distance) {
  Measured sum;
  double encode = 0;
  double decode = 0;
  for (const char* kind : {"model", "master", "exp_avg", "exp_avg_sq"}) {
    auto found = results.find({series, kind, distance});
    if (found == results.end()) found = results.find({series, kind, "keyframe"});
    if (found == results.end()) continue;
    const Measured& m = found->second;
    sum.raw_bytes += m.raw_bytes;
    bool derived = std::strcmp(kind, "model") == 0;
    for (const auto& [name, tensor] : file.tensors) {
      if (!derived || KindOf(name) != "model") continue;
      const auto master = file.tensors.find("master" + name.substr(name.find('.')));
      derived = master != file.tensors.end() &&
                IsRoundedCopy(tensor.dtype, master->second.raw, tensor.raw);
    }
    if (derived) continue;
    sum.encoded_bytes += m.encoded_bytes;
    encode += static_cast<double>(m.raw_bytes) / m.encode_gbps;
    decode += static_cast<double>(m.raw_bytes) / m.decode_gbps;
  }
  sum.encode_gbps = static_cast<double>(sum.raw_bytes) / encode;
  sum.decode_gbps = static_cast<double>(sum.raw_bytes) / decode;
  return sum;
}

// Random bytes, which only a copy can store, in turn with a copy of the same bytes.
double RawFallbackShare() {
  std::mt19937_64 random(1);
  std::vector<Chunk> chunks(32);
  for (Chunk& chunk : chunks) {
    chunk.dtype = DType::kF32;
    chunk.raw.resize(4 * kChunkElements);
    for (size_t i = 0; i < chunk.raw.size(); i += 8) {
      const uint64_t bits = random();
      std::memcpy(&chunk.raw[i], &bits, 8);
    }
  }
  const std::unique_ptr<Method> methods[2] = {MakeVarve(Compression::kAuto, g_entropy),
                                              MakeMemcpy()};
  double best[2] = {1e9, 1e9};
  std::vector<std::byte> out;
  for (int pass = 0; pass < 2 * kPasses; ++pass) {
    for (int m = 0; m < 2; ++m) {
      const double start = CpuSeconds();
      for (const Chunk& chunk : chunks) methods[m]->Encode(chunk, &out);
      best[m] = std::min(best[m], CpuSeconds() - start);
    }
  }
  const double bytes = static_cast<double>(chunks.size() * chunks[0].raw.size());
  std::printf("random bytes: varve encodes %.2f GB/s, memcpy %.2f GB/s\n", bytes / best[0] / 1e9,
              bytes / best[1] / 1e9);
  return best[1] / best[0];
}

int g_missed = 0;

void PrintGoal(const std::string& what, double found, const char* relation, double goal) {
  const bool met = relation[0] == '<' ? found <= goal : found >= goal;
  g_missed += !met;
  std::printf("  %-44s %8.4f  %s %6.3f  %s\n", what.c_str(), found, relation, goal,
              met ? "met" : "not met");
}

struct RatioGoal {
  const char* series;
  const char* kind;
  const char* distance;
  double ratio;
};
constexpr RatioGoal kRatioGoals[] = {
    {"late", "model", "keyframe", .668},
    {"late", "model", "+001", .09},
    {"late", "model", "+010", .23},
    {"late", "model", "+100", .35},
    {"late", "master", "keyframe", .836},
    {"late", "master", "+001", .53},
    {"late", "master", "+010", .62},
    {"late", "master", "+100", .685},
    {"late", "exp_avg", "keyframe", .845},
    {"late", "exp_avg", "+001", .81},
    {"late", "exp_avg", "+010", .845},
    {"late", "exp_avg", "+100", .845},
    {"late", "exp_avg_sq", "keyframe", .81},
    {"late", "exp_avg_sq", "+001", .66},
    {"late", "exp_avg_sq", "+010", .75},
    {"late", "exp_avg_sq", "+100", .78},
    {"late", "whole state", "keyframe", .715},
    {"late", "whole state", "+001", .575},
    {"late", "whole state", "+010", .635},
    {"late", "whole state", "+100", .66},
    {"late", "whole state, replay", "+001", .24},
    {"bf16_gradients", "whole state, replay", "+001", .10},
    {"rl", "model", "keyframe", .67},
    {"rl", "model", "+001", .01},
};

// The slowest kind of `late` decides.
void PrintSpeedGoals(const Results& results) {
  double slowest[4] = {1e9, 1e9, 1e9, 1e9};
  for (const auto& [key, m] : results) {
    if (key.series != "late" || key.kind == "whole state") continue;
    const int at = key.distance == "keyframe" ? 0 : 2;
    slowest[at] = std::min(slowest[at], m.encode_gbps);
    slowest[at + 1] = std::min(slowest[at + 1], m.decode_gbps);
  }
  const char* names[4] = {"keyframe encode", "keyframe decode", "delta encode", "delta decode"};
  const double goals[4] = {2.0, 4.5, 1.5, 3.0};
  for (int i = 0; i < 4; ++i) {
    if (slowest[i] < 1e9) {
      PrintGoal(std::string("GB/s, late, slowest kind: ") + names[i], slowest[i], ">=", goals[i]);
    }
  }
  for (const char* distance : {"keyframe", "+001"}) {
    const auto found = results.find({"late", "whole state", distance});
    if (found == results.end()) continue;
    const int at = std::strcmp(distance, "keyframe") == 0 ? 0 : 2;
    PrintGoal(std::string("GB/s, late, whole state: ") + names[at], found->second.encode_gbps,
              ">=", goals[at]);
    PrintGoal(std::string("GB/s, late, whole state: ") + names[at + 1], found->second.decode_gbps,
              ">=", goals[at + 1]);
  }
}

void PrintGoals(const Results& results, double raw_share) {
  std::printf("\nGoals\n");
  for (const RatioGoal& goal : kRatioGoals) {
    const auto found = results.find({goal.series, goal.kind, goal.distance});
    const std::string what =
        std::string("ratio, ") + goal.series + ", " + goal.kind + ", " + goal.distance;
    if (found == results.end()) continue;  // not in this folder
    PrintGoal(what, found->second.ratio(), "<=", goal.ratio);
  }
  PrintSpeedGoals(results);
  PrintGoal("raw fallback, share of memcpy", raw_share, ">=", 0.9);
  std::printf("%d not met\n", g_missed);
}

void BenchSeries(const std::string& series, const std::map<std::string, File>& files,
                 Results* results) {
  const auto first = files.find("+000");
  for (const auto& [distance, file] : files) {
    const bool keyframe = distance == "+000";
    if (!keyframe && first == files.end()) continue;
    std::vector<std::string> kinds;
    for (const auto& [name, tensor] : file.tensors) kinds.push_back(KindOf(name));
    std::sort(kinds.begin(), kinds.end());
    kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
    const std::string shown = keyframe ? "keyframe" : distance;
    for (const std::string& kind : kinds) {
      BenchGroup({series, kind, shown}, MakeChunks(file, keyframe ? nullptr : &first->second, kind),
                 results);
    }
    const Measured state = WholeState(*results, file, series, shown);
    (*results)[{series, "whole state", shown}] = state;
    std::printf("%s  whole state, bf16 derived  %s\n", series.c_str(), shown.c_str());
    PrintRow("varve", state);
    if (keyframe || !MayReplay(first->second, file)) continue;
    const Replayed replayed = MeasureReplay(first->second, file, g_entropy);
    (*results)[{series, "whole state, replay", shown}] = replayed.measured;
    std::printf("%s  whole state, bf16 derived, optimizer replay  %s\n", series.c_str(),
                shown.c_str());
    char note[80];
    std::snprintf(note, sizeof(note), "  predicted exactly: m %.2f %%, v %.2f %%, w %.2f %%",
                  100 * replayed.moment, 100 * replayed.square, 100 * replayed.weight);
    PrintRow("varve", replayed.measured, note);
  }
}

int Main(int argc, char** argv) {
  if (argc != 2 && argc != 3) Fail("usage: codec_bench FOLDER [auto|zstd|rans]");
  const std::string entropy = argc == 3 ? argv[2] : "auto";
  if (entropy == "zstd") g_entropy = Entropy::kZstd;
  if (entropy == "rans") g_entropy = Entropy::kRans;
  if (g_entropy == Entropy::kAuto && entropy != "auto") Fail(entropy + " is no entropy coder");
  std::map<std::string, std::map<std::string, File>> series;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string stem = entry.path().stem().string();
    const size_t plus = stem.rfind('+');
    const std::string distance = plus == std::string::npos ? "+000" : stem.substr(plus);
    series[stem.substr(0, plus)][distance] = ReadSafetensors(entry.path());
  }
  if (series.empty()) Fail(std::string(argv[1]) + " has no safetensors files");
  std::printf("%-26s %10s %7s %7s %7s\n", "", "bytes", "ratio", "enc", "dec GB/s");
  Results results;
  for (const auto& [name, files] : series) BenchSeries(name, files, &results);
  PrintGoals(results, RawFallbackShare());
  return 0;
}

}  // namespace
}  // namespace varve::internal::bench

int main(int argc, char** argv) { return varve::internal::bench::Main(argc, argv); }
