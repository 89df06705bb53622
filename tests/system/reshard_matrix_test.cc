// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint that the ranks of one parallel plan have saved is restored by the ranks of another,
// bit for bit, for every pair of the plans that the seeds name. What a rank holds is cut out of the
// global tensors element by element, so that neither side relies on the arithmetic of the store.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/store/store_fixture.h"
#include "tests/support/global_state.h"
#include "varve/group_checkpointer.h"

namespace varve::internal::testing {
namespace {

// Padding bytes in memory of a rank that saves. A restore fills padding with zeros unless the same
// geometry is stored.
constexpr std::byte kSavedPadding{0xA5};
constexpr std::byte kNewPadding{0};

// The memory of all ranks of a plan.
struct LocalTensor {
  HeldTensor held;
  std::vector<std::byte> bytes;
};
using Ranks = std::vector<std::vector<LocalTensor>>;

std::vector<RankTensors> LayoutsOf(const Model& model, const std::string& plan) {
  const Result<ParallelPlan> parsed = ParsePlan(plan);
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  const Result<std::vector<RankTensors>> ranks = TensorsOfRanks(model, *parsed);
  EXPECT_TRUE(ranks.ok()) << plan << ": " << ranks.status().ToString();
  return *ranks;
}

class ReshardTest : public StoreTest {
 protected:
  void Use(const Model& model, const StoreOptions& options = {}) {
    model_ = model;
    state_ = std::make_unique<GlobalState>(model);
    stored_.clear();
    Reset({.store = options});
  }

  // Returns what the ranks of a plan hold in training.
  Ranks Train(const std::string& plan) {
    Ranks ranks;
    for (const RankTensors& tensors : LayoutsOf(model_, plan)) {
      ranks.emplace_back();
      for (const HeldTensor& held : tensors) {
        ranks.back().push_back({held, state_->Cut(held, kSavedPadding)});
      }
    }
    return ranks;
  }

  // Puts every rank's shards into a save, replicas too, each in parts of up to `part_bytes`.
  std::unique_ptr<CheckpointWriter> Collect(uint64_t step, const Ranks& ranks, uint64_t part_bytes,
                                            const SaveOptions& options) {
    auto writer = store_->Begin(step, options);
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const LocalTensor& local : ranks[rank]) {
        VARVE_EXPECT_OK(Put(step, static_cast<uint32_t>(rank), local, part_bytes, writer->get()));
      }
    }
    return *std::move(writer);
  }

  void Save(uint64_t step, const Ranks& ranks, uint64_t part_bytes = UINT64_MAX) {
    VARVE_ASSERT_OK(Collect(step, ranks, part_bytes, {})->Commit().status());
  }

  // Commits during `work`, as a background save in a training does.
  void SaveBeside(uint64_t step, const Ranks& ranks, uint64_t part_bytes,
                  const std::function<void()>& work) {
    const auto writer = Collect(step, ranks, part_bytes, {.low_priority = true});
    auto commit = std::async(std::launch::async, [&] { return writer->Commit().status(); });
    work();
    VARVE_ASSERT_OK(commit.get());
  }

  Ranks Restore(uint64_t step, const std::string& plan) {
    Ranks ranks;
    const auto reader = store_->OpenCheckpoint("main", step);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    for (const RankTensors& tensors : LayoutsOf(model_, plan)) {
      auto& rank = ranks.emplace_back();
      for (const HeldTensor& held : tensors) {
        const uint64_t bytes = NumBytes(held.dtype, held.layout.LocalShape()).value();
        rank.push_back({held, std::vector<std::byte>(bytes, std::byte{0x5A})});
      }
      std::vector<ReadRequest> requests;
      for (LocalTensor& local : rank) {
        requests.push_back(ReadRequest::Region(local.held.name, local.held.layout, local.bytes));
      }
      VARVE_EXPECT_OK((*reader)->ReadMany(requests));
    }
    return ranks;
  }

