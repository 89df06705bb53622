// SPDX-License-Identifier: Apache-2.0
//
// The power fails at every operation on the disk. Everything that is not synced is lost, or parts
// of it are, or the last block is torn. What is then on the disk is opened and judged: every step
// whose save had returned is there, bit for bit, and nothing of a save that had not. The store
// checks clean and can be written.
//
// A workload runs once and is recorded (tests/support/disk_record.h). Each cut is made of the
// record (power_cut.h). Mistakes in the order of writing are planted in the record: it then is that
// of a program that leaves out a sync, or does it too late. The same driver must find each of them.
//
// With VARVE_FULL_SIZE=1 the power fails after each operation, in each way. Otherwise it does after
// each acknowledgement and after some operations between.
#include "tests/support/power_cut.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>
#include <utility>

#include "codec/predict/rounded_copy.h"
#include "tests/store/internals.h"
#include "tests/support/disk_record.h"
#include "varve/backup.h"
#include "varve/group.h"
#include "varve/repair.h"
#include "varve/request.h"

// GCC 12 sees the strings of a variant's other members being destroyed (its bug 105562).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Kind = DiskOp::Kind;
using Ops = std::vector<DiskOp>;
using Tensors = std::shared_ptr<const std::vector<TestTensor>>;

bool FullSize() { return std::getenv("VARVE_FULL_SIZE") != nullptr; }

// What a store holds, or that there is none.
struct State {
  bool exists = false;
  std::map<std::pair<std::string, uint64_t>, Tensors> steps;
  std::map<std::pair<std::string, std::string>, uint64_t> tags;
};

bool Equal(const TestTensor& a, const TestTensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
}

bool Equal(const State& a, const State& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.first == y.first &&
           std::ranges::equal(*x.second, *y.second, [](auto& s, auto& t) { return Equal(s, t); });
  };
  return a.exists == b.exists && a.tags == b.tags && std::ranges::equal(a.steps, b.steps, same);
}

std::string ToString(const State& state) {
  if (!state.exists) return "no store";
  std::string text = "steps";
  for (const auto& [id, tensors] : state.steps) {
    text += " " + id.first + "@" + std::to_string(id.second);
  }
  for (const auto& [tag, step] : state.tags) {
    text += " " + tag.first + "/" + tag.second + "=" + std::to_string(step);
  }
  return text;
}

Result<State> Read(const Store& store) {
  State state;
  state.exists = true;
  VARVE_ASSIGN_OR_RETURN(const auto runs, store.ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_ASSIGN_OR_RETURN(const auto steps, store.ListCheckpoints(run.name));
    for (const CheckpointInfo& info : steps) {
      for (const std::string& tag : info.tags) state.tags[{run.name, tag}] = info.id.step;
      VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(run.name, info.id.step));
      VARVE_ASSIGN_OR_RETURN(const auto list, reader->List());
      std::vector<TestTensor> tensors;
      for (const TensorInfo& found : list) {
        TestTensor tensor{found.name, found.dtype, found.shape, {}, {}};
        tensor.bytes.resize(found.logical_bytes);
        VARVE_RETURN_IF_ERROR(reader->Read(found.name, tensor.bytes));
        tensors.push_back(std::move(tensor));
      }
      std::ranges::sort(tensors, {}, &TestTensor::name);
      state.steps[{run.name, info.id.step}] =
          std::make_shared<std::vector<TestTensor>>(std::move(tensors));
    }
  }
  return state;
}

// A recorded workload. Before operation k of the workload there is a mark 2k, and a mark 2k + 1
// when it has returned. `states` holds what is there after it.
struct Recorded {
  Ops ops;
  size_t first = 0;  // what comes before was there at the start
  std::vector<State> states, copies;
  std::vector<std::string> names;
};

// How far the workload had come: so many of its operations had returned, and perhaps one more had
// begun.
struct Moment {
  size_t num_done = 0;
  bool has_begun = false;
  uint64_t seed = 0;
};

