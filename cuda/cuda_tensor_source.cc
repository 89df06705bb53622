// SPDX-License-Identifier: Apache-2.0
//
// Hands each chunk to the device that has it.
#include <atomic>
#include <future>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/one_device.h"
#include "varve/cuda.h"

namespace varve {
using namespace internal;

namespace {

using gpu::OneDevice;

constexpr uint64_t kMinBounceBytes = uint64_t{32} << 20;  // two pieces of a load

// Host memory that devices copy to and from at full speed while this object lives.
class PinnedRange {
 public:
  PinnedRange(int device, std::span<std::byte> range) : device_(device), range_(range) {}
  ~PinnedRange() {
    const gpu::DeviceScope scope(device_);
    (void)cudaHostUnregister(range_.data());
  }
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;
  const std::byte* data() const { return range_.data(); }
  size_t size() const { return range_.size(); }

  // Pins the range for all devices. A context exists on `device`.
  static Result<std::unique_ptr<PinnedRange>> Pin(int device, std::span<std::byte> range) {
    const gpu::DeviceScope scope(device);
    VARVE_RETURN_IF_ERROR(scope.status());
    const Status pinned = gpu::ToStatus(
        cudaHostRegister(range.data(), range.size(), cudaHostRegisterPortable), "cudaHostRegister");
    if (!pinned.ok()) return pinned.WithContext(std::to_string(range.size()) + " bytes of staging");
    return std::make_unique<PinnedRange>(device, range);
  }

 private:
  const int device_;
  const std::span<std::byte> range_;
};

class CudaTensorSourceImpl : public CudaTensorSource {
 public:
  Status Init(const CudaOptions& options) {
    if (options.bounce_bytes < kMinBounceBytes) {
      return Status::InvalidArgument("bounce_bytes is " + std::to_string(options.bounce_bytes) +
                                     ", expected at least " + std::to_string(kMinBounceBytes));
    }
    if (options.digest_part_bytes == 0) {
      return Status::InvalidArgument("digest_part_bytes is 0, expected at least 1");
    }
    for (const CudaStream& stream : options.streams) {
      if (devices_.contains(stream.device)) {
        return Status::InvalidArgument("two streams of device " + std::to_string(stream.device) +
                                       ", expected one of each device");
      }
      VARVE_ASSIGN_OR_RETURN(devices_[stream.device].one, OneDevice::Create(stream, options));
    }
    for (const int device : options.devices) {
      if (devices_.contains(device)) {
        return Status::InvalidArgument("device " + std::to_string(device) +
                                       " was given twice, expected once");
      }
      VARVE_ASSIGN_OR_RETURN(devices_[device].one, OneDevice::Create(device, options));
    }
    if (devices_.empty()) {
      return Status::InvalidArgument("CudaOptions names no device: fill in streams or devices");
    }
    const gpu::DeviceScope scope(devices_.begin()->first);
    VARVE_RETURN_IF_ERROR(scope.status());
    VARVE_ASSIGN_OR_RETURN(bounce_, gpu::AllocatePinned<std::byte>(options.bounce_bytes));
    return Status::Ok();
  }

  Result<cudaEvent_t> released(int device) const override {
    VARVE_ASSIGN_OR_RETURN(const OneDevice* one, Find(device));
    return one->released();
  }

  Status Follow(const CudaStream& stream) override {
    VARVE_ASSIGN_OR_RETURN(OneDevice * one, Find(stream.device));
    return one->Follow(stream.stream);
  }
  Status Release(const CudaStream& stream) override {
    VARVE_ASSIGN_OR_RETURN(const OneDevice* one, Find(stream.device));
    return one->Release(stream.stream);
  }

  Status Check(const Chunk& tensor) override {
    VARVE_ASSIGN_OR_RETURN(const OneDevice* one, Find(tensor.device));
    return one->Check(tensor.bytes);
  }