  // The ranks of a plan as threads, each with a checkpointer of one root and the state of its
  // memory.
  static void RunJob(const std::filesystem::path& root, const CheckpointerOptions& options,
                     Ranks* ranks,
                     const std::function<Status(AsyncCheckpointer*, TrainingState*)>& work) {
    const auto groups = ThreadRanks(static_cast<int>(ranks->size()), std::chrono::minutes(2));
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < ranks->size(); ++rank) {
      threads.emplace_back([&, rank] {
        TrainingState state = StateOf(&(*ranks)[rank]);
        const auto checkpointer = OpenGroupCheckpointer(root, groups[rank].get(), options);
        VARVE_ASSERT_OK(checkpointer.status());
        VARVE_EXPECT_OK(work(checkpointer->get(), &state));
        VARVE_EXPECT_OK((*checkpointer)->Close());
      });
    }
  }
  void NoteStored(uint64_t step, const Ranks& ranks) {
    for (const auto& rank : ranks) {
      for (const LocalTensor& local : rank) {
        stored_.emplace(step, local.held.name, ToString(Canonical(local.held.layout)));
      }
    }
  }
  // Memory of the ranks of a plan before a restore.
  Ranks Allocate(const std::string& plan) {
    Ranks ranks = Train(plan);
    for (auto& rank : ranks) {
      for (LocalTensor& local : rank)
        std::fill(local.bytes.begin(), local.bytes.end(), std::byte{0x5A});
    }
    return ranks;
  }

  // All bytes are those of the training, and padding is as it must be after a restore of `step`.
  bool IsRestored(uint64_t step, const Ranks& restored, const Ranks& trained) {
    bool equal = restored.size() == trained.size();
    for (size_t rank = 0; equal && rank < trained.size(); ++rank) {
      equal = restored[rank].size() == trained[rank].size();
      for (size_t i = 0; equal && i < trained[rank].size(); ++i) {
        equal = IsRestored(step, restored[rank][i], trained[rank][i]);
        EXPECT_TRUE(equal) << "rank " << rank << ": " << trained[rank][i].held.name << ", "
                           << ToString(trained[rank][i].held.layout);
      }
    }
    return equal;
  }

  // Every plan into every other, and itself. Prints the matrix.
  void ExpectAllPairs(const std::vector<std::string>& plans) {
    for (size_t source = 0; source < plans.size(); ++source) {
      ASSERT_NO_FATAL_FAILURE(Save(source, Train(plans[source])));
    }
    Reopen();
    std::vector<std::string> rows(plans.size());  // by source
    size_t num_equal = 0;
    for (const std::string& target : plans) {
      const Ranks trained = Train(target);
      for (size_t source = 0; source < plans.size(); ++source) {
        SCOPED_TRACE(plans[source] + " to " + target);
        const bool equal = IsRestored(source, Restore(source, target), trained);
        rows[source] += equal ? "  =" : "  X";
        num_equal += equal;
      }
    }
    PrintMatrix(plans, rows);
    std::printf("%zu tensors, %llu MB: %zu pairs bit-equal\n", state_->size(),
                static_cast<unsigned long long>(state_->num_bytes() >> 20), num_equal);
    EXPECT_EQ(num_equal, plans.size() * plans.size());
  }

  // These pairs by name.
  void ExpectPairs(const std::vector<std::pair<std::string, std::vector<std::string>>>& pairs) {
    size_t num_equal = 0, num_pairs = 0;
    for (uint64_t step = 0; step < pairs.size(); ++step) {
      const auto& [source, targets] = pairs[step];
      ASSERT_NO_FATAL_FAILURE(Save(step, Train(source)));
      for (const std::string& target : targets) {
        SCOPED_TRACE(source + " to " + target);
        const bool equal = IsRestored(step, Restore(step, target), Train(target));
        std::printf("%-48s to  %-48s %s\n", source.c_str(), target.c_str(), equal ? "=" : "X");
        num_equal += equal;
        ++num_pairs;
      }
    }
    std::printf("%zu pairs bit-equal\n", num_equal);
    EXPECT_EQ(num_equal, num_pairs);
  }

 private:
  Status Put(uint64_t step, uint32_t rank, const LocalTensor& local, uint64_t part_bytes,
             CheckpointWriter* writer) {
    constexpr uint32_t kMostShards = 4096;  // of one rank
    uint32_t number = rank * kMostShards;
    const std::byte* data = local.bytes.data();
    for (const ShardLayout& shard : local.held.shards) {
      for (const ShardLayout& part : PartsOf(shard, part_bytes / Width(local.held))) {
        const std::vector<int64_t> shape = part.LocalShape();
        VARVE_RETURN_IF_ERROR(writer->Put({.name = local.held.name,
                                           .dtype = local.held.dtype,
                                           .shape = shape,
                                           .data = data,
                                           .role = local.held.role,
                                           .shard = number++,
                                           .layout = &part}));
        data += static_cast<uint64_t>(part.NumLocal()) * Width(local.held);
        stored_.emplace(step, local.held.name, ToString(Canonical(part)));
      }
    }
    return Status::Ok();
  }

  static TrainingState StateOf(std::vector<LocalTensor>* tensors) {
    TrainingState state;
    for (LocalTensor& local : *tensors) {
      state.tensors.push_back({{.name = local.held.name,
                                .dtype = local.held.dtype,
                                .shape = local.held.layout.LocalShape(),
                                .role = local.held.role,
                                .layout = local.held.layout},
                               local.bytes.data()});
    }
    return state;
  }

  static uint64_t Width(const HeldTensor& held) {
    return static_cast<uint64_t>(DTypeBits(held.dtype)) / 8;
  }

  // The shard, or when it is larger, flat parts of at most `most` elements.
  static std::vector<ShardLayout> PartsOf(const ShardLayout& shard, uint64_t most) {
    const int64_t elements = shard.NumLocal(), step = static_cast<int64_t>(most);
    if (elements <= step) return {shard};
    const int64_t base = shard.flat.has_value() ? shard.flat->begin : 0;
    std::vector<ShardLayout> parts;
    for (int64_t begin = 0; begin < elements; begin += step) {
      parts.push_back(shard);
      parts.back().flat = Range{base + begin, base + std::min(begin + step, elements)};
    }
    return parts;
  }

  bool IsRestored(uint64_t step, const LocalTensor& restored, const LocalTensor& trained) {
    const HeldTensor& held = trained.held;
    const bool is_padded = held.layout.NumHeld() < held.layout.NumLocal();
    const bool is_stored = stored_.contains({step, held.name, ToString(Canonical(held.layout))});
    if (!is_padded || is_stored) return restored.bytes == trained.bytes;
    return restored.bytes == state_->Cut(held, kNewPadding);
  }

  static void PrintMatrix(const std::vector<std::string>& plans,
                          const std::vector<std::string>& rows) {
    std::printf("%-42s", "saved by / restored by");
    for (size_t i = 0; i < plans.size(); ++i) std::printf("%3zu", i + 1);
    std::printf("\n");
    for (size_t i = 0; i < plans.size(); ++i) {
      std::printf("%3zu  %-37s%s\n", i + 1, plans[i].c_str(), rows[i].c_str());
    }
  }

  Model model_;
  std::unique_ptr<GlobalState> state_;
  std::set<std::tuple<uint64_t, std::string, std::string>> stored_;  // step, tensor, layout
};