// Returns what is wrong with what a cut has left. Empty = nothing.
using Judge = std::function<std::string(const fs::path& folder, const Moment& moment)>;

struct Verdict {
  uint64_t cuts = 0;
  std::vector<std::string> faults;
};

class PowerCutTest : public ::testing::Test {
 protected:
  static std::vector<TestTensor> Content(uint64_t step) {
    TestTensor weights = NormalTensor("w", {6000}, 1);
    for (uint64_t i = 0; i < step % 16; ++i) weights = Drifted(weights, i);
    TestTensor copy{"w.bf16", DType::kBF16, weights.shape, {}, "w"};
    copy.bytes.resize(weights.bytes.size() / 2);
    MakeRoundedCopy(DType::kBF16, weights.bytes, copy.bytes);
    return {weights, copy, RandomTensor("noise", DType::kU8, {500}, step),
            RandomTensor("same", DType::kU8, {20000}, 77)};
  }

  static Status Save(Store* store, const CheckpointId& id, uint64_t content,
                     OnExisting on_existing = OnExisting::kError) {
    VARVE_ASSIGN_OR_RETURN(auto writer,
                           store->Begin(id.step, {.run = id.run, .on_existing = on_existing}));
    const std::vector<TestTensor> tensors = Content(content);
    for (const TestTensor& tensor : tensors) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
    return writer->Commit().status();
  }

  // Lets the power fail, and counts. `stride` leaves out operations between acknowledgements. With
  // `at_syncs` all that is not synced is lost after every sync, too.
  Verdict Drive(const Recorded& recorded, const Ops& ops, const Judge& judge, uint64_t stride,
                bool at_syncs, size_t max_faults) {
    Verdict verdict;
    Disk disk;
    Moment moment;
    bool has_synced = true;  // since the last cut in which all that is not synced was lost
    for (size_t i = 0; i < ops.size(); ++i) {
      disk.Apply(ops[i]);
      const bool is_mark = ops[i].kind == Kind::kMark;
      has_synced |= is_mark || ops[i].kind == Kind::kSync;
      if (is_mark) moment.has_begun = ops[i].at % 2 == 0;
      if (is_mark) moment.num_done = (ops[i].at + 1) / 2;
      if (i + 1 < recorded.first) continue;
      const bool is_acknowledged = is_mark && !moment.has_begun;
      const uint64_t turn = (i - recorded.first) / stride;
      const bool is_sync = at_syncs && ops[i].kind == Kind::kSync;
      const bool is_stride = !is_mark && (i - recorded.first) % stride == 0;
      if (!is_acknowledged && !is_sync && !is_stride) continue;
      for (int k = 0; k < kNumPowerCuts; ++k) {
        const auto cut = static_cast<PowerCut>(k);
        const bool is_turn = is_acknowledged
                                 ? cut == PowerCut::kAllLost || k == 1 + static_cast<int>(i % 3)
                             : is_sync ? cut == PowerCut::kAllLost
                                       : static_cast<int>(turn % kNumPowerCuts) == k;
        if (!FullSize() && !is_turn) continue;
        if (cut == PowerCut::kAllLost && !std::exchange(has_synced, false)) continue;
        moment.seed = i * kNumPowerCuts + static_cast<uint64_t>(k);
        const fs::path image = folder_.path() / "image";
        disk.Make(cut, moment.seed, image);
        ++verdict.cuts;
        const std::string fault = judge(image, moment);
        fs::remove_all(image);
        if (fault.empty()) continue;
        verdict.faults.push_back(
            std::string(testing::ToString(cut)) + " after operation " + std::to_string(i) + " (" +
            testing::ToString(ops[i]) + "), " + std::to_string(moment.num_done) + " done" +
            (moment.has_begun ? ", in " + recorded.names[moment.num_done] : "") + ": " + fault);
        if (verdict.faults.size() >= max_faults) return verdict;
      }
    }
    return verdict;
  }

