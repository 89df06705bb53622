// SPDX-License-Identifier: Apache-2.0
//
// What a decoder allocates is in proportion to its input: twice the input takes twice the memory,
// and a number that claims much takes none. Bytes are counted, because time is another one on a
// busy machine. With VARVE_FULL_SIZE=1 the processor's time is measured as well.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/util.h"
#include "cli/foreign/infinitrain_items.h"
#include "cli/formats/infinitrain_ckpt.h"
#include "cli/formats/pickle.h"
#include "cli/formats/pickle_writer.h"
#include "cli/formats/zip_file.h"
#include "store/db/manifest_log.h"
#include "store/db/reference_counts.h"
#include "store/format/keys.h"
#include "store/format/record.h"
#include "store/format/trainer_progress.h"
#include "store/group/catalogue.h"
#include "store/group/group_record.h"
#include "store/group/group_state.h"
#include "store/ops/inbox.h"
#include "store/remote/remote_state.h"
#include "tests/fuzz/frame_fuzz.h"
#include "tests/fuzz/targets.h"
#include "tests/support/scarce_memory.h"
#include "trainer_hooks/group/held_tensor.h"
#include "trainer_hooks/load/rounds.h"

// GCC 12 sees the strings of a variant's other members being destroyed (its bug 105562).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace varve::internal::fuzz {
namespace {

using testing::ScarceMemory;

std::string NameOf(size_t i) { return "layer." + std::to_string(1000000 + i) + ".weight"; }

std::string Repeated(std::string_view text, size_t n) {
  std::string all;
  for (size_t i = 0; i < n; ++i) all += text;
  return all;
}

std::string Refs(size_t n) {
  std::vector<ChunkRef> refs(n);
  for (size_t i = 0; i < n; ++i) {
    refs[i].digest = {i, 2};
    refs[i].raw_bytes = 4096;
    refs[i].stored_bytes = 100;
    refs[i].address = {.save_id = 3, .ordinal = static_cast<uint32_t>(i)};
  }
  return EncodeChunkList(refs);
}

// `of_each` edges of each frame.
std::string Edges(size_t n, size_t of_each) {
  SaveBlock block;
  for (size_t i = 0; i < n; ++i) {
    BaseEdge edge;
    edge.ordinal = static_cast<uint32_t>(i / of_each);
    edge.base = {.save_id = 1, .ordinal = static_cast<uint32_t>(i)};
    edge.base_raw_bytes = 4096;
    edge.base_stored_bytes = 400;
    block.edges.push_back(edge);
  }
  return EncodeSaveBlock(block);
}

std::string Metrics(size_t n) {
  StepRecord step;
  step.save_id = 4;
  for (size_t i = 0; i < n; ++i) step.metrics[NameOf(i)] = static_cast<double>(i);
  return EncodeStepRecord(step);
}

std::string Lists(size_t n) {
  TensorRecord record;
  record.save_id = 9;
  record.dtype = DType::kU8;
  record.elements_per_chunk = 1 << 20;
  record.shape = {static_cast<int64_t>(n) * kChunksPerList, 1 << 20};
  for (size_t i = 0; i < n; ++i) record.lists.push_back({9, static_cast<uint32_t>(i)});
  return EncodeTensorRecord(record);
}

std::string Progress(size_t n) {
  TrainerProgress progress;
  for (size_t i = 0; i < n; ++i) {
    progress.extra[NameOf(i)] = std::vector<double>{1, 2};
    progress.rng.push_back({static_cast<uint32_t>(i), "cpu", {1, 2, 3}});
  }
  return EncodeTrainerProgress(progress);
}

std::string Drops(size_t n) {
  DropRequest drop;
  for (size_t i = 0; i < n; ++i) drop.ids.push_back({"main", i});
  return EncodeRequest({drop, true});
}

std::string Warnings(size_t n) {
  DropReport drop;
  for (size_t i = 0; i < n; ++i) drop.warnings.push_back("warning " + std::to_string(i));
  return EncodeAnswer({Status::Ok(), drop});
}

std::string Shards(size_t n) {
  Catalogue catalogue;
  for (size_t i = 0; i < n; ++i) {
    CatalogueShard shard;
    shard.name = NameOf(i);
    shard.dtype = DType::kF32;
    shard.shape = {8, 4};
    shard.content = {i, 1};
    catalogue.shards.push_back(shard);
  }
  return EncodeCatalogue(catalogue);
}

std::string Snapshot(size_t n) {
  constexpr size_t kHeaderBytes = 24;
  GroupState state;
  state.version = 1;
  state.next_attempt = n + 1;
  for (size_t i = 1; i <= n; ++i) {
    state.runs["main"].steps[i] = {i, {}, {{"loss", 0.5}}};
    GroupAttempt& attempt = state.attempts[i];
    attempt.committed = true;
    attempt.id = {"main", i};
    attempt.names = 1;
  }
  return EncodeGroupRecord(
             3, 9, {{4, 1, 77}, SnapshotRecord{std::make_shared<const GroupState>(state), {}}})
      .substr(kHeaderBytes);
}

std::string Snapshots(size_t n) {
  RemoteState state;
  state.number = 3;
  state.store_id = {1, 2};
  state.next_snapshot = n + 1;
  for (size_t i = 1; i <= n; ++i) {
    state.snapshots.push_back({i, i, 100, {BlobName(i, "abc"), 0, 100, {i, 2}}});
  }
  return EncodeRemoteState(state);
}

std::string Tables(size_t n) {
  SnapshotBody body;
  body.manifest_name = "MANIFEST-000005";
  body.manifest = "bytes";
  for (size_t i = 0; i < n; ++i) {
    char name[20];
    std::snprintf(name, sizeof(name), "%06zu.sst", i + 10);
    body.tables.push_back({name, "identity" + std::to_string(i), {BlobName(i, "abc"), 0, 100, {}}});
  }
  return EncodeSnapshotBody(body);
}

std::string Held(size_t n) {
  TrainingState state;
  for (size_t i = 0; i < n; ++i) state.tensors.push_back({{.name = NameOf(i), .shape = {8, 4}}});
  return std::string(AsString(EncodeHeld(state, {})));
}

std::string Pieces(size_t n) {
  RankPieces pieces{1000, {}};
  for (size_t i = 0; i < n; ++i) pieces.tensors[NameOf(i)] = {10, 20};
  return std::string(AsString(EncodePieces(pieces)));
}

std::string LogOf(size_t n) {
  std::string log;
  for (size_t i = 0; i < n; ++i) AppendLogRecord("some record", &log);
  return log;
}

std::string SafetensorsOf(size_t n) {
  nlohmann::json header = nlohmann::json::object();
  for (size_t i = 0; i < n; ++i) {
    header[NameOf(i)] = {{"dtype", "U8"}, {"shape", {1}}, {"data_offsets", {i, i + 1}}};
  }
  const std::string json = header.dump();
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i));
  return file + json + std::string(n, 'x');
}