// The ten source layouts of PaddleNLP's converter.
TEST_F(ReshardTest, TenLayoutsIntoEachOther) {
  Use(OddModel());
  ExpectAllPairs({"dp2", "mp4", "pp3", "sharding3 stage1 in-order", "sharding4 stage1 v2",
                  "sharding3 stage3", "mp2 pp2 vpp2", "mp2 sharding2 stage1",
                  "mp2 pp2 sharding2 stage1", "mp2 pp2 sharding2 stage1 v2"});
}

// The plans have InfiniTrain's buckets, ColossalAI's padded tensors and FSDP's uneven rows, and
// degrees that divide nothing.
TEST_F(ReshardTest, OtherSystemsIntoEachOther) {
  Use(OddModel());
  ExpectAllPairs({"mp4 sharding2 buckets", "mp2 sharding3 per-tensor", "sharding5 fsdp",
                  "pp7 sharding2 stage1 v2", "mp2 pp2 vpp3 sharding3 buckets"});
}

// Four keys lie on 1, 2, 4 and 8 ranks. With 8 ranks each key is on two of them.
TEST_F(ReshardTest, FusedHeadsIntoEachOther) {
  Use(HeadsModel());
  ExpectAllPairs(
      {"tp1", "tp2", "tp4", "tp8", "tp8 sharding2 stage1 v2", "tp8 sharding3 per-tensor"});
}

TEST_F(ReshardTest, VocabulariesOnManyRanks) {
  Use(VocabularyModel());
  ExpectAllPairs({"tp1", "tp2", "tp64", "tp64 sharding2 per-tensor", "tp8 sharding3 stage1 v2"});
}

// The rows of section 2.10 of the seed: a layout into itself, and into others.
TEST_F(ReshardTest, ThePairsOfTheSeed) {
  Use(OddModel());
  ExpectPairs({
      {"pp4 mp2", {"pp4 mp2"}},
      {"pp2 mp2 sharding2 stage1 v1 save_sharded_model",
       {"pp2 mp2 sharding2 stage1 v1 save_sharded_model"}},
      {"pp2 mp2 sharding2 stage1 v1", {"pp2 mp2 sharding2 stage1 v1"}},
      {"pp2 mp2 sharding2 stage1 v2 save_sharded_model",
       {"pp2 mp2 sharding2 stage1 v2 save_sharded_model"}},
      {"mp4 sharding2 stage2 v1", {"mp4 sharding2 stage2 v1"}},
      {"sharding8 stage3", {"sharding8 stage3"}},
      {"sharding2 stage1 v2 mp2 pp2",
       {"sharding4 stage1 pp2", "sharding2 stage1 pp2", "sharding2 stage2 pp2",
        "sharding2 stage1 mp2 pp2", "sharding2 stage1 mp4", "sharding2 stage1 mp2"}},
      {"mp2 pp4", {"mp4 pp2", "mp2 pp4", "mp2 pp2", "pp2"}},
  });
}