  // The record is complete: what it says is there now is what is there.
  void ExpectComplete(const Recorded& recorded, const fs::path& folder) {
    Disk disk;
    for (const DiskOp& op : recorded.ops) disk.Apply(op);
    const fs::path image = folder_.path() / "image";
    disk.Make(PowerCut::kNothing, 0, image);
    const auto contents = [](const fs::path& root) {
      std::map<std::string, std::string> all;
      for (const auto& entry : fs::recursive_directory_iterator(root)) {
        std::ostringstream text;
        if (entry.is_regular_file()) text << std::ifstream(entry.path()).rdbuf();
        all[fs::relative(entry.path(), root)] = text.str();
      }
      return all;
    };
    const auto there = contents(folder), said = contents(image);
    for (const auto& [name, bytes] : there) {
      ASSERT_TRUE(said.contains(name)) << name;
      EXPECT_TRUE(said.at(name) == bytes) << name;
    }
    EXPECT_EQ(said.size(), there.size());
    fs::remove_all(image);
  }

  void ExpectNoFaults(const Recorded& recorded, const Judge& judge, uint64_t stride) {
    const Verdict verdict =
        Drive(recorded, recorded.ops, judge, FullSize() ? 1 : stride, /*at_syncs=*/false, 5);
    for (const std::string& fault : verdict.faults) ADD_FAILURE() << fault;
    std::cout << verdict.cuts << " power cuts at " << recorded.ops.size() - recorded.first
              << " operations, " << verdict.faults.size() << " violations\n";
    EXPECT_GT(verdict.cuts, recorded.names.size());
  }

  // A mistake is found when a cut leaves what the judge rejects.
  void ExpectFound(const Recorded& recorded, const Judge& judge, const std::string& mistake,
                   const std::function<Ops(Ops)>& plant) {
    const auto begin = recorded.ops.begin() + static_cast<ptrdiff_t>(recorded.first);
    Ops ops(recorded.ops.begin(), begin);
    const Ops planted = plant(Ops(begin, recorded.ops.end()));
    ops.insert(ops.end(), planted.begin(), planted.end());
    const auto syncs = [](const Ops& all) {
      std::vector<size_t> at;
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].kind == Kind::kSync) at.push_back(i);
      }
      return at;
    };
    ASSERT_TRUE(syncs(ops) != syncs(recorded.ops)) << mistake << " changes nothing";
    const Verdict verdict = Drive(recorded, ops, judge, FullSize() ? 1 : ops.size(), true, 1);
    EXPECT_FALSE(verdict.faults.empty()) << mistake << " is not found in " << verdict.cuts;
    if (verdict.faults.empty()) return;
    std::cout << "planted: " << mistake << ": found by cut " << verdict.cuts << ": "
              << verdict.faults[0].substr(0, 240) << "\n";
  }

  TempFolder folder_;
};

using Chosen = std::function<bool(const DiskOp& op)>;

Chosen Path(const std::string& part) {
  return [part](const DiskOp& op) { return op.path.find(part) != std::string::npos; };
}
Chosen Folder(const std::string& path) {
  return [path](const DiskOp& op) { return op.path == path; };
}

// The program does not sync these.
std::function<Ops(Ops)> WithoutSyncs(Chosen chosen) {
  return [chosen](Ops ops) {
    std::erase_if(ops, [&](const DiskOp& op) { return op.kind == Kind::kSync && chosen(op); });
    return ops;
  };
}

// -- A store