std::string CkptOf(size_t n) {
  std::string file = formats::BuildCkptHeader(static_cast<uint32_t>(n));
  for (size_t i = 0; i < n; ++i) {
    TensorInfo tensor;
    tensor.name = NameOf(i);
    tensor.shape = {1};
    tensor.logical_bytes = 4;
    file += formats::BuildCkptEntry(tensor).value() + "data";
  }
  return file;
}

std::string LayoutOf(size_t n) {
  formats::CkptLayout layout{.file = std::string(formats::kModelCkpt), .tensors = {}};
  for (size_t i = 0; i < n; ++i) layout.tensors.push_back(NameOf(i));
  return cli::BuildLayoutItem({&layout, 1});
}

std::string IndexOf(size_t n) {
  nlohmann::json map = nlohmann::json::object();
  for (size_t i = 0; i < n; ++i) map[NameOf(i)] = "x.safetensors";
  return nlohmann::json{{"metadata", {{"total_size", 24}}}, {"weight_map", map}}.dump();
}

// A raw frame of the form that the target takes.
std::string RawFrame(size_t n) {
  const size_t raw_bytes = n / 8 * 8;
  std::string input = {'\0', '\0'};
  for (int i = 0; i < 3; ++i) input += static_cast<char>(raw_bytes >> (8 * i));
  return input + std::string(raw_bytes, 'x');
}