// ColossalAI's proof on four ranks with ZeRO-1: tp1 pp2 is loaded by tp2 pp1, saved, and loaded by
// tp1 pp2 again. "Sharded" saves in parts of 1 MB. "Asynchronous" means that the trainer works on
// during the commit.
TEST_F(ReshardTest, ColossalAIsGrid) {
  const std::string first = "tp1 pp2 sharding2 per-tensor", second = "tp2 pp1 sharding2 per-tensor";
  constexpr uint64_t kPart = 1'000'000, kLowMemory = uint64_t{4} << 20;
  const auto text = [](bool yes) { return yes ? "yes" : "no"; };
  for (int i = 0; i < 8; ++i) {
    const bool sharded = i & 4, asynchronous = i & 2, low_memory = i & 1;
    StoreOptions options;
    if (low_memory) options.pipeline_budget_bytes = kLowMemory;
    Use(OddModel(), options);
    const uint64_t part_bytes = sharded ? kPart : UINT64_MAX;
    const auto save = [&](uint64_t step, const Ranks& ranks) {
      if (!asynchronous) return Save(step, ranks, part_bytes);
      SaveBeside(step, ranks, part_bytes, [&] { Train(second); });
    };
    const Ranks trained = Train(first);
    ASSERT_NO_FATAL_FAILURE(save(1, trained));
    const Ranks between = Restore(1, second);
    const bool there = IsRestored(1, between, Train(second));
    ASSERT_NO_FATAL_FAILURE(save(2, between));
    const bool back = IsRestored(2, Restore(2, first), trained);
    std::printf("tp1 pp2, tp2 pp1, tp1 pp2: sharded %-3s asynchronous %-3s low memory %-3s %s\n",
                text(sharded), text(asynchronous), text(low_memory),
                there && back ? "bit-equal" : "DIFFERENT");
    EXPECT_TRUE(there && back);
  }
}

// The ranks do the same themselves, and each saves its own part. "Asynchronous" is a training that
// goes on during staging, encoding and commit. "Low memory" is a small staging budget.
TEST_F(ReshardTest, ColossalAIsGridByRanks) {
  const std::string first = "tp1 pp2 sharding2 per-tensor", second = "tp2 pp1 sharding2 per-tensor";
  const TempFolder folder;
  for (int i = 0; i < 4; ++i) {
    const bool asynchronous = i & 2, low_memory = i & 1;
    const auto root = folder.path() / ("root " + std::to_string(i));
    Use(OddModel());
    CheckpointerOptions options;
    if (low_memory) options.staging_budget_bytes = uint64_t{1} << 20;
    const auto save = [&](uint64_t step, Ranks* ranks) {
      NoteStored(step, *ranks);
      RunJob(root, options, ranks, [&](AsyncCheckpointer* checkpointer, TrainingState* state) {
        if (!asynchronous) {
          VARVE_RETURN_IF_ERROR(checkpointer->Save(step, *state).status());
          return checkpointer->Wait();
        }
        VARVE_RETURN_IF_ERROR(checkpointer->BeginSave(step, *state).status());
        Train(second);
        return checkpointer->AwaitStaged();  // Close waits for the rest
      });
    };
    const auto restore = [&](Ranks ranks) {
      RunJob(root, options, &ranks, [](AsyncCheckpointer* checkpointer, TrainingState* state) {
        return checkpointer->Restore("latest", {}, state).status();
      });
      return ranks;
    };
    Ranks trained = Train(first);
    save(1, &trained);
    Ranks between = restore(Allocate(second));
    const bool there = IsRestored(1, between, Train(second));
    save(2, &between);
    const bool back = IsRestored(2, restore(Allocate(first)), trained);
    std::printf("by ranks: tp1 pp2, tp2 pp1, tp1 pp2: asynchronous %-3s low memory %-3s %s\n",
                asynchronous ? "yes" : "no", low_memory ? "yes" : "no",
                there && back ? "bit-equal" : "DIFFERENT");
    EXPECT_TRUE(there && back);
    const auto check = Store::OpenForReading(root).value()->Check({.read_data = true});
    VARVE_ASSERT_OK(check.status());
    EXPECT_TRUE(check->errors.empty());
  }
}

}  // namespace
}  // namespace varve::internal::testing