class StorePowerCutTest : public PowerCutTest {
 protected:
  // Runs the workload in a folder with the store in `store` and its backup in `copy`.
  void Record() {
    const fs::path root = folder_.path() / "disk", path = root / "store", copy = root / "copy";
    fs::create_directory(root);
    std::unique_ptr<Store> store;
    State now, backup;
    DiskRecord record(root);
    const auto run = [&](const std::string& name, const std::function<Status()>& operation,
                         const std::function<void()>& change) {
      const uint64_t number = recorded_.names.size();
      recorded_.names.push_back(name);
      record.Mark(2 * number);
      const Status status = operation();
      ASSERT_TRUE(status.ok()) << name << ": " << status.ToString();
      record.Mark(2 * number + 1);
      change();
      recorded_.states.push_back(now);
      recorded_.copies.push_back(backup);
    };
    const auto put = [&](const CheckpointId& id, uint64_t content) {
      auto tensors = Content(content);
      std::ranges::sort(tensors, {}, &TestTensor::name);
      now.steps[{id.run, id.step}] = std::make_shared<std::vector<TestTensor>>(tensors);
    };
    const auto save = [&](const CheckpointId& id, uint64_t content,
                          OnExisting on_existing = OnExisting::kError) {
      run(
          "save " + std::to_string(id.step),
          [&] { return PowerCutTest::Save(store.get(), id, content, on_existing); },
          [&] { put(id, content); });
    };
    const auto drop = [&](const std::vector<CheckpointId>& ids, bool reclaim) {
      run(
          "drop", [&] { return store->Drop(ids, {.reclaim = reclaim}).status(); },
          [&] {
            for (const CheckpointId& id : ids) now.steps.erase({id.run, id.step});
          });
    };
    const auto back_up = [&] {
      run(
          "backup", [&] { return BackUp(path, copy).status(); }, [&] { backup = now; });
    };
    run(
        "create",
        [&]() -> Status {
          VARVE_ASSIGN_OR_RETURN(store, Store::Create(path, {.digest_seed = 1}));
          return Status::Ok();
        },
        [&] { now.exists = true; });
    save({"main", 1}, 1);
    save({"main", 2}, 2);
    run(
        "tag",
        [&] {
          return store->SetTag({"main", 1}, "first");
        },
        [&] {
          now.tags[{"main", "first"}] = 1;
        });
    save({"main", 3}, 3);
    save({"main", 3}, 4, OnExisting::kReplace);
    run(
        "fork", [&] { return store->Fork("main", "other", 2).status(); },
        [&] {
          now.steps[{"other", 2}] = now.steps[{"main", 2}];
        });
    save({"other", 5}, 5);
    run(
        "request a tag",
        [&] {
          return Submit(path, SetTagRequest{{"main", 3}, "good"}).status();
        },
        [&] {
          now.tags[{"main", "good"}] = 3;
        });
    run(
        "tag again",
        [&] {
          return store->SetTag({"main", 1}, "good");
        },
        [&] {
          now.tags[{"main", "good"}] = 1;
        });
    run(
        "request a drop",
        [&] {
          return Submit(path, DropRequest{{{"main", 2}}}).status();
        },
        [&] {
          now.steps.erase({"main", 2});
        });
    save({"main", 2}, 6);
    back_up();
    save({"main", 4}, 7);
    run(
        "rewind", [&] { return store->Rewind("main", 3).status(); },
        [&] {
          now.steps[{"main~1", 4}] = now.steps[{"main", 4}];  // where a rewind puts it
          now.steps.erase({"main", 4});
        });
    drop({{"main", 2}, {"other", 5}}, false);
    run(
        "reclaim", [&] { return store->Reclaim({.all = true}).status(); }, [] {});
    for (uint64_t step = 10; step < 16; ++step) save({"main", step}, step);
    back_up();
    run(
        "open again",
        [&]() -> Status {
          store.reset();
          VARVE_ASSIGN_OR_RETURN(store, Store::Open(path));
          return Status::Ok();
        },
        [] {});
    save({"main", 20}, 20);
    drop({{"main", 10}, {"main", 11}, {"main", 13}}, true);
    save({"main", 21}, 21);
    store.reset();
    recorded_.first = record.first();
    recorded_.ops = record.Finish();
    ExpectComplete(recorded_, root);
  }