// A frame with coded planes, of weights that change little, in the form that the target takes.
std::string CodedFrame(size_t n, bool has_base) {
  std::vector<uint16_t> weights(n / 4 * 4), before(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto noise = static_cast<uint32_t>(i) * 2654435761u;
    before[i] = static_cast<uint16_t>(0x3D00 + (noise >> 24) % 200 + (noise & 0x8000));
    weights[i] = static_cast<uint16_t>(before[i] + (noise >> 16) % 3);
  }
  const auto raw = std::as_bytes(std::span(weights));
  const FrameBase base{.address = {.save_id = 1, .ordinal = 1},
                       .digest = {},
                       .raw = std::as_bytes(std::span(before)),
                       .path_bytes = 1};
  FrameEncoder encoder;
  std::vector<std::byte> frame;
  const Status encoded = encoder.Encode({.raw = raw,
                                         .dtype = DType::kBF16,
                                         .base = has_base ? &base : nullptr,
                                         .max_path_ratio = 100,
                                         .max_delta_share = 2},
                                        &frame);
  Require(encoded.ok());
  Require(ParseFrame(frame)->predictor == (has_base ? Predictor::kDelta : Predictor::kKeyframe));
  return HostileInputOf(frame);
}

// A frame that is predicted from its sources and differs a little, in the form that the target
// takes.
std::string ReplayedFrame(size_t n, ReplayTarget target) {
  const size_t size = n / 4;
  const AdamRecipe recipe = {.beta1 = 0.9f,
                             .rest1 = 0.1f,
                             .beta2 = 0.95f,
                             .rest2 = 0.05f,
                             .step_size = 1e-3f,
                             .eps = 1e-8f,
                             .has_bf16_gradient = true};
  std::vector<float> moment(size), square(size), weight(size);
  std::vector<uint16_t> gradient(size);
  for (size_t i = 0; i < size; ++i) {
    const auto noise = static_cast<uint32_t>(i) * 2654435761u;
    moment[i] = static_cast<float>(static_cast<int32_t>(noise)) * 1e-12f;
    square[i] = static_cast<float>(noise >> 8) * 1e-12f;
    weight[i] = static_cast<float>(static_cast<int32_t>(noise * 31)) * 1e-11f;
    gradient[i] = static_cast<uint16_t>(0x3A00 + (noise >> 24) % 200);
  }
  const auto bytes = [](const auto& values) { return std::as_bytes(std::span(values)); };
  std::vector<std::byte> after(4 * size), wanted(4 * size);
  PredictMoment(recipe, bytes(moment), bytes(gradient), after);
  std::vector<std::span<const std::byte>> sources;
  switch (target) {
    case ReplayTarget::kMoment:
      sources = {bytes(moment)};
      wanted = after;
      break;
    case ReplayTarget::kSquare:
      sources = {bytes(moment), after, bytes(square)};
      PredictSquare(recipe, sources[0], sources[1], sources[2], wanted);
      break;
    default:
      sources = {after, bytes(square), bytes(weight)};
      PredictWeight(recipe, sources[0], sources[1], sources[2], wanted);
  }
  for (size_t i = 0; i < size; ++i) {
    wanted[4 * i] ^= static_cast<std::byte>(static_cast<uint32_t>(i) * 2654435761u >> 29);
  }
  std::vector<FrameBase> bases;
  for (const auto& source : sources) {
    bases.push_back({.address = {.save_id = 1, .ordinal = static_cast<uint32_t>(bases.size())},
                     .digest = {},
                     .raw = source,
                     .path_bytes = 1});
  }
  const ReplayInput replay{.replay = {target, recipe}, .sources = bases, .path_bytes = 1};
  std::vector<std::byte> frame;
  Require(
      FrameEncoder().Encode({.raw = wanted, .dtype = DType::kF32, .replay = &replay}, &frame).ok());
  const auto info = ParseFrame(frame);
  Require(info->predictor == Predictor::kReplay && info->num_sources == NumSources(target));
  return HostileInputOf(frame);
}

