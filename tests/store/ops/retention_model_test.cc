// SPDX-License-Identifier: Apache-2.0
//
// Tests retention against a model that shares no code with it. The model decides step by step which
// steps stay. It finds the bytes that come back by following every reference from every step that
// stays.
#include <cmath>
#include <cstdlib>

#include "store/ops/drop_forecast.h"
#include "store/save/save_session.h"
#include "tests/store/internals.h"

namespace varve::internal {

namespace {

using testing::Drifted;
using testing::NormalTensor;
using testing::TestTensor;

// VARVE_FULL_SIZE=1 is set by scripts/must_show.
int NumStores() { return std::getenv("VARVE_FULL_SIZE") != nullptr ? 1000 : 20; }

// The naive reading of a policy.
class PolicyModel {
 public:
  PolicyModel(const RetentionPolicy& policy, std::vector<CheckpointInfo> infos)
      : policy_(policy), infos_(std::move(infos)) {}

  bool Keeps(const CheckpointInfo& info) const {
    return IsAmongLast(info) || IsMultiple(info) || IsBest(info) || IsRecent(info) ||
           IsTagged(info);
  }

 private:
  bool IsAmongLast(const CheckpointInfo& info) const {
    uint64_t newer = 0;
    for (const CheckpointInfo& other : infos_) newer += other.id.step > info.id.step ? 1 : 0;
    return newer < policy_.keep_last;
  }
  bool IsMultiple(const CheckpointInfo& info) const {
    return policy_.keep_every > 0 && info.id.step % policy_.keep_every == 0;
  }
  bool IsBest(const CheckpointInfo& info) const {
    for (const KeepBest& best : policy_.keep_best) {
      if (!HasNumber(info, best.metric)) continue;
      uint64_t better = 0;
      for (const CheckpointInfo& other : infos_) {
        if (!HasNumber(other, best.metric)) continue;
        const double a = other.metrics.at(best.metric), b = info.metrics.at(best.metric);
        const bool wins = best.highest ? a > b : a < b;
        better += wins || (a == b && other.id.step > info.id.step) ? 1 : 0;
      }
      if (better < best.count) return true;
    }
    return false;
  }
  bool IsRecent(const CheckpointInfo& info) const {
    if (policy_.keep_within.count() == 0) return false;
    if (info.id.step == infos_.back().id.step) return true;
    for (const CheckpointInfo& other : infos_) {
      if (other.created - info.created > policy_.keep_within) return false;
    }
    return true;
  }
  bool IsTagged(const CheckpointInfo& info) const {
    for (const std::string& wanted : policy_.keep_tags) {
      for (const std::string& tag : info.tags) {
        if (tag == wanted || wanted == "*") return true;
      }
    }
    return false;
  }
  static bool HasNumber(const CheckpointInfo& info, const std::string& metric) {
    const auto it = info.metrics.find(metric);
    return it != info.metrics.end() && it->second == it->second;
  }

  const RetentionPolicy& policy_;
  const std::vector<CheckpointInfo> infos_;
};

class RetentionModelTest : public testing::InternalsTest {
 protected:
  uint64_t Random(uint64_t n) { return random_() % n; }

  // Some steps of a tensor that drifts, one that repeats, and one that is rewritten now and then.
  void MakeStore() {
    Reset({});
    TestTensor drifting = NormalTensor("drifting", {900}, random_());
    uint64_t step = Random(5);
    const uint64_t num_steps = 2 + Random(7);
    for (uint64_t i = 0; i < num_steps; ++i, step += 1 + Random(4)) {
      drifting = Drifted(drifting, random_());
      auto writer = *SaveSession::Begin(store_.get(), step);
      const std::vector<TestTensor> tensors{drifting, NormalTensor("repeating", {500}, Random(2)),
                                            NormalTensor("rewritten", {300}, Random(4))};
      for (const TestTensor& tensor : tensors) {
        if (tensor.name == "drifting" || Random(4) > 0) VARVE_ASSERT_OK(writer->Put(tensor.view()));
      }
      if (Random(3) > 0) {
        const double value = Random(8) == 0 ? std::nan("") : static_cast<double>(Random(4));
        VARVE_ASSERT_OK(writer->SetMetric("loss", value));
      }
      if (Random(4) == 0) VARVE_ASSERT_OK(writer->AddTag("t" + std::to_string(Random(3))));
      writer->SetCreated(std::chrono::system_clock::time_point(std::chrono::seconds(Random(100))));
      VARVE_ASSERT_OK(writer->Commit().status());
    }
  }

  RetentionPolicy MakePolicy() {
    RetentionPolicy policy;
    if (Random(2) == 0) policy.keep_last = Random(4);
    if (Random(3) == 0) policy.keep_every = 1 + Random(6);
    if (Random(3) == 0) policy.keep_best.push_back({"loss", Random(2) == 0, Random(3)});
    if (Random(4) == 0) policy.keep_within = std::chrono::seconds(Random(60));
    if (Random(4) == 0) policy.keep_tags.push_back(Random(2) == 0 ? "*" : "t1");
    return policy;
  }