  // The states that may be there.
  static std::vector<State> Allowed(const std::vector<State>& states, const Moment& moment) {
    std::vector<State> allowed;
    allowed.push_back(moment.num_done > 0 ? states[moment.num_done - 1] : State());
    if (moment.has_begun) allowed.push_back(states[moment.num_done]);
    return allowed;
  }

  static std::string CheckState(const Store& store, const std::vector<State>& allowed) {
    const auto state = Read(store);
    if (!state.ok()) return state.status().ToString();
    for (const State& each : allowed) {
      if (Equal(*state, each)) return "";
    }
    return "there are " + ToString(*state) + ", expected " + ToString(allowed.back()) +
           " (or their bytes differ)";
  }

  static std::string CheckClean(const Store& store) {
    const auto check = store.Check({.read_data = true});
    if (!check.ok()) return "check: " + check.status().ToString();
    return check->errors.empty() ? "" : "check: " + check->errors[0];
  }

  static std::string CheckWritable(Store* store, uint64_t seed) {
    const Status saved = PowerCutTest::Save(store, {"main", 1000}, 9);
    if (!saved.ok()) return "a save after it: " + saved.ToString();
    if (seed % 4 == 0) {
      const auto reclaimed = store->Reclaim({.all = true});
      if (!reclaimed.ok()) return "a reclaim after it: " + reclaimed.status().ToString();
      if (reclaimed->pending_bytes != 0) return "a reclaim after it leaves bytes";
    }
    return CheckClean(*store);
  }

  static std::string JudgeStore(const fs::path& path, const std::vector<State>& allowed,
                                uint64_t seed) {
    const bool may_lack = std::ranges::any_of(allowed, [](const State& s) { return !s.exists; });
    {
      const auto reader = Store::OpenForReading(path);
      if (!reader.ok() && !may_lack) return "reading: " + reader.status().ToString();
      if (reader.ok()) {
        const std::string fault = CheckState(**reader, allowed);
        if (!fault.empty()) return "reading: " + fault;
      }
    }
    auto store = may_lack ? Store::OpenOrCreate(path) : Store::Open(path);
    if (!store.ok()) return "opening: " + store.status().ToString();
    std::string fault = may_lack ? "" : CheckState(**store, allowed);
    if (fault.empty()) fault = CheckClean(**store);
    if (fault.empty()) fault = CheckWritable(store->get(), seed);
    store->reset();
    if (fault.empty() && !fs::is_empty(path / "incoming")) fault = "incoming is not empty";
    return fault;
  }

  std::string JudgeBoth(const fs::path& folder, const Moment& moment) const {
    std::string fault =
        JudgeStore(folder / "store", Allowed(recorded_.states, moment), moment.seed);
    if (!fault.empty()) return fault;
    const std::vector<State> copies = Allowed(recorded_.copies, moment);
    if (!copies.back().exists) return "";
    const auto copy = Store::OpenForReading(folder / "copy");
    if (copy.ok()) {
      fault = CheckState(**copy, copies);
      if (fault.empty()) fault = CheckClean(**copy);
      if (!fault.empty()) return "backup: " + fault;
    } else if (copies.front().exists) {
      return "backup: " + copy.status().ToString();
    }
    const bool is_backup = moment.has_begun && !Equal(copies.front(), copies.back());
    if (!is_backup && moment.seed % 8 != 0) return "";
    const auto again = BackUp(folder / "store", folder / "copy");
    return again.ok() ? "" : "a backup after it: " + again.status().ToString();
  }

  Judge judge() {
    return
        [this](const fs::path& folder, const Moment& moment) { return JudgeBoth(folder, moment); };
  }

  Recorded recorded_;
};

TEST_F(StorePowerCutTest, NothingIsLost) {
  ASSERT_NO_FATAL_FAILURE(Record());
  ExpectNoFaults(recorded_, judge(), 29);
}

TEST_F(StorePowerCutTest, SyncsThatAreLeftOutAreFound) {
  ASSERT_NO_FATAL_FAILURE(Record());
  ExpectFound(recorded_, judge(), "records of a commit are not synced",
              WithoutSyncs(Path("store/incoming/commit-")));
  ExpectFound(recorded_, judge(), "frames are not synced",
              WithoutSyncs(Path("store/incoming/birth-")));
}