// A zip archive of empty files, in the form that the target takes.
std::string ArchiveOf(size_t n) {
  const auto numbers = [](std::initializer_list<std::pair<uint32_t, int>> fields) {
    std::string bytes;
    for (const auto& [value, size] : fields) {
      for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i));
    }
    return bytes;
  };
  std::string files, directory;
  for (size_t i = 0; i < n; ++i) {
    const std::string name = NameOf(i);
    // The version that it needs, flags, method, time and date, checksum and sizes, and the name's.
    const std::string entry = numbers({{20, 2},
                                       {0, 2},
                                       {0, 2},
                                       {0x21 << 16, 4},
                                       {0, 4},
                                       {0, 4},
                                       {0, 4},
                                       {static_cast<uint32_t>(name.size()), 2},
                                       {0, 2}});
    directory +=
        numbers({{0x02014b50, 4}, {20, 2}}) + entry +
        numbers({{0, 2}, {0, 2}, {0, 2}, {0, 4}, {static_cast<uint32_t>(files.size()), 4}}) + name;
    files += numbers({{0x04034b50, 4}}) + entry + name;
  }
  const auto count = static_cast<uint32_t>(n);
  const std::string end = numbers({{0x06054b50, 4},
                                   {0, 2},
                                   {0, 2},
                                   {count, 2},
                                   {count, 2},
                                   {static_cast<uint32_t>(directory.size()), 4},
                                   {static_cast<uint32_t>(files.size()), 4},
                                   {0, 2}});
  const std::string archive = files + directory + end;
  Require(formats::ParseZip(AsBytes(archive)).ok());
  return '\0' + archive;
}

// A pickle of nested values, in the form that the target takes.
std::string PickleOf(size_t n) {
  namespace pickled = formats::pickled;
  std::vector<std::pair<std::string, std::string>> items;
  for (size_t i = 0; i < n; ++i) {
    const std::string list[] = {pickled::Int(static_cast<int64_t>(i)), pickled::Float(0.5)};
    items.emplace_back(pickled::Text(NameOf(i)), pickled::List(list));
  }
  const std::string pickle = pickled::Whole(pickled::Dict(items));
  Require(formats::ParsePickle(AsBytes(pickle), [](std::string_view) { return false; }).ok());
  return '\1' + pickle;
}

// A log of single records, in the form that the target takes.
std::string GroupLogOf(size_t n) {
  constexpr size_t kHeaderBytes = 24;
  std::string log("\0", 1);
  for (size_t i = 0; i < n; ++i) {
    const std::string record =
        EncodeGroupRecord(3, i + 1, {{4, 1, 77}, OwnRecord{"host"}}).substr(kHeaderBytes);
    log += static_cast<char>(record.size());
    log += static_cast<char>(record.size() >> 8);
    log += record;
  }
  return log;
}