  // Every frame that a step needs, with its bytes.
  void Reach(StepKey step, std::map<ChunkAddress, uint64_t>* reached) {
    VARVE_ASSERT_OK(database()->Scan(
        Family::kTensors, keys::Step(step),
        [&](std::string_view, std::string_view value) -> Status {
          VARVE_ASSIGN_OR_RETURN(const TensorRecord record, DecodeTensorRecord(value));
          for (size_t i = 0; i < record.lists.size(); ++i) {
            VARVE_ASSIGN_OR_RETURN(const auto refs, impl()->ReadList(record, i));
            for (const ChunkRef& ref : refs) {
              std::vector<ChunkAddress> left;
              if (ref.NamesFrame()) left.push_back(ref.address);
              while (!left.empty()) {
                const ChunkAddress address = left.back();
                left.pop_back();
                rocksdb::PinnableSlice frame;
                VARVE_RETURN_IF_ERROR(database()->GetFrame(address, &frame));
                reached->emplace(address, frame.size());
                VARVE_ASSIGN_OR_RETURN(
                    const FrameInfo info,
                    ParseFrame(std::as_bytes(std::span(frame.data(), frame.size()))));
                for (const FrameSource& source : info.sources()) left.push_back(source.address);
                num_bases_ += info.num_sources;
              }
            }
          }
          return Status::Ok();
        }));
  }

  // Bytes of the frames that only `dropped` reach.
  uint64_t BytesOnlyIn(const std::vector<CheckpointInfo>& infos,
                       const std::set<uint64_t>& dropped) {
    std::map<ChunkAddress, uint64_t> all, kept;
    const RunId run = impl()->FindRun("main")->id;
    for (const CheckpointInfo& info : infos) {
      Reach({run, info.id.step}, &all);
      if (!dropped.contains(info.id.step)) Reach({run, info.id.step}, &kept);
    }
    uint64_t bytes = 0;
    for (const auto& [address, size] : all) bytes += kept.contains(address) ? 0 : size;
    return bytes;
  }

  // Returns the bytes of frames that die, by a forecast whose queues lie on the disk.
  uint64_t BytesFoundInLittleMemory(const std::vector<CheckpointId>& ids) {
    DropForecaster forecaster(database(), {}, /*max_in_memory=*/2);
    const RunId run = impl()->FindRun("main")->id;
    for (const CheckpointId& id : ids) VARVE_EXPECT_OK(forecaster.DropStep({run, id.step}));
    VARVE_EXPECT_OK(forecaster.Follow());
    num_runs_ += forecaster.num_runs_for_test();
    return forecaster.dead_bytes();
  }

  // Returns false when the policy keeps nothing, as it then must say.
  bool CompareOnce() {
    const RetentionPolicy policy = MakePolicy();
    const std::vector<CheckpointInfo> infos = *store_->ListCheckpoints("main");
    const PolicyModel model(policy, infos);
    std::set<uint64_t> dropped;
    for (const CheckpointInfo& info : infos) {
      if (!model.Keeps(info)) dropped.insert(info.id.step);
    }
    const auto decisions = DecideRetention(policy, infos);
    EXPECT_EQ(decisions.ok(), dropped.size() < infos.size());
    if (!decisions.ok()) return false;
    const std::vector<CheckpointId> ids = DroppedBy(*decisions);
    std::set<uint64_t> decided;
    for (const CheckpointId& id : ids) decided.insert(id.step);
    EXPECT_EQ(decided, dropped);

    const uint64_t expected = BytesOnlyIn(infos, dropped);
    EXPECT_EQ(*store_->BytesFreedByDrop(ids), expected);
    EXPECT_EQ(BytesFoundInLittleMemory(ids), expected);
    const auto forecast = store_->ForecastDrop(ids);
    EXPECT_EQ(forecast->freed_now + forecast->freed_later, expected);
    const uint64_t before = store_->Stats()->stored_bytes;
    VARVE_EXPECT_OK(store_->Drop(ids, {.reclaim = false}).status());
    const auto reclaimed = store_->Reclaim({.all = true});
    EXPECT_TRUE(reclaimed.ok()) << reclaimed.status().ToString();
    EXPECT_EQ(reclaimed->freed_bytes, expected);
    EXPECT_EQ(reclaimed->pending_bytes, 0);
    EXPECT_EQ(store_->Stats()->stored_bytes, before - expected);
    return true;
  }

  std::mt19937_64 random_;
  uint64_t num_bases_ = 0;  // followed by Reach
  uint64_t num_runs_ = 0;   // of queues
};

TEST_F(RetentionModelTest, DecidesAndFreesAsTheModelSays) {
  int refused = 0;
  for (int seed = 1; seed <= NumStores(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(static_cast<uint64_t>(seed));
    MakeStore();
    if (!CompareOnce()) ++refused;
    ExpectSound();
    if (HasFailure()) return;
  }
  EXPECT_GT(num_runs_, 0);
  EXPECT_GT(num_bases_, 0);  // chunks that live on as bases are what makes it hard
  std::printf(
      "%d random stores and policies: same decisions, same freed bytes; %d policies that keep "
      "nothing were refused; %llu bases followed\n",
      NumStores(), refused, static_cast<unsigned long long>(num_bases_));
}

}  // namespace

}  // namespace varve::internal