// -- A group of two ranks

class GroupPowerCutTest : public StorePowerCutTest {
 protected:
  static constexpr uint32_t kNumRanks = 2;
  using Ranks = std::vector<std::unique_ptr<Store>>;

  static Result<Ranks> Join(const fs::path& root) {
    VARVE_ASSIGN_OR_RETURN(const uint64_t epoch, Group::StartEpoch(root, kNumRanks));
    Ranks ranks;
    for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
      VARVE_ASSIGN_OR_RETURN(
          auto store,
          Group::Join(root, {.rank = rank, .epoch = epoch, .timeout = std::chrono::seconds(60)}));
      ranks.push_back(std::move(store));
    }
    return ranks;
  }

  static std::vector<TestTensor> ContentOf(uint32_t rank, uint64_t step) {
    const std::string name = std::to_string(rank);
    return {RandomTensor("a" + name, DType::kU8, {9000}, 100 * step + rank),
            RandomTensor("b" + name, DType::kU8, {9000}, rank)};
  }

  static Status SaveAll(const Ranks& ranks, uint64_t step) {
    std::vector<Status> statuses(ranks.size());
    {
      std::vector<std::jthread> threads;
      for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
        threads.emplace_back([&, rank] {
          statuses[rank] = [&]() -> Status {
            VARVE_ASSIGN_OR_RETURN(auto writer, ranks[rank]->Begin(step, {}));
            const std::vector<TestTensor> tensors = ContentOf(rank, step);
            for (const TestTensor& tensor : tensors) {
              VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
            }
            return writer->Commit().status();
          }();
        });
      }
    }
    for (const Status& status : statuses) VARVE_RETURN_IF_ERROR(status);
    return Status::Ok();
  }

  void RecordGroup() {
    const fs::path disk = folder_.path() / "disk", root = disk / "root";
    fs::create_directory(disk);
    Ranks ranks;
    State now;
    DiskRecord record(disk);
    const auto run = [&](const std::string& name, const std::function<Status()>& operation,
                         const std::function<void()>& change) {
      const uint64_t number = recorded_.names.size();
      recorded_.names.push_back(name);
      record.Mark(2 * number);
      const Status status = operation();
      ASSERT_TRUE(status.ok()) << name << ": " << status.ToString();
      record.Mark(2 * number + 1);
      change();
      recorded_.states.push_back(now);
    };
    const auto save = [&](uint64_t step) {
      run(
          "save " + std::to_string(step), [&] { return SaveAll(ranks, step); },
          [&] {
            auto tensors = std::make_shared<std::vector<TestTensor>>();
            for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
              for (TestTensor& tensor : ContentOf(rank, step)) {
                tensors->push_back(std::move(tensor));
              }
            }
            std::ranges::sort(*tensors, {}, &TestTensor::name);
            now.steps[{"main", step}] = tensors;
          });
    };
    const auto join = [&] {
      run(
          "join",
          [&]() -> Status {
            ranks.clear();
            VARVE_ASSIGN_OR_RETURN(ranks, Join(root));
            return Status::Ok();
          },
          [&] { now.exists = true; });
    };
    const auto collect = [&](const std::function<Status(Store*)>& operation) -> Status {
      VARVE_ASSIGN_OR_RETURN(const auto collector, Store::Open(root));
      return operation(collector.get());
    };
    join();
    for (const uint64_t step : {1, 2, 3}) save(step);
    run(
        "tag",
        [&] {
          return collect([](Store* root_store) { return root_store->SetTag({"main", 3}, "t"); });
        },
        [&] {
          now.tags[{"main", "t"}] = 3;
        });
    const CheckpointId second{"main", 2};
    run(
        "drop",
        [&] {
          return collect([&](Store* root_store) {
            return root_store->Drop({&second, 1}, {}).status();
          });
        },
        [&] {
          now.steps.erase({"main", 2});
        });
    save(4);
    join();
    save(5);
    ranks.clear();
    recorded_.first = record.first();
    recorded_.ops = record.Finish();
    ExpectComplete(recorded_, disk);
  }

  std::string JudgeGroup(const fs::path& root, const Moment& moment) const {
    const std::vector<State> allowed = Allowed(recorded_.states, moment);
    const bool may_lack = std::ranges::any_of(allowed, [](const State& s) { return !s.exists; });
    if (!may_lack) {
      const auto reader = Store::OpenForReading(root);
      if (!reader.ok()) return "reading: " + reader.status().ToString();
      const std::string fault = CheckState(**reader, allowed);
      if (!fault.empty()) return "reading: " + fault;
    }
    {
      const auto ranks = Join(root);
      if (!ranks.ok()) return "joining: " + ranks.status().ToString();
      std::string fault = CheckState(*(*ranks)[0], allowed);
      if (!may_lack && !fault.empty()) return fault;
      const Status saved = SaveAll(*ranks, 1000);
      if (!saved.ok()) return "a save after it: " + saved.ToString();
    }
    const auto store = Store::Open(root);
    if (!store.ok()) return "opening: " + store.status().ToString();
    const auto reclaimed = (*store)->Reclaim();
    if (!reclaimed.ok()) return "a reclaim after it: " + reclaimed.status().ToString();
    return CheckClean(**store);
  }

  Judge group_judge() {
    return [this](const fs::path& folder, const Moment& moment) {
      return JudgeGroup(folder / "root", moment);
    };
  }
};