// Valid inputs whose length is in proportion to n.
struct Growing {
  const char* target;
  std::string (*make)(size_t n);
};
constexpr Growing kGrowing[] = {
    {"frame", RawFrame},
    {"frame", [](size_t n) { return CodedFrame(n, false); }},
    {"frame", [](size_t n) { return CodedFrame(n, true); }},
    {"frame", [](size_t n) { return ReplayedFrame(n, ReplayTarget::kMoment); }},
    {"frame", [](size_t n) { return ReplayedFrame(n, ReplayTarget::kSquare); }},
    {"frame", [](size_t n) { return ReplayedFrame(n, ReplayTarget::kWeight); }},
    {"torch_npz_dcp", ArchiveOf},
    {"torch_npz_dcp", PickleOf},
    {"group_log", GroupLogOf},
    {"object_names", [](size_t n) { return BlobName(3, std::string(n, 'a')); }},
    {"backup_marker",
     [](size_t n) {
       return "varve backup 1\nstore 0123\nmanifest MANIFEST-" + std::string(n, '0') + "5 123\n";
     }},
    {"chunk_list", Refs},
    {"counts_record", [](size_t n) { return EncodeCounts(std::vector<uint32_t>(n, 2)); }},
    {"save_block", [](size_t n) { return Edges(n, 1); }},
    {"save_block", [](size_t n) { return Edges(n, kMaxSources); }},
    {"step_record", Metrics},
    {"tensor_record", Lists},
    {"trainer_progress", Progress},
    {"item_record",
     [](size_t n) {
       return EncodeItemRecord({1, 2}, AsBytes(std::string(10 * n, 'x')));
     }},
    {"keys",
     [](size_t n) {
       return keys::Tensor({3, 1000}, std::string(n, 'x'), 2);
     }},
    {"request", Drops},
    {"answer", Warnings},
    {"catalogue", Shards},
    {"group_record", Snapshot},
    {"remote_state", Snapshots},
    {"snapshot_body", Tables},
    {"held_tensors", Held},
    {"rank_pieces", Pieces},
    {"manifest_log", LogOf},
    {"manifest_record", [](size_t n) { return Repeated("\x06\x01\x07", n); }},
    {"safetensors", SafetensorsOf},
    {"infinitrain_ckpt", CkptOf},
    {"infinitrain_layout", LayoutOf},
    {"json", IndexOf},
    {"s3_xml", [](size_t n) { return Repeated("<Contents><Key>a&amp;b</Key></Contents>", n); }},
    {"object_url", [](size_t n) { return "s3://bucket/" + Repeated("a%20b/", n); }},
    {"step_expression", [](size_t n) { return Repeated("run/", n) + "x@best:loss"; }},
    {"slice", [](size_t n) { return Repeated("0:1,", n); }},
    {"retention_policy", [](size_t n) { return Repeated("loss:3\n", n); }}};

const FuzzTarget& TargetOf(const std::vector<FuzzTarget>& all, std::string_view name) {
  return *std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
}

size_t BytesToRun(const FuzzTarget& target, const std::string& input) {
  target.run(std::as_bytes(std::span(input)));  // what it makes once
  const ScarceMemory memory(SIZE_MAX);
  target.run(std::as_bytes(std::span(input)));
  return memory.total();
}

TEST(GrowthTest, MemoryIsInProportionToTheInput) {
  constexpr size_t kLeast = 512, kMost = 4096;  // a block of counts has no more
  constexpr size_t kFixedBytes = 16 << 10, kBytesPerByte = 200;
  const std::vector<FuzzTarget> all = AllTargets();
  for (const Growing& growing : kGrowing) {
    SCOPED_TRACE(growing.target);
    const FuzzTarget& target = TargetOf(all, growing.target);
    const std::string small = growing.make(kLeast);
    const size_t least = BytesToRun(target, small);
    for (size_t n = 2 * kLeast; n <= kMost; n *= 2) {
      const std::string input = growing.make(n);
      const size_t times = n / kLeast, bytes = BytesToRun(target, input);
      EXPECT_LE(bytes, kFixedBytes + kBytesPerByte * input.size()) << input.size() << " bytes";
      EXPECT_LE(bytes, kFixedBytes + least * times * 3 / 2) << times << " times the input";
      if (n == kMost) {
        std::cout << growing.target << ": " << least << " bytes for " << small.size() << ", "
                  << bytes << " for " << input.size() << "\n";
      }
    }
  }
}

// The mean of 20 runs. The least of ten means counts, because other processes take the caches.
double SecondsToRun(const FuzzTarget& target, const std::string& input) {
  constexpr int kTimes = 10, kRuns = 20;
  double least = 1e9;
  for (int i = 0; i < kTimes; ++i) {
    const double start = ProcessorSeconds();
    for (int run = 0; run < kRuns; ++run) target.run(std::as_bytes(std::span(input)));
    least = std::min(least, (ProcessorSeconds() - start) / kRuns);
  }
  return least;
}