  Status Prepare(std::span<const Chunk> chunks, std::span<std::byte> host) override {
    VARVE_RETURN_IF_ERROR(Distribute(chunks));
    digests_.resize(chunks.size());
    for (auto& [id, device] : devices_) {
      VARVE_RETURN_IF_ERROR(OnDevice(id, device.one->Prepare(device.part.chunks)));
    }
    const bool is_pinned =
        pinned_ != nullptr && pinned_->data() == host.data() && pinned_->size() == host.size();
    if (is_pinned) return Status::Ok();
    pinned_.reset();
    if (host.empty()) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(pinned_, PinnedRange::Pin(devices_.begin()->first, host));
    return Status::Ok();
  }

  Status PrepareDigestNow(std::span<const Chunk> chunks) override {
    VARVE_ASSIGN_OR_RETURN(const auto parts, Divide(chunks));
    for (const auto& [id, part] : parts) {
      VARVE_RETURN_IF_ERROR(OnDevice(id, devices_.at(id).one->PrepareDigestNow(part.chunks)));
    }
    return Status::Ok();
  }

  Status MarkBegin() override {
    return InTurn([](Device& device) { return device.one->MarkBegin(); });
  }

  Status BeginDigests(uint64_t seed, Trainer trainer) override {
    return InTurn([&](Device& device) {
      device.taken = {};
      return device.one->BeginDigests(seed, trainer);
    });
  }

  Result<std::span<const Digest>> TakeDigests(size_t have) override {
    if (devices_.size() == 1) {
      auto& [id, device] = *devices_.begin();
      auto digests = device.one->TakeDigests(have);
      if (!digests.ok()) return OnDevice(id, digests.status());
      return digests;
    }
    // All devices digest at the same time. The next chunk's device is waited for.
    const auto& [next, own] = owners_[have];
    if (own >= next->taken.size()) {
      const auto digests = next->one->TakeDigests(own);
      if (!digests.ok()) return OnDevice(next->one->device(), digests.status());
      next->taken = *digests;
    }
    for (; have < owners_.size(); ++have) {
      const auto& [device, chunk] = owners_[have];
      if (chunk >= device->taken.size()) break;
      digests_[have] = device->taken[chunk];
    }
    return std::span<const Digest>(digests_.data(), have);
  }

  Result<uint64_t> CopyToHost(std::span<const Copy> copies) override {
    for (auto& [id, device] : devices_) device.copies.clear();
    for (const Copy& copy : copies) {
      const auto& [device, chunk] = owners_[copy.chunk];
      device->copies.push_back({chunk, copy.to});
    }
    std::atomic<uint64_t> waited_bytes = 0;
    VARVE_RETURN_IF_ERROR(AtOnce([&](Device& device) -> Status {
      VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, device.one->CopyToHost(device.copies));
      waited_bytes += bytes;
      return Status::Ok();
    }));
    return waited_bytes.load();
  }

  Status MarkRelease() override {
    return InTurn([](Device& device) { return device.one->MarkRelease(); });
  }
  Status AwaitCopies() override {
    const Status drained = InTurn([](Device& device) { return device.one->Drain(); });
    const Status awaited = InTurn([](Device& device) { return device.one->AwaitCopies(); });
    return drained.ok() ? awaited : drained;
  }

  Result<const Digest*> DigestNow(uint64_t seed, std::span<const Chunk> chunks) override {
    digests_now_.resize(chunks.size());
    VARVE_ASSIGN_OR_RETURN(const auto parts, Divide(chunks));
    // All devices start before any is waited for.
    for (const auto& [id, part] : parts) devices_.at(id).one->BeginDigestNow(seed, part.chunks);
    Status first;
    for (const auto& [id, part] : parts) {
      const auto digests = devices_.at(id).one->TakeDigestNow();
      if (first.ok()) first = OnDevice(id, digests.status());
      if (!digests.ok()) continue;
      for (size_t i = 0; i < digests->size(); ++i) digests_now_[part.places[i]] = (*digests)[i];
    }
    VARVE_RETURN_IF_ERROR(first);
    return digests_now_.data();
  }
  Status Read(const Chunk& from, std::span<std::byte> to) override {
    VARVE_ASSIGN_OR_RETURN(OneDevice * one, Find(from.device));
    return OnDevice(from.device, one->Read(from.bytes, to));
  }
  std::span<std::byte> bounce() override { return {bounce_.data(), bounce_.size()}; }
  Status Write(std::span<const std::byte> from, int device, std::byte* to, int half) override {
    VARVE_ASSIGN_OR_RETURN(OneDevice * one, Find(device));
    return OnDevice(device, one->Write(from, to, half));
  }
  Status AwaitWrites(int half) override {
    return InTurn([half](Device& device) { return device.one->AwaitWrites(half); });
  }
  Status CopyOnDevice(int device, std::span<const Block> blocks) override {
    VARVE_ASSIGN_OR_RETURN(OneDevice * one, Find(device));
    return OnDevice(device, one->CopyOnDevice(blocks));
  }

