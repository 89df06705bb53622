// SPDX-License-Identifier: Apache-2.0
//
// Whole stores: those of tests/golden with damaged files, and two that are called
// (tests/store/model). Each answer is
// the whole one or an error.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "base/util.h"
#include "tests/fuzz/targets.h"
#include "tests/store/model/model.h"
#include "tests/store/model/player.h"
#include "varve/repair.h"
#include "varve/store.h"

namespace varve::internal::fuzz {
namespace {

namespace fs = std::filesystem;
using testing::Answers;

const StoreOptions kOneThread = {.num_threads = 1};
using Files = std::map<std::string, std::string>;  // by the path in the folder of the store

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

void RequireNone(const std::string& where, const std::string& wrong) {
  if (!wrong.empty()) Fail(where + ": " + wrong);
}

void RequireOk(const std::string& where, const Status& status) {
  if (!status.ok()) Fail(where + ": " + status.ToString());
}

Files ReadFolder(const fs::path& folder) {
  Files found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) found[fs::relative(entry.path(), folder)] = ReadFile(entry.path());
  }
  Require(!found.empty());
  return found;
}

// Makes the store anew. `NAME~repair` and `NAME~damaged` of an earlier one are removed, too.
fs::path Write(const Files& files) {
  const fs::path stores = ScratchFolder() / "damaged";
  fs::remove_all(stores);
  for (const auto& [name, bytes] : files) {
    fs::create_directories((stores / "store" / name).parent_path());
    WriteFile(stores / "store" / name, bytes);
  }
  return stores / "store";
}

// The input is a list of edits: how, which file, a place in it in two bytes, and another number.
class Edits {
 public:
  explicit Edits(std::span<const std::byte> input) : rest_(input) {}

  bool IsAtEnd() const { return rest_.size() < kBytesPerEdit; }
  void ApplyNext(Files* files) {
    const auto byte = [&](size_t i) { return std::to_integer<size_t>(rest_[i]); };
    const size_t how = byte(0), number = byte(1), offset = byte(2) | byte(3) << 8, other = byte(4);
    rest_ = rest_.subspan(kBytesPerEdit);
    if (files->empty()) return;
    const auto file = std::next(files->begin(), static_cast<ptrdiff_t>(number % files->size()));
    std::string& bytes = file->second;
    const size_t at = bytes.empty() ? 0 : offset % bytes.size();
    switch (how % 7) {
      case 0:  // as many bytes as `other` says, which follow
        bytes.replace(at, std::min(other, bytes.size() - at), Take(other));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        files->erase(file);
        break;
      case 3:
        std::swap(bytes, Other(files, other));
        break;
      case 4:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << other % 8));
        break;
      case 5:
        std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at),
                    std::min(16 * other, bytes.size() - at), '\0');
        break;
      default:
        bytes += std::string(Other(files, other)).substr(0, offset);
    }
  }

 private:
  static constexpr size_t kBytesPerEdit = 5;

  static std::string& Other(Files* files, size_t number) {
    return std::next(files->begin(), static_cast<ptrdiff_t>(number % files->size()))->second;
  }
  std::string_view Take(size_t bytes) {
    const auto taken = rest_.first(std::min(bytes, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return AsString(taken);
  }

  std::span<const std::byte> rest_;
};

// What a checkpoint holds, with its bytes.
void AskContent(const Store& store, const CheckpointId& id, Answers* answers) {
  const std::string name = "data of " + id.run + "@" + std::to_string(id.step) + "/";
  const auto reader = store.OpenCheckpoint(id.run, id.step);
  const auto list = reader.ok() ? (*reader)->List() : reader.status();
  const auto items = reader.ok() ? (*reader)->ListBytes() : reader.status();
  if (!list.ok() || !items.ok()) {
    (*answers)[name] = testing::ErrorText(list.ok() ? items.status() : list.status());
    return;
  }
  for (const TensorInfo& tensor : *list) {
    std::vector<std::byte> bytes(std::min<uint64_t>(tensor.logical_bytes, 1 << 20));
    const Status read = (*reader)->Read(tensor.name, bytes);
    (*answers)[name + tensor.name] =
        read.ok() ? std::string(DTypeName(tensor.dtype)) + " " + std::string(AsString(bytes))
                  : testing::ErrorText(read);
  }
  for (const std::string& item : *items) {
    const auto bytes = (*reader)->ReadBytes(item);
    (*answers)[name + "item " + item] =
        bytes.ok() ? std::string(AsString(*bytes)) : testing::ErrorText(bytes.status());
  }
  const auto progress = (*reader)->ReadTrainerProgress();
  const auto step = progress.ok() && progress->has_value() ? (*progress)->global_step : -1;
  (*answers)[name + "progress"] =
      progress.ok() ? std::to_string(step) : testing::ErrorText(progress.status());
}

// A store that the edits damage, and what it says undamaged.
struct Golden {
  Files files;
  StoreOptions options = kOneThread;
  Answers truth;
};

Answers AskAll(const Store& store) {
  Answers answers = testing::Ask(store);
  const auto runs = store.ListRuns();
  if (!runs.ok()) return answers;
  for (const RunInfo& run : *runs) {
    const auto infos = store.ListCheckpoints(run.name);
    if (!infos.ok()) answers["data of " + run.name + "@"] = testing::ErrorText(infos.status());
    if (!infos.ok()) continue;
    for (const CheckpointInfo& info : *infos) AskContent(store, info.id, &answers);
  }
  return answers;
}

Golden MakeGolden(const std::string& name, const std::string& key = {}) {
  Golden golden;
  golden.files = ReadFolder(fs::path(VARVE_GOLDEN) / name);
  golden.options.key = key;
  const auto store = Store::OpenForReading(Write(golden.files), golden.options);
  RequireOk("the undamaged " + name, store.status());
  golden.truth = AskAll(**store);
  return golden;
}

const Golden& GoldenOf(std::byte choice) {
  static const Golden all[] = {MakeGolden("store_rans"), MakeGolden("store_replays"),
                               MakeGolden("store_sealed", "the key of the golden store")};
  return all[std::to_integer<size_t>(choice) % std::size(all)];
}

// What is known of steps that are there must be true. Which are there need not be known any more.
Answers OnlyData(const Answers& answers) {
  Answers data;
  for (const auto& [question, answer] : answers) {
    if (question.starts_with("data of ") && answer[0] != testing::kError) data[question] = answer;
  }
  return data;
}

// A run that has lost its name gets another by a repair. The store has one run.
void RequireTrueData(const std::string& where, const Answers& found, const Golden& golden) {
  for (const auto& [question, answer] : OnlyData(found)) {
    const auto it = golden.truth.find("data of main" + question.substr(question.find('@')));
    if (it == golden.truth.end() || it->second != answer) {
      Fail(where + ": " + question + " is wrong");
    }
  }
}

// Without SYNCED nobody knows how much of the manifest is missing.
void RequireNoLies(const std::string& where, const Answers& found, const Files& files,
                   const Golden& golden) {
  RequireTrueData(where, found, golden);
  if (files.contains("SYNCED")) {
    RequireNone(where, testing::FirstWrongAnswer(found, golden.truth));
  }
}

bool IsSound(const Store& store) {
  const auto report = store.Check({.read_data = true});
  return report.ok() && report->ok();
}

// Returns whether a full check finds no damage.
bool ReadDamaged(const Files& files, const Golden& golden) {
  const auto store = Store::OpenForReading(Write(files), golden.options);
  if (!store.ok()) return false;
  RequireNoLies("a reader", AskAll(**store), files, golden);
  return IsSound(**store);
}

void WriteDamaged(const Files& files, const Golden& golden, bool is_sound) {
  const fs::path path = Write(files);
  const auto store = Store::Open(path, golden.options);
  if (is_sound) RequireOk("a writer of a store that checks clean", store.status());
  if (!store.ok()) return;
  RequireNoLies("a writer", AskAll(**store), files, golden);
  const auto save = [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto writer, (*store)->Begin(99));
    const std::string bytes(1000, 'x');
    const int64_t shape[] = {1000};
    VARVE_RETURN_IF_ERROR(
        writer->Put({.name = "w", .dtype = DType::kU8, .shape = shape, .data = bytes.data()}));
    return writer->Commit().status();
  };
  const Status saved = save();
  if (!is_sound) return;
  RequireOk("a save in a store that checks clean", saved);
  Require(IsSound(**store));
}