TEST(GrowthTest, TimeIsInProportionToTheInput) {
  if (std::getenv("VARVE_FULL_SIZE") == nullptr) GTEST_SKIP() << "measures time";
  constexpr size_t kLeast = 256, kTimes = 16;  // a block of counts has no more
  constexpr double kFixedSeconds = 20e-6;
  const std::vector<FuzzTarget> all = AllTargets();
  for (const Growing& growing : kGrowing) {
    SCOPED_TRACE(growing.target);
    const FuzzTarget& target = TargetOf(all, growing.target);
    const double least = SecondsToRun(target, growing.make(kLeast));
    const double most = SecondsToRun(target, growing.make(kLeast * kTimes));
    EXPECT_LE(most, kFixedSeconds + 2 * kTimes * least);
    std::cout << growing.target << ": " << 1e6 * least << " us, " << 1e6 * most << " us for "
              << kTimes << " times the input\n";
  }
}

// Neither one allocation nor all of them together take more than an input justifies.
class MostMemory {
 public:
  explicit MostMemory(const FuzzTarget& target)
      : target_(target), fixed_(target.name.starts_with("frame") ? kFrameBytes : kFixedBytes) {}

  void Run(const std::string& input) {
    const ScarceMemory memory(SIZE_MAX);
    target_.run(std::as_bytes(std::span(input)));
    largest_ = std::max(largest_, memory.largest());
    total_ = std::max(total_, memory.total());
    ASSERT_LE(memory.largest(), fixed_ + kBytesPerByte * input.size());
    ASSERT_LE(memory.total(), 4 * (fixed_ + kBytesPerByte * input.size()));
  }
  void Print() const {
    std::cout << target_.name << ": at most " << largest_ << " bytes at once, " << total_
              << " in all\n";
  }

 private:
  static constexpr size_t kFixedBytes = size_t{1} << 20, kBytesPerByte = 1000;
  // The header of a frame says how many bytes its chunk has, up to 64 MiB.
  static constexpr size_t kFrameBytes = size_t{64} << 20;

  const FuzzTarget& target_;
  const size_t fixed_;
  size_t largest_ = 0, total_ = 0;
};

// Seeds with 64 KiB behind them: of nothing, of ones, of themselves.
TEST(GrowthTest, WhatFollowsAnInputTakesNoMemory) {
  constexpr size_t kMoreBytes = 64 << 10;
  for (const FuzzTarget& target : AllTargets()) {
    if (target.is_slow) continue;
    SCOPED_TRACE(target.name);
    MostMemory most(target);
    for (const std::string& seed : target.seeds) {
      target.run(std::as_bytes(std::span(seed)));  // what it makes once
      most.Run(seed + std::string(kMoreBytes, '\0'));
      most.Run(seed + std::string(kMoreBytes, '\xff'));
      most.Run(Repeated(seed, 1 + kMoreBytes / (seed.size() + 1)));
    }
    most.Print();
  }
}

// Every word of every seed becomes a large number, of 4 and of 8 bytes.
TEST(GrowthTest, ALargeNumberTakesNoMemory) {
  constexpr size_t kMostWords = 300;
  constexpr std::pair<uint64_t, size_t> kNumbers[] = {
      // with their bytes
      {0x7fffffff, 4}, {0x80000000, 4},        {0xffffffff, 4}, {0x10000000, 4},
      {0x80000000, 8}, {uint64_t{1} << 62, 8}, {UINT64_MAX, 8}};
  for (const FuzzTarget& target : AllTargets()) {
    if (target.is_slow) continue;
    SCOPED_TRACE(target.name);
    MostMemory most(target);
    for (const std::string& seed : target.seeds) {
      target.run(std::as_bytes(std::span(seed)));
      for (size_t at = 0; at + 4 <= std::min(seed.size(), 4 * kMostWords); at += 2) {
        for (const auto& [number, bytes] : kNumbers) {
          if (at + bytes > seed.size()) continue;
          std::string input = seed;
          std::memcpy(input.data() + at, &number, bytes);  // the lower bytes
          most.Run(input);
          ASSERT_FALSE(HasFailure()) << "at byte " << at;
        }
      }
    }
    most.Print();
  }
}

}  // namespace
}  // namespace varve::internal::fuzz