 private:
  // The chunks of a list that one device has, and their places in the list.
  struct Part {
    std::vector<Chunk> chunks;
    std::vector<size_t> places;
  };
  // A device with its part of the chunks of the last Prepare.
  struct Device {
    std::unique_ptr<OneDevice> one;
    Part part;
    std::vector<OneDevice::Copy> copies;
    std::span<const Digest> taken;  // of the first of its chunks
  };

  static Status OnDevice(int device, const Status& status) {
    return status.WithContext("device " + std::to_string(device));
  }

  Result<OneDevice*> Find(int device) const {
    const auto it = devices_.find(device);
    if (it != devices_.end()) return it->second.one.get();
    return Status::InvalidArgument("CudaOptions does not name device " + std::to_string(device) +
                                   ": add it to streams or devices");
  }

  // Divides the chunks by device.
  Result<std::map<int, Part>> Divide(std::span<const Chunk> chunks) const {
    std::map<int, Part> parts;
    for (size_t i = 0; i < chunks.size(); ++i) {
      VARVE_RETURN_IF_ERROR(Find(chunks[i].device).status());
      Part& part = parts[chunks[i].device];
      part.chunks.push_back(chunks[i]);
      part.places.push_back(i);
    }
    return parts;
  }
  // Gives each device its chunks of the saves to come.
  Status Distribute(std::span<const Chunk> chunks) {
    VARVE_ASSIGN_OR_RETURN(auto parts, Divide(chunks));
    owners_.resize(chunks.size());
    for (auto& [id, device] : devices_) {
      device.part = std::move(parts[id]);
      const std::vector<size_t>& places = device.part.places;
      for (size_t i = 0; i < places.size(); ++i) owners_[places[i]] = {&device, i};
    }
    return Status::Ok();
  }

  // Makes the calls one after the other, even after one has failed. Returns the first error.
  template <typename Call>
  Status InTurn(const Call& call) {
    Status first;
    for (auto& [id, device] : devices_) {
      const Status status = call(device);
      if (first.ok()) first = OnDevice(id, status);
    }
    return first;
  }

  // Makes the call for all devices at the same time. It is for calls that wait.
  template <typename Call>
  Status AtOnce(const Call& call) {
    if (devices_.size() == 1) return InTurn(call);
    std::vector<std::future<Status>> calls;
    for (auto& entry : devices_) {
      calls.push_back(std::async([&call, &device = entry.second] { return call(device); }));
    }
    size_t i = 0;
    return InTurn([&](Device&) { return calls[i++].get(); });
  }

  std::map<int, Device> devices_;
  std::vector<std::pair<Device*, size_t>>
      owners_;  // of each chunk of the last Prepare, and which of its own
  std::vector<Digest> digests_;
  std::vector<Digest> digests_now_;
  std::unique_ptr<PinnedRange> pinned_;
  gpu::PinnedBuffer<std::byte> bounce_;
};

}  // namespace

Result<std::shared_ptr<CudaTensorSource>> CudaTensorSource::Create(const CudaOptions& options) {
  auto source = std::make_shared<CudaTensorSourceImpl>();
  VARVE_RETURN_IF_ERROR(source->Init(options));
  return std::shared_ptr<CudaTensorSource>(std::move(source));
}

}  // namespace varve