void RepairDamaged(const Files& files, const Golden& golden, bool is_sound) {
  const fs::path path = Write(files);
  const auto report = RepairStore(path, {.key = golden.options.key});
  if (is_sound) RequireOk("a repair of a store that checks clean", report.status());
  if (!report.ok()) return;
  const auto store = Store::Open(path, golden.options);
  RequireOk("opening a repaired store", store.status());
  Require(IsSound(**store));
  const Answers found = AskAll(**store);
  RequireTrueData("a repaired store", found, golden);
  for (const RepairReport::KeptStep& kept : report->kept) {
    const std::string name = kept.id.run + "@" + std::to_string(kept.id.step);
    if (!found.contains(name)) Fail("the repair kept " + name + ", which is not there");
  }
}

// The first byte chooses the store. The edits follow.
void ReadDamagedStore(std::span<const std::byte> input) {
  constexpr int kMostEdits = 20;
  if (input.empty()) return;
  const Golden& golden = GoldenOf(input[0]);
  Files files = golden.files;
  Edits edits(input.subspan(1));
  for (int i = 0; i < kMostEdits && !edits.IsAtEnd(); ++i) edits.ApplyNext(&files);
  const bool is_sound = ReadDamaged(files, golden);
  WriteDamaged(files, golden, is_sound);
  RepairDamaged(files, golden, is_sound);
}

void PlayCalls(std::span<const std::byte> input) {
  constexpr size_t kMostCalls = 40;
  std::vector<testing::Call> calls = testing::DecodeCalls(input);
  calls.resize(std::min(calls.size(), kMostCalls));
  const std::string wrong = testing::Play(ScratchFolder() / "calls", calls);
  if (!wrong.empty()) Fail(wrong + "\n" + testing::ToText(calls));
}

std::vector<std::string> CallSeeds() {
  std::vector<std::string> seeds;
  for (const uint64_t seed : {1, 2, 3}) {
    seeds.push_back(testing::EncodeCalls(testing::RandomCalls(seed, 8)));
  }
  return seeds;
}

// One edit of each kind, in turn in each store.
std::vector<std::string> DamageSeeds() {
  using namespace std::string_literals;
  std::vector<std::string> seeds = {
      "\0\x05\x10\0\x03"s + "xyz", "\x01\x07\x40\0\0"s,   "\x02\x09\0\0\0"s,    "\x03\x03\0\0\x04"s,
      "\x04\x24\x40\0\x03"s,       "\x05\x02\x20\0\x08"s, "\x06\x01\x30\0\x01"s};
  char store = 0;
  for (std::string& seed : seeds) seed.insert(seed.begin(), store++);
  return seeds;
}

}  // namespace

std::vector<FuzzTarget> WholeTargets() {
  return {{"store", ReadDamagedStore, DamageSeeds(), /*is_slow=*/true},
          {"calls", PlayCalls, CallSeeds(), /*is_slow=*/true}};
}

}  // namespace varve::internal::fuzz