TEST_F(GroupPowerCutTest, NothingIsLost) {
  ASSERT_NO_FATAL_FAILURE(RecordGroup());
  ExpectNoFaults(recorded_, group_judge(), 31);
}

TEST_F(GroupPowerCutTest, PlantedMistakesAreFound) {
  ASSERT_NO_FATAL_FAILURE(RecordGroup());
  const auto find = [&](const std::string& mistake, const std::function<Ops(Ops)>& plant) {
    ExpectFound(recorded_, group_judge(), mistake, plant);
  };
  find("records of the log are not synced",
       WithoutSyncs([](const DiskOp& op) { return op.path.starts_with("root/log/"); }));
  find("the folder of the log is not synced", WithoutSyncs(Folder("root/log")));
  find("catalogues are not synced", WithoutSyncs(Path("root/catalogues/")));
  find("the manifests of members are not synced", WithoutSyncs(Path("/db/MANIFEST-")));
}

// -- A repair

class RepairPowerCutTest : public StorePowerCutTest {
 protected:
  void RecordRepair() {
    const fs::path root = folder_.path() / "disk", path = root / "store";
    fs::create_directory(root);
    const auto tables = [&] {
      std::map<fs::path, uint64_t> sizes;
      for (const auto& entry : fs::directory_iterator(path / "db")) {
        if (entry.path().extension() == ".sst") sizes[entry.path()] = entry.file_size();
      }
      return sizes;
    };
    std::map<fs::path, uint64_t> before;
    {
      const auto store = Store::Create(path, {.digest_seed = 1}).value();
      for (const uint64_t step : {1, 2, 3}) {
        before = tables();
        VARVE_ASSERT_OK(PowerCutTest::Save(store.get(), {"main", step}, step));
      }
    }
    fs::path last;  // the largest table of step 3, on which no other step depends
    uint64_t most = 0;
    for (const auto& [file, size] : tables()) {
      if (before.contains(file) || size <= most) continue;
      last = file;
      most = size;
    }
    ASSERT_FALSE(last.empty());
    fs::remove(last);
    fs::remove(path / "RESERVE");
    DiskRecord record(root);
    recorded_.names = {"repair"};
    record.Mark(0);
    const auto report = RepairStore(path);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    record.Mark(1);
    recorded_.first = record.first();
    recorded_.ops = record.Finish();
    ExpectComplete(recorded_, root);
    const auto state = Read(*Store::OpenForReading(path).value());
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    EXPECT_GE(state->steps.size(), 1u);
    EXPECT_LT(state->steps.size(), 3u);
    recorded_.states = {*state};
  }

