// SPDX-License-Identifier: Apache-2.0
//
// A DeviceTensorSource as a user writes one: its device is plain memory of the host, behind
// functions that count what is asked for. Saves a tensor of it twice, restores both steps, and
// checks the store. usage: device_source FOLDER, which must not exist.
#include <varve/digest.h>
#include <varve/varve.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kDevice = 3;
constexpr size_t kChunkFloats = 262144;  // of one chunk of F32

class PlainMemory : public varve::DeviceTensorSource {
 public:
  explicit PlainMemory(std::vector<float>* memory) : memory_(memory) {}

  varve::Status Check(const Chunk& tensor) override {
    const auto all = std::as_bytes(std::span(*memory_));
    const bool is_inside = tensor.bytes.data() >= all.data() &&
                           tensor.bytes.data() + tensor.bytes.size() <= all.data() + all.size();
    if (tensor.device == kDevice && is_inside) return varve::Status::Ok();
    return varve::Status::InvalidArgument("not in the memory of device 3");
  }
  varve::Status Prepare(std::span<const Chunk> chunks, std::span<std::byte>) override {
    chunks_.assign(chunks.begin(), chunks.end());
    return varve::Status::Ok();
  }
  varve::Status PrepareDigestNow(std::span<const Chunk>) override { return varve::Status::Ok(); }

  varve::Status MarkBegin() override { return varve::Status::Ok(); }
  varve::Status BeginDigests(uint64_t seed, Trainer) override {
    digests_ = DigestsOf(seed + (is_wrong ? 1 : 0), chunks_);
    return varve::Status::Ok();
  }
  varve::Result<std::span<const varve::Digest>> TakeDigests(size_t) override {
    return std::span<const varve::Digest>(digests_);
  }
  varve::Result<uint64_t> CopyToHost(std::span<const Copy> copies) override {
    for (const Copy& copy : copies) {
      const std::span<const std::byte> from = chunks_[copy.chunk].bytes;
      std::memcpy(copy.to, from.data(), from.size());
    }
    num_copied += copies.size();
    return 0;
  }
  varve::Status MarkRelease() override { return varve::Status::Ok(); }
  varve::Status AwaitCopies() override { return varve::Status::Ok(); }

  varve::Result<const varve::Digest*> DigestNow(uint64_t seed,
                                                std::span<const Chunk> chunks) override {
    now_ = DigestsOf(seed, chunks);
    return now_.data();
  }
  varve::Status Read(const Chunk& from, std::span<std::byte> to) override {
    std::memcpy(to.data(), from.bytes.data(), to.size());
    return varve::Status::Ok();
  }
  std::span<std::byte> bounce() override { return {}; }
  varve::Status Write(std::span<const std::byte> from, int, std::byte* to, int) override {
    std::memcpy(to, from.data(), from.size());
    num_written += from.size();
    return varve::Status::Ok();
  }
  varve::Status AwaitWrites(int) override { return varve::Status::Ok(); }

  bool is_wrong = false;   // it takes another seed than the store's
  size_t num_copied = 0;   // chunks
  size_t num_written = 0;  // bytes

 private:
  static std::vector<varve::Digest> DigestsOf(uint64_t seed, std::span<const Chunk> chunks) {
    std::vector<varve::Digest> digests;
    for (const Chunk& chunk : chunks) digests.push_back(varve::ComputeDigest(seed, chunk.bytes));
    return digests;
  }

  std::vector<float>* const memory_;
  std::vector<Chunk> chunks_;
  std::vector<varve::Digest> digests_;
  std::vector<varve::Digest> now_;
};

varve::Status Expect(bool is_so, const std::string& what) {
  return is_so ? varve::Status::Ok() : varve::Status::Corruption("expected " + what);
}

varve::Status CheckStore(const std::string& folder) {
  VARVE_ASSIGN_OR_RETURN(const auto store, varve::Store::OpenForReading(folder));
  VARVE_ASSIGN_OR_RETURN(const varve::CheckReport report, store->Check({.read_data = true}));
  VARVE_RETURN_IF_ERROR(Expect(report.num_steps == 2, "two steps"));
  return Expect(report.ok(), "no errors: " + (report.ok() ? "" : report.errors[0]));
}

varve::Status Run(const std::string& folder) {
  std::vector<float> memory(3 * kChunkFloats + 7);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const auto source = std::make_shared<PlainMemory>(&memory);
  varve::TrainingState state;
  state.tensors.push_back(
      {{.name = "w", .shape = {static_cast<int64_t>(memory.size())}}, memory.data(), kDevice});
  VARVE_ASSIGN_OR_RETURN(
      auto checkpointer,
      varve::AsyncCheckpointer::Open(folder, {.devices = source, .failure_is_fatal = false}));

  VARVE_RETURN_IF_ERROR(checkpointer->Save(1, state).status());
  VARVE_RETURN_IF_ERROR(checkpointer->Wait());
  VARVE_RETURN_IF_ERROR(Expect(source->num_copied == 4, "four chunks copied"));
  const std::vector<float> first = memory;

  memory[2 * kChunkFloats] = -1;
  VARVE_RETURN_IF_ERROR(checkpointer->Save(2, state).status());
  VARVE_RETURN_IF_ERROR(checkpointer->Wait());
  VARVE_RETURN_IF_ERROR(Expect(source->num_copied == 5, "one chunk more copied"));
  const std::vector<float> second = memory;

  // A source that digests wrongly saves nothing.
  source->is_wrong = true;
  const varve::Status begun = checkpointer->Save(3, state).status();
  const varve::Status ended = checkpointer->Wait();
  source->is_wrong = false;
  VARVE_RETURN_IF_ERROR(
      Expect(!begun.ok() || !ended.ok() || !checkpointer->last_stats()->status.ok(),
             "an error of a save with wrong digests"));

  for (const auto& [step, values] : {std::pair("1", &first), std::pair("2", &second)}) {
    memory.assign(memory.size(), 0.5F);
    VARVE_RETURN_IF_ERROR(checkpointer->Restore(step, {}, &state).status());
    VARVE_RETURN_IF_ERROR(Expect(memory == *values, std::string("the values of step ") + step));
  }
  VARVE_RETURN_IF_ERROR(
      Expect(source->num_written == size_t{2} * 4 * memory.size(), "all written by the source"));
  checkpointer->Close().IgnoreError();  // the error of step 3, which is expected
  return CheckStore(folder);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: device_source FOLDER\n", stderr), 2;
  const varve::Status status = Run(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "device_source: %s\n", status.ToString().c_str());
  return 1;
}
