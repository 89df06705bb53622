// SPDX-License-Identifier: Apache-2.0
//
// Saves of tensors on a device, and their way back.
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/cuda/device_fixture.h"
#include "tests/support/sizes.h"

namespace varve::internal::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// A chunk of 1 MiB is 262,144 elements of FP32.
class DeviceSaveTest : public DeviceTest {
 protected:
  std::unique_ptr<DeviceState> MakeState() {
    return std::make_unique<DeviceState>(0, stream_.get());
  }
};

TEST_F(DeviceSaveTest, TensorsOfAllKindsComeBack) {
  Open();
  const auto state = MakeState();
  state->Add(NormalTensor("large", {700'001}, 1));
  state->Add(NormalTensor("askew", {300'000}, 2), 3);
  state->Add(RandomTensor("tiny", DType::kU8, {7}, 3), 1);
  state->Add(RandomTensor("norm", DType::kBF16, {2048}, 4));
  state->Add(RandomTensor("just_large", DType::kU8, {4097}, 5), 5);
  state->Add(NormalTensor("none", {0}, 6));
  state->Add(NormalTensor("one", {}, 7));
  const TestTensor master = NormalTensor("master.w", {270'000}, 8);
  state->Add(master);
  state->Add(RoundedCopy(master, "model.w"));
  state->AddOnHost(NormalTensor("on_host", {300'000}, 9));
  for (uint64_t step = 1; step <= 3; ++step) {
    Begin(step, state->state());
    const auto values = state->Values();
    VARVE_ASSERT_OK(ckpt_->AwaitStaged());
    state->Change(0, step * 1000);
    state->Change(2, 0);
    ExpectSaved(step, values);
  }
  const auto values = state->Values();
  Save(4, state->state());
  ExpectSaved(4, values);
  ExpectRestores(4, state.get());
}

TEST_F(DeviceSaveTest, OnlyWhatChangedLeavesTheDevice) {
  Open();
  const auto state = MakeState();
  state->Add(NormalTensor("a", {1'000'000}, 1));
  state->Add(NormalTensor("b", {1'000'000}, 2));
  Save(1, state->state());
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_EQ(ckpt_->last_stats()->staged_bytes, 8'000'000u);
  Save(2, state->state());
  VARVE_ASSERT_OK(ckpt_->Wait());
  EXPECT_EQ(ckpt_->last_stats()->changed_bytes, 0u);
  state->Change(1, 5);
  state->Change(1, 3 * kMiB);
  Save(3, state->state());
  ExpectSaved(3, state->Values());
  EXPECT_EQ(ckpt_->last_stats()->staged_bytes, kMiB + (4'000'000 - 3 * kMiB));
}

// There is room for all that changes, for a part of it, or for none. A chunk that changes each time
// is copied by the kernel that digests it.
TEST_F(DeviceSaveTest, StagingOnTheDeviceMayBeAnySize) {
  for (const uint64_t staging : {16 * kMiB, 3 * kMiB, uint64_t{0}}) {
    ckpt_.reset();
    MakeSource(staging);
    Open({.run = "staging" + std::to_string(staging)});
    const auto state = MakeState();
    for (int i = 0; i < 3; ++i) {
      state->Add(NormalTensor("t" + std::to_string(i), {600'000 + i}, static_cast<uint64_t>(i)),
                 static_cast<size_t>(i));
    }
    std::vector<std::vector<TestTensor>> saved;
    for (uint64_t step = 1; step <= 5; ++step) {
      for (size_t i = 0; i < step % 4; ++i)
        state->Set(i, RandomBytes(state->Size(i), step * 8 + i));
      saved.push_back(state->Values());
      Save(step, state->state());
    }
    VARVE_ASSERT_OK(ckpt_->Wait());
    const SaveStats last = *ckpt_->last_stats();  // the first tensor has changed
    EXPECT_EQ(last.changed_bytes, 2'400'000u);
    EXPECT_EQ(last.waited_bytes, staging == 0 ? 2'400'000u : 0u);
    EXPECT_EQ(
        ToString(last).find("bytes from devices, whose staging was full") != std::string::npos,
        staging == 0);
    for (uint64_t step = 1; step <= 5; ++step) {
      ExpectHolds(ckpt_->store(), step, saved[step - 1], "staging" + std::to_string(staging));
    }
    VARVE_ASSERT_OK(ckpt_->Close());
  }
}

// The host has room for a part of what changed: the trainer waits until the rest has been read.
TEST_F(DeviceSaveTest, StagingOnTheHostMayBeTooSmall) {
  Open({.staging_budget_bytes = 2 * kMiB + 4096});
  const auto state = MakeState();
  state->Add(NormalTensor("t", {1'500'000}, 1));
  for (uint64_t step = 1; step <= 3; ++step) {
    state->Set(0, RandomBytes(state->Size(0), step));
    const auto values = state->Values();
    Save(step, state->state());
    state->Clear();  // at once
    ExpectSaved(step, values);
    EXPECT_EQ(ckpt_->last_stats()->changed_bytes, 6'000'000u);
    EXPECT_LT(ckpt_->last_stats()->staged_bytes, 3 * kMiB);
  }
}

// The trainer overwrites its tensors as soon as the contract allows: behind AwaitStaged on its own
// stream, and behind the event on another.
TEST_F(DeviceSaveTest, ATrainerThatOverwritesAtOnceIsSavedAsItWas) {
  MakeSource(2 * kMiB);
  Open();
  const gpu::Stream other = *gpu::MakeStream();
  const auto state = MakeState();
  state->Add(NormalTensor("a", {400'000}, 1));
  state->Add(RandomTensor("b", DType::kU8, {3000}, 2), 1);
  state->Add(NormalTensor("c", {300'000}, 3), 4);
  std::mt19937_64 random(7);
  const bool is_full_size = std::getenv("VARVE_FULL_SIZE") != nullptr;
  const int few = kUnderTsan ? 25 : 150;  // what TSan looks for, it finds in few
  const int rounds = is_full_size ? 500 : few;
  std::vector<std::byte> junk(state->Size(0), std::byte{0x55});
  for (int round = 1; round <= rounds; ++round) {
    for (size_t i = 0; i < 3; ++i) {
      if (random() % 2 == 0) state->Set(i, RandomBytes(state->Size(i), random()));
    }
    const auto step = static_cast<uint64_t>(round);
    const auto values = state->Values();
    Begin(step, state->state());
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    VARVE_ASSERT_OK(ckpt_->AwaitStaged());
    if (random() % 2 == 0) {
      state->Clear();
    } else {
      VARVE_ASSERT_CUDA(cudaStreamWaitEvent(other.get(), *source_->released(0), 0));
      VARVE_ASSERT_CUDA(cudaMemcpyAsync(state->state().tensors[0].data, junk.data(), junk.size(),
                                        cudaMemcpyHostToDevice, other.get()));
      VARVE_ASSERT_CUDA(cudaStreamSynchronize(other.get()));
      state->Clear();
    }
    ExpectSaved(step, values);
    for (size_t i = 0; i < 3; ++i) state->Set(i, values[i].bytes);
    if (round % 10 == 0) {
      const CheckpointId id{"main", step - 5};
      VARVE_ASSERT_OK(ckpt_->store().Drop({&id, 1}).status());
    }
  }
}

// Another stream overwrites a tensor when it has been digested and is about to be copied.
class Intruder : public DeviceTensorSource {
 public:
  Intruder(std::shared_ptr<DeviceTensorSource> source, void* tensor, std::vector<std::byte> junk)
      : source_(std::move(source)), tensor_(tensor), junk_(std::move(junk)) {}

  Status Check(const Chunk& tensor) override { return source_->Check(tensor); }
  Status Prepare(std::span<const Chunk> chunks, std::span<std::byte> host) override {
    return source_->Prepare(chunks, host);
  }
  Status PrepareDigestNow(std::span<const Chunk> chunks) override {
    return source_->PrepareDigestNow(chunks);
  }
  Status MarkBegin() override { return source_->MarkBegin(); }
  Status BeginDigests(uint64_t seed, Trainer trainer) override {
    return source_->BeginDigests(seed, std::move(trainer));
  }
  Result<std::span<const Digest>> TakeDigests(size_t have) override {
    return source_->TakeDigests(have);
  }
  Result<uint64_t> CopyToHost(std::span<const Copy> copies) override {
    const gpu::DeviceScope scope(0);
    EXPECT_EQ(
        cudaMemcpyAsync(tensor_, junk_.data(), junk_.size(), cudaMemcpyHostToDevice, other_.get()),
        cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other_.get()), cudaSuccess);
    return source_->CopyToHost(copies);
  }
  Status MarkRelease() override { return source_->MarkRelease(); }
  Status AwaitCopies() override { return source_->AwaitCopies(); }
  Result<const Digest*> DigestNow(uint64_t seed, std::span<const Chunk> chunks) override {
    return source_->DigestNow(seed, chunks);
  }
  Status Read(const Chunk& from, std::span<std::byte> to) override {
    return source_->Read(from, to);
  }
  std::span<std::byte> bounce() override { return source_->bounce(); }
  Status Write(std::span<const std::byte> from, int device, std::byte* to, int half) override {
    return source_->Write(from, device, to, half);
  }
  Status AwaitWrites(int half) override { return source_->AwaitWrites(half); }

 private:
  const std::shared_ptr<DeviceTensorSource> source_;
  void* const tensor_;
  const std::vector<std::byte> junk_;
  const gpu::Stream other_ = *gpu::MakeStream();
};

TEST_F(DeviceSaveTest, ATrainerThatOverwritesTooEarlyIsTold) {
  const auto state = MakeState();
  state->Add(NormalTensor("t", {600'000}, 1));
  for (const uint64_t budget : {8 * kMiB, uint64_t{4096}}) {  // copied to staging, or read late
    MakeSource();
    const std::vector<std::byte> values = state->Values()[0].bytes;
    const auto intruder = std::make_shared<Intruder>(source_, state->state().tensors[0].data,
                                                     RandomBytes(values.size(), budget));
    ckpt_ = *AsyncCheckpointer::Open(
        path(), {.staging_budget_bytes = budget, .devices = intruder, .failure_is_fatal = false});
    for (uint64_t step = 1; step <= 3; ++step) {
      state->Set(0, values);
      Begin(step, state->state());
      VARVE_ASSERT_OK(ckpt_->AwaitStaged());
      ckpt_->Wait().IgnoreError();
      const Status status = ckpt_->last_stats()->status;
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_THAT(status.ToString(), HasSubstr("tensor t"));
      EXPECT_THAT(status.ToString(), HasSubstr("changed while it was staged"));
    }
    ckpt_->Close().IgnoreError();
    ckpt_.reset();
  }
}

// Digests arrive in parts, and what changed is copied part by part. On the host there is room for
// all of it, or so little that the parts must wait for each other.
TEST_F(DeviceSaveTest, DigestsMayArriveInParts) {
  for (const uint64_t budget : {64 * kMiB, 3 * kMiB}) {
    ckpt_.reset();
    MakeSource(2 * kMiB, /*digest_part_bytes=*/kMiB);
    const std::string run = "budget" + std::to_string(budget);
    Open({.run = run, .staging_budget_bytes = budget});
    const auto state = MakeState();
    for (int i = 0; i < 12; ++i) {
      const int64_t elements = i % 3 == 2 ? 50 : 300'000 + i;
      state->Add(NormalTensor("t" + std::to_string(i), {elements}, static_cast<uint64_t>(i)),
                 static_cast<size_t>(i));
    }
    std::vector<std::vector<TestTensor>> saved;
    for (uint64_t step = 1; step <= 6; ++step) {
      for (size_t i = 0; i < state->size(); i += step) state->Change(i, step);
      saved.push_back(state->Values());
      if (step % 3 == 0) {
        Save(step, state->state());
      } else {
        Begin(step, state->state());
        VARVE_ASSERT_OK(ckpt_->AwaitStaged());
      }
      state->Clear();
      VARVE_ASSERT_OK(ckpt_->Wait());
      for (size_t i = 0; i < state->size(); ++i) state->Set(i, saved.back()[i].bytes);
    }
    for (uint64_t step = 1; step <= 6; ++step) {
      ExpectHolds(ckpt_->store(), step, saved[step - 1], run);
    }
    VARVE_ASSERT_OK(ckpt_->Close());
  }
}

TEST_F(DeviceSaveTest, PlacesThatCannotBeAreNamed) {
  Open();
  const auto state = MakeState();
  state->Add(NormalTensor("t", {1000}, 1));
  TrainingState wrong = state->state();
  std::vector<float> host(1000);
  wrong.tensors[0].data = host.data();
  EXPECT_THAT(
      ckpt_->BeginSave(1, wrong),
      FailsWith(StatusCode::kInvalidArgument,
                "tensor t: its data lies in memory of the host, expected memory of device 0"));
  wrong = state->state();
  wrong.tensors[0].device = 7;
  EXPECT_THAT(ckpt_->BeginSave(1, wrong),
              FailsWith(StatusCode::kInvalidArgument,
                        "CudaOptions does not name device 7: add it to streams or devices"));
  wrong = state->state();
  wrong.tensors[0].shape = {500, 1};
  wrong.tensors[0].strides = {2, 1};
  EXPECT_THAT(ckpt_->BeginSave(1, wrong),
              FailsWith(StatusCode::kInvalidArgument, "tensor t of device 0 has strides"));
  EXPECT_THAT(ckpt_->Restore("latest", {}, &wrong), FailsWith(StatusCode::kNotFound, "main"));
  Save(1, state->state());  // nothing is left of all that
  EXPECT_THAT(ckpt_->Restore("1", {}, &wrong),
              FailsWith(StatusCode::kInvalidArgument, "tensor t of device 0 has strides"));
  ExpectRestores(1, state.get());
}

TEST_F(DeviceSaveTest, WithoutASourceTensorsOnDevicesAreRefused) {
  auto ckpt = *AsyncCheckpointer::Open(path());
  const auto state = MakeState();
  state->Add(NormalTensor("t", {1000}, 1));
  EXPECT_THAT(ckpt->BeginSave(1, state->state()),
              FailsWith(StatusCode::kInvalidArgument,
                        "tensor t of device 0: no devices were given (varve/cuda.h)"));
  VARVE_ASSERT_OK(ckpt->Close());
}

TEST_F(DeviceSaveTest, AStreamThatIsCapturedIsRefused) {
  Open();
  const auto state = MakeState();
  state->Add(NormalTensor("t", {1000}, 1));
  VARVE_ASSERT_OK(ckpt_->Prewarm(state->state()));
  VARVE_ASSERT_CUDA(cudaStreamSynchronize(stream_.get()));
  VARVE_ASSERT_CUDA(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
  EXPECT_THAT(ckpt_->BeginSave(1, state->state()),
              FailsWith(StatusCode::kFailedPrecondition, "stream of device 0 is being captured"));
  cudaGraph_t graph = nullptr;
  VARVE_ASSERT_CUDA(cudaStreamEndCapture(stream_.get(), &graph));
  VARVE_ASSERT_CUDA(cudaGraphDestroy(graph));
  Save(1, state->state());
  ExpectSaved(1, state->Values());
}

TEST_F(DeviceSaveTest, MemoryThatIsNotThereIsSaid) {
  EXPECT_THAT(CudaTensorSource::Create(
                  {.streams = {{0, stream_.get()}}, .staging_bytes = uint64_t{1} << 50}),
              FailsWith(StatusCode::kUnavailable, "device 0: CUDA: cudaMalloc"));
  EXPECT_THAT(CudaTensorSource::Create({.streams = {{0, stream_.get()}}, .bounce_bytes = 1}),
              FailsWith(StatusCode::kInvalidArgument, "bounce_bytes is 1"));
  EXPECT_THAT(CudaTensorSource::Create({.streams = {{0, stream_.get()}, {0, stream_.get()}}}),
              FailsWith(StatusCode::kInvalidArgument, "two streams of device 0"));
}

// Types, masters that are made, and tensors that a load leaves alone.
TEST_F(DeviceSaveTest, LoadsConvertAndMakeMasters) {
  Open();
  const auto state = MakeState();
  const TestTensor master = NormalTensor("master.w", {2'200'000}, 1);
  state->Add(RoundedCopy(master, "w"));
  state->Add(NormalTensor("v", {1'000'000}, 2));
  Save(1, state->state());
  VARVE_ASSERT_OK(ckpt_->Wait());

  DeviceState into(0, stream_.get());
  into.Add(RoundedCopy(NormalTensor("master.w", {2'200'000}, 3), "w"));
  into.Add(NormalTensor("master.w", {2'200'000}, 4));
  into.Add(RandomTensor("v", DType::kBF16, {1'000'000}, 5));
  into.state().tensors[0].derived_from = "master.w";
  VARVE_ASSERT_OK(ckpt_->Restore("1", {.convert_dtype = true}, &into.state()).status());
  const auto saved = state->Values();
  EXPECT_TRUE(into.Download(0) == saved[0].bytes);
  EXPECT_TRUE(into.Download(2) == RoundedCopy(saved[1], "v").bytes);
  const std::vector<std::byte> widened = into.Download(1);
  for (size_t i = 0; i < 2'200'000; i += 997) {
    EXPECT_EQ(widened[4 * i], std::byte{0});
    EXPECT_EQ(widened[4 * i + 2], saved[0].bytes[2 * i]);
    EXPECT_EQ(widened[4 * i + 3], saved[0].bytes[2 * i + 1]);
  }
}

// Tied embeddings that are loaded without the optimizer do this: the second name has the master.
TEST_F(DeviceSaveTest, MastersOfTiedWeightsAreMade) {
  Open();
  const auto state = MakeState();
  const TestTensor master = NormalTensor("master.wte", {3000}, 1);
  state->Add(RoundedCopy(master, "lm_head"));
  state->Add(master);
  state->state().tensors.push_back(state->state().tensors[0]);
  state->state().tensors[2].name = "wte";
  state->state().tensors[0].derived_from = "";
  state->state().tensors[2].derived_from = "master.wte";
  state->state().tensors[1].role = TensorRole::kOptimizer;
  Save(1, state->state());
  const std::vector<TestTensor> saved = state->Values();
  state->Clear();
  VARVE_ASSERT_OK(ckpt_->Restore("1", {.optimizer = false}, &state->state()).status());
  EXPECT_TRUE(state->Download(0) == saved[0].bytes);
  const std::vector<std::byte> made = state->Download(1);
  for (size_t i = 0; i < 3000; ++i) EXPECT_EQ(made[4 * i + 3], saved[0].bytes[2 * i + 1]);
}

TEST_F(DeviceSaveTest, PrewarmTakesAllMemory) {
  Open({.staging_budget_bytes = 4 * kMiB});
  const auto state = MakeState();
  state->Add(NormalTensor("t", {700'000}, 1));
  VARVE_ASSERT_OK(ckpt_->Prewarm(state->state()));
  Save(1, state->state());
  ExpectSaved(1, state->Values());
  VARVE_ASSERT_OK(ckpt_->ReleaseStaging());
  state->Change(0, 1);
  Save(2, state->state());
  ExpectSaved(2, state->Values());
}

}  // namespace
}  // namespace varve::internal::testing