  std::string JudgeRepair(const fs::path& folder, const Moment& moment) const {
    const fs::path path = folder / "store";
    const auto report = RepairStore(path);
    if (!report.ok()) return "repairing again: " + report.status().ToString();
    if (!moment.has_begun && !report->damage.empty()) return "the store is damaged again";
    const bool is_kept = fs::exists(path.string() + "~damaged/FORMAT");
    if (!is_kept) return "the damaged store is gone";
    if (fs::exists(path.string() + "~repair")) return "~repair is left";
    return JudgeStore(path, recorded_.states, moment.seed);
  }

  Judge repair_judge() {
    return [this](const fs::path& folder, const Moment& moment) {
      return moment.num_done == 0 && !moment.has_begun ? "" : JudgeRepair(folder, moment);
    };
  }
};

TEST_F(RepairPowerCutTest, NothingIsLost) {
  ASSERT_NO_FATAL_FAILURE(RecordRepair());
  ExpectNoFaults(recorded_, repair_judge(), 11);
}

TEST_F(RepairPowerCutTest, PlantedMistakesAreFound) {
  ASSERT_NO_FATAL_FAILURE(RecordRepair());
  ExpectFound(recorded_, repair_judge(), "the new store is exchanged before its files are synced",
              WithoutSyncs(Path("store~repair/store/")));
}

// -- The model of the disk

TEST(DiskTest, WhatIsNotSyncedIsLostOrTorn) {
  const TempFolder folder;
  const fs::path image = folder.path() / "image";
  const auto op = [](Kind kind, int number, int at_folder, std::string name, std::string bytes = "",
                     uint64_t at = 0) {
    DiskOp made;
    made.kind = kind;
    made.number = number;
    made.folder = at_folder;
    made.name = std::move(name);
    made.bytes = std::move(bytes);
    made.at = at;
    return made;
  };
  const auto read = [&](const Disk& disk, PowerCut cut, const std::string& name) {
    fs::remove_all(image);
    disk.Make(cut, 1, image);
    if (!fs::exists(image / name)) return std::string("none");
    std::ostringstream text;
    text << std::ifstream(image / name).rdbuf();
    return text.str();
  };
  Disk disk;
  disk.Apply(op(Kind::kFile, 1, 0, "a"));
  disk.Apply(op(Kind::kWrite, 1, 0, "", "0123"));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "none");
  EXPECT_EQ(read(disk, PowerCut::kOnlyNames, "a"), std::string(4, '\0'));
  EXPECT_EQ(read(disk, PowerCut::kNothing, "a"), "0123");
  EXPECT_EQ(read(disk, PowerCut::kTorn, "a").substr(0, 2), "01");
  disk.Apply(op(Kind::kSync, 1, 0, ""));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "none");  // its name is not synced
  disk.Apply(op(Kind::kSync, 0, 0, ""));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "0123");
  disk.Apply(op(Kind::kWrite, 1, 0, "", "4567", 4));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "0123");
  EXPECT_EQ(read(disk, PowerCut::kTorn, "a").substr(0, 6), "012345");
  EXPECT_NE(read(disk, PowerCut::kTorn, "a"), "01234567");
  // A file that goes to a folder which is not synced is in one of the two.
  disk.Apply(op(Kind::kFolder, 2, 0, "to"));
  DiskOp rename = op(Kind::kRename, 1, 0, "a");
  rename.to_folder = 2;
  rename.to_name = "b";
  disk.Apply(rename);
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "0123");
  disk.Apply(op(Kind::kSync, 2, 0, ""));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "none");
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "to/b"), "0123");
}

}  // namespace
}  // namespace varve::internal::testing
