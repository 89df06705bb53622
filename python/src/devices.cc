// SPDX-License-Identifier: Apache-2.0
#include "python/src/devices.h"

#include <utility>

#include "varve/cuda.h"

namespace varve::python {
namespace {

class CudaDevices : public Devices {
 public:
  Status Use(const std::vector<int>& devices) override {
    if (source_ != nullptr) {
      return Status::FailedPrecondition("the devices of this checkpointer are known already");
    }
    CudaOptions options;
    options.devices = devices;
    VARVE_ASSIGN_OR_RETURN(source_, CudaTensorSource::Create(options));
    used_ = devices;
    return Status::Ok();
  }
  const std::vector<int>& used() const override { return used_; }

  Status Follow(const std::vector<uintptr_t>& streams) override {
    return ForEach(streams, [&](const CudaStream& stream) { return source_->Follow(stream); });
  }
  Status Release(const std::vector<uintptr_t>& streams) override {
    return ForEach(streams, [&](const CudaStream& stream) { return source_->Release(stream); });
  }

  Status Check(const Chunk& tensor) override {
    if (source_ == nullptr) {
      return Status::InvalidArgument("device " + std::to_string(tensor.device) +
                                     " is not one of this checkpointer");
    }
    return source_->Check(tensor);
  }
  Status Prepare(std::span<const Chunk> chunks, std::span<std::byte> host) override {
    return source_ == nullptr ? Status::Ok() : source_->Prepare(chunks, host);
  }
  Status PrepareDigestNow(std::span<const Chunk> chunks) override {
    return source_ == nullptr ? Status::Ok() : source_->PrepareDigestNow(chunks);
  }
  std::span<std::byte> bounce() override {
    return source_ == nullptr ? std::span<std::byte>() : source_->bounce();
  }

  // Without tensors on a device no checkpointer calls these.
  Status MarkBegin() override { return source_->MarkBegin(); }
  Status BeginDigests(uint64_t seed, Trainer trainer) override {
    return source_->BeginDigests(seed, std::move(trainer));
  }
  Result<std::span<const Digest>> TakeDigests(size_t have) override {
    return source_->TakeDigests(have);
  }
  Result<uint64_t> CopyToHost(std::span<const Copy> copies) override {
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
  Status Write(std::span<const std::byte> from, int device, std::byte* to, int half) override {
    return source_->Write(from, device, to, half);
  }
  Status AwaitWrites(int half) override { return source_->AwaitWrites(half); }
  Status CopyOnDevice(int device, std::span<const Block> blocks) override {
    return source_->CopyOnDevice(device, blocks);
  }

 private:
  // Makes the call for each used device, even after one has failed. Returns the first error.
  template <typename Call>
  Status ForEach(const std::vector<uintptr_t>& streams, const Call& call) const {
    if (streams.size() != used_.size()) {
      return Status::InvalidArgument(std::to_string(streams.size()) + " streams for " +
                                     std::to_string(used_.size()) + " devices");
    }
    Status first;
    for (size_t i = 0; i < used_.size(); ++i) {
      const Status status = call({used_[i], reinterpret_cast<cudaStream_t>(streams[i])});
      if (first.ok()) first = status;
    }
    return first;
  }

  std::vector<int> used_;
  std::shared_ptr<CudaTensorSource> source_;  // null before Use
};

}  // namespace

std::string CudaVersion() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

std::shared_ptr<Devices> Devices::Make() { return std::make_shared<CudaDevices>(); }

}  // namespace varve::python
