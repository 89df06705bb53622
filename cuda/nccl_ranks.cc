// SPDX-License-Identifier: Apache-2.0
//
// Ranks that agree on each call over a group of the host, and then move its bytes in pieces: host,
// pinned memory, device, NCCL, device, and from there over pinned memory to the host, unless they
// stay on the device.
#include "varve/nccl_ranks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/coding.h"
#include "cuda/nccl_comm.h"
#include "cuda/resources.h"

namespace varve {
using namespace internal;

namespace {

using namespace gpu;

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

// Room for one piece each way. There are two slots: the host copies from and to one while NCCL
// moves the other.
struct Slot {
  PinnedBuffer<std::byte> out_on_host, in_on_host;
  DeviceBuffer<std::byte> out, in;
  Event done;
  // The operation under way. Empty = none.
  std::string what;
  std::span<std::byte> target;  // where that belongs which arrives
};

Result<Slot> MakeSlot(size_t bytes) {
  Slot slot;
  VARVE_ASSIGN_OR_RETURN(slot.out_on_host, AllocatePinned<std::byte>(bytes));
  VARVE_ASSIGN_OR_RETURN(slot.in_on_host, AllocatePinned<std::byte>(bytes));
  VARVE_ASSIGN_OR_RETURN(slot.out, AllocateOnDevice<std::byte>(bytes));
  VARVE_ASSIGN_OR_RETURN(slot.in, AllocateOnDevice<std::byte>(bytes));
  VARVE_ASSIGN_OR_RETURN(slot.done, MakeEvent());
  return slot;
}

struct Pipe {
  Stream stream;
  std::array<Slot, 2> slots;
  size_t next = 0;
  // What went to the device last in this call, and where it still is.
  ByteView uploaded;
  const std::byte* uploaded_to = nullptr;
};

// On the current device.
Result<Pipe> MakePipe(size_t piece_bytes) {
  if (piece_bytes == 0) return Status::InvalidArgument("NcclOptions: piece_bytes is 0");
  Pipe pipe;
  VARVE_ASSIGN_OR_RETURN(pipe.stream, MakeStream());
  for (Slot& slot : pipe.slots) {
    VARVE_ASSIGN_OR_RETURN(slot, MakeSlot(piece_bytes));
  }
  return pipe;
}

template <typename T>
std::span<T> PieceAt(std::span<T> all, size_t at, size_t size) {
  return at < all.size() ? all.subspan(at, std::min(size, all.size() - at)) : std::span<T>();
}

// Where a message that arrives belongs.
struct Target {
  std::span<std::byte> bytes;
  bool is_on_device = false;
};

// Memory of a device for messages that stay there. It grows, and is filled anew by each call.
class Arrivals {
 public:
  // Makes room for messages of these lengths on the current device, and returns their places.
  Result<std::vector<std::span<std::byte>>> Place(std::span<const uint64_t> lengths) {
    uint64_t bytes = 0;
    std::vector<uint64_t> begins;
    for (const uint64_t length : lengths) {
      if (length > kMost - bytes) {
        return Status::InvalidArgument("messages of more than " + std::to_string(kMost) + " bytes");
      }
      begins.push_back(bytes);
      bytes = std::min(kMost, bytes + (length + kLine - 1) / kLine * kLine);
    }
    if (bytes > memory_.size()) {
      memory_ = {};  // not both at once
      VARVE_ASSIGN_OR_RETURN(memory_, AllocateOnDevice<std::byte>(bytes));
    }
    std::vector<std::span<std::byte>> places;
    for (size_t i = 0; i < lengths.size(); ++i) {
      places.emplace_back(memory_.data() + begins[i], lengths[i]);
    }
    return places;
  }

 private:
  static constexpr uint64_t kLine = 256;  // each message is aligned for kernels
  static constexpr uint64_t kMost = uint64_t{1} << 60;
  DeviceBuffer<std::byte> memory_;
};

ByteView View(const uint64_t& length) { return std::as_bytes(std::span(&length, 1)); }

Result<uint64_t> ReadLength(const Bytes& bytes, int name) {
  if (bytes.size() == sizeof(uint64_t)) return LoadLittle<uint64_t>(bytes.data());
  return Status::InvalidArgument("rank " + std::to_string(name) + " sent " +
                                 std::to_string(bytes.size()) + " bytes instead of a length");
}

class NcclGroup : public RankGroup {
 public:
  NcclGroup(std::unique_ptr<RankGroup> control, std::unique_ptr<NcclComm> comm, Pipe pipe,
            std::vector<int> names, const NcclOptions& options)
      : options_(options),
        rank_(control->rank()),
        names_(std::move(names)),
        pipe_(std::move(pipe)),
        control_(std::move(control)),
        comm_(std::move(comm)) {}

  // The others must learn first that this rank leaves. Otherwise they could wait for it while it
  // waits for them.
  ~NcclGroup() override {
    control_.reset();
    const DeviceScope scope(options_.device);
    if (!failure_.ok()) comm_->Abort();
    comm_.reset();
    (void)cudaStreamSynchronize(pipe_.stream.get());  // nothing touches the pipe any more
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(names_.size()); }
  std::vector<int> gone() const override {
    const std::lock_guard lock(control_mutex_);
    return control_ == nullptr ? std::vector<int>() : control_->gone();  // null: this rank has left
  }
  void set_timeout(std::chrono::milliseconds timeout) override {
    options_.timeout = timeout;
    if (!failure_.ok()) return;
    control_->set_timeout(timeout);
    comm_->set_timeout(timeout);
  }

  Status Barrier() override {
    VARVE_RETURN_IF_ERROR(failure_);
    return Keep(control_->Barrier());
  }
  Result<std::vector<Bytes>> AllGather(ByteView mine) override {
    VARVE_RETURN_IF_ERROR(failure_);
    return Keep(control_->AllGather(mine));
  }
  Result<std::vector<int64_t>> AllReduce(std::span<const int64_t> mine,
                                         Reduction reduction) override {
    VARVE_RETURN_IF_ERROR(failure_);
    return Keep(control_->AllReduce(mine, reduction));
  }
  Result<Bytes> Broadcast(ByteView bytes, int root) override;
  Result<std::vector<Bytes>> AllToAll(std::span<const ByteView> to_each) override;
  std::optional<int> device() const override { return options_.device; }
  Result<std::vector<BodyOnDevice>> AllToAllToDevice(std::span<const HeadAndBody> to_each) override;
  Result<std::unique_ptr<RankGroup>> Split(int color) override;

 private:
  // Keeps an error, so that all later calls return it.
  Status Keep(Status status) { return failure_ = std::move(status); }
  template <typename T>
  Result<T> Keep(Result<T> result) {
    failure_ = result.status();
    return result;
  }
  // After an error that `control_` does not know, it closes, so that the other ranks fail, too.
  Status Leave(const Status& why) {
    comm_->Abort();
    std::unique_ptr<RankGroup> left;  // closes outside of the lock
    {
      const std::lock_guard lock(control_mutex_);
      left = std::move(control_);
    }
    return Keep(why);
  }

  Status BroadcastPieces(ByteView bytes, int root, Bytes* received);
  Result<std::vector<Target>> PlaceArrivals(std::span<const uint64_t> lengths);
  Status ExchangeAll(std::span<const ByteView> to_each, std::span<const Target> from_each);
  Status ExchangePiece(size_t at, ByteView out, int to, const Target& in, int from);

  // Passes one piece through the next slot. `launch(out, in)` gives it to NCCL, with the places of
  // both on the device.
  template <typename Launch>
  Status Move(std::string what, ByteView out, std::span<std::byte> in, const Launch& launch);
  Status Upload(const Slot& slot, ByteView out);
  Status Finish(Slot* slot);
  Status FinishAll();
  std::string NameOf(int rank) const { return "rank " + std::to_string(names_[rank]); }

  NcclOptions options_;
  const int rank_;
  const std::vector<int> names_;  // of the ranks, in messages
  Status failure_;
  Pipe pipe_;
  Arrivals arrivals_;
  mutable std::mutex control_mutex_;  // `gone` may be asked while Leave takes it away
  std::unique_ptr<RankGroup> control_;
  std::unique_ptr<NcclComm> comm_;
};

Result<Bytes> NcclGroup::Broadcast(ByteView bytes, int root) {
  VARVE_RETURN_IF_ERROR(failure_);
  VARVE_ASSIGN_OR_RETURN(const Bytes sent, Keep(control_->Broadcast(View(bytes.size()), root)));
  const auto length = ReadLength(sent, names_[root]);
  if (!length.ok()) return Leave(length.status());
  Bytes received(*length);
  if (rank_ == root) std::ranges::copy(bytes, received.begin());
  const Status status = BroadcastPieces(bytes, root, &received);
  if (!status.ok()) return Leave(status);
  return received;
}

Status NcclGroup::BroadcastPieces(ByteView bytes, int root, Bytes* received) {
  const DeviceScope scope(options_.device);
  VARVE_RETURN_IF_ERROR(scope.status());
  pipe_.uploaded = {};
  for (size_t at = 0; at < received->size(); at += options_.piece_bytes) {
    const auto in = PieceAt(std::span(*received), at, options_.piece_bytes);
    const bool is_root = rank_ == root;
    VARVE_RETURN_IF_ERROR(
        Move("broadcast from " + NameOf(root) + " at byte " + std::to_string(at) + " of " +
                 std::to_string(received->size()),
             is_root ? PieceAt(bytes, at, in.size()) : ByteView(),
             is_root ? std::span<std::byte>() : in, [&](const std::byte* from, std::byte* to) {
               return comm_->Broadcast(from, to, in.size(), root, pipe_.stream.get());
             }));
  }
  return FinishAll();
}

Result<std::vector<Bytes>> NcclGroup::AllToAll(std::span<const ByteView> to_each) {
  VARVE_RETURN_IF_ERROR(failure_);
  std::vector<uint64_t> lengths;
  for (const ByteView message : to_each) lengths.push_back(message.size());
  std::vector<ByteView> views;
  for (const uint64_t& length : lengths) views.push_back(View(length));
  VARVE_ASSIGN_OR_RETURN(const auto sent, Keep(control_->AllToAll(views)));
  std::vector<Bytes> received(sent.size());
  std::vector<Target> from_each;
  for (int r = 0; r < size(); ++r) {
    const auto length = ReadLength(sent[r], names_[r]);
    if (!length.ok()) return Leave(length.status());
    received[r].resize(*length);
    from_each.push_back({received[r]});
  }
  const Status status = ExchangeAll(to_each, from_each);
  if (!status.ok()) return Leave(status);
  return received;
}

Result<std::vector<RankGroup::BodyOnDevice>> NcclGroup::AllToAllToDevice(
    std::span<const HeadAndBody> to_each) {
  VARVE_RETURN_IF_ERROR(failure_);
  std::vector<Bytes> fronts;  // the length of a body, and the head
  std::vector<ByteView> front_views, bodies;
  for (const HeadAndBody& message : to_each) {
    Bytes& front = fronts.emplace_back();
    AppendLittle(uint64_t{message.body.size()}, &front);
    AppendBytes(message.head, &front);
    bodies.push_back(message.body);
  }
  for (const Bytes& front : fronts) front_views.emplace_back(front);
  VARVE_ASSIGN_OR_RETURN(auto sent, Keep(control_->AllToAll(front_views)));
  std::vector<uint64_t> lengths;
  for (int r = 0; r < size(); ++r) {
    Bytes& front = sent[r];
    const auto begin = front.begin() + std::min(front.size(), sizeof(uint64_t));
    const auto length = ReadLength({front.begin(), begin}, names_[r]);
    if (!length.ok()) return Leave(length.status());
    lengths.push_back(*length);
    front.erase(front.begin(), begin);
  }
  const auto targets = PlaceArrivals(lengths);
  const Status status = targets.ok() ? ExchangeAll(bodies, *targets) : targets.status();
  if (!status.ok()) return Leave(status);
  std::vector<BodyOnDevice> received;
  for (int r = 0; r < size(); ++r) received.push_back({std::move(sent[r]), (*targets)[r].bytes});
  return received;
}

Result<std::vector<Target>> NcclGroup::PlaceArrivals(std::span<const uint64_t> lengths) {
  const DeviceScope scope(options_.device);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_ASSIGN_OR_RETURN(const auto places, arrivals_.Place(lengths));
  std::vector<Target> targets;
  for (const auto place : places) targets.push_back({place, true});
  return targets;
}

// All ranks go the same round for each piece: in each step every rank sends to one rank and
// receives from one. A rank sends to itself the same way, so a group of one is no special case. A
// piece that goes to several ranks in turn goes to the device once.
Status NcclGroup::ExchangeAll(std::span<const ByteView> to_each,
                              std::span<const Target> from_each) {
  const DeviceScope scope(options_.device);
  VARVE_RETURN_IF_ERROR(scope.status());
  pipe_.uploaded = {};
  size_t longest = 0;
  for (const ByteView message : to_each) longest = std::max(longest, message.size());
  for (const Target& target : from_each) longest = std::max(longest, target.bytes.size());
  for (size_t at = 0; at < longest; at += options_.piece_bytes) {
    for (int step = 0; step < size(); ++step) {
      const int to = (rank_ + step) % size();
      const int from = (rank_ + size() - step) % size();
      VARVE_RETURN_IF_ERROR(ExchangePiece(at, to_each[to], to, from_each[from], from));
    }
  }
  return FinishAll();
}

Status NcclGroup::ExchangePiece(size_t at, ByteView out, int to, const Target& in, int from) {
  const ByteView next_out = PieceAt(out, at, options_.piece_bytes);
  const std::span<std::byte> next_in = PieceAt(in.bytes, at, options_.piece_bytes);
  if (next_out.empty() && next_in.empty()) return Status::Ok();
  return Move("all-to-all: to " + NameOf(to) + " and from " + NameOf(from) + " at byte " +
                  std::to_string(at),
              next_out, in.is_on_device ? std::span<std::byte>() : next_in,
              [&](const std::byte* out_there, std::byte* in_there) {
                std::byte* const into = in.is_on_device ? next_in.data() : in_there;
                return comm_->Exchange({out_there, next_out.size(), to},
                                       {into, next_in.size(), from}, pipe_.stream.get());
              });
}

template <typename Launch>
Status NcclGroup::Move(std::string what, ByteView out, std::span<std::byte> in,
                       const Launch& launch) {
  Slot& slot = pipe_.slots[pipe_.next++ % pipe_.slots.size()];
  VARVE_RETURN_IF_ERROR(Finish(&slot));
  slot.what = std::move(what) + ", on " + NameOf(rank_);
  slot.target = in;
  const std::byte* from = slot.out.data();
  if (!out.empty()) {
    VARVE_RETURN_IF_ERROR(Upload(slot, out));
    from = pipe_.uploaded_to;
  }
  if (Status status = launch(from, slot.in.data()); !status.ok()) {
    return status.WithContext(slot.what);
  }
  if (!in.empty()) {
    VARVE_CUDA(cudaMemcpyAsync(slot.in_on_host.data(), slot.in.data(), in.size(),
                               cudaMemcpyDeviceToHost, pipe_.stream.get()));
  }
  VARVE_CUDA(cudaEventRecord(slot.done.get(), pipe_.stream.get()));
  return Status::Ok();
}

// What has been there since the last upload is not overwritten before all that reads it: it is work
// of the same stream.
Status NcclGroup::Upload(const Slot& slot, ByteView out) {
  const bool is_there = out.data() == pipe_.uploaded.data() && out.size() == pipe_.uploaded.size();
  if (is_there) return Status::Ok();
  std::memcpy(slot.out_on_host.data(), out.data(), out.size());
  VARVE_CUDA(cudaMemcpyAsync(slot.out.data(), slot.out_on_host.data(), out.size(),
                             cudaMemcpyHostToDevice, pipe_.stream.get()));
  pipe_.uploaded = out;
  pipe_.uploaded_to = slot.out.data();
  return Status::Ok();
}

Status NcclGroup::Finish(Slot* slot) {
  if (slot->what.empty()) return Status::Ok();
  const std::string what = std::exchange(slot->what, {});
  if (Status status = comm_->Await(slot->done.get()); !status.ok()) return status.WithContext(what);
  if (!slot->target.empty()) {
    std::memcpy(slot->target.data(), slot->in_on_host.data(), slot->target.size());
  }
  return Status::Ok();
}

Status NcclGroup::FinishAll() {
  for (size_t i = 0; i < pipe_.slots.size(); ++i) {
    VARVE_RETURN_IF_ERROR(Finish(&pipe_.slots[pipe_.next++ % pipe_.slots.size()]));
  }
  return Status::Ok();
}

// The message that all ranks exchange before they meet over NCCL. `id` is valid in the first
// rank's.
struct Hello {
  uint64_t piece_bytes = 0;
  uint64_t name = 0;
  ncclUniqueId id{};
};

// Returns ok when all ranks are ok.
Status AllOk(RankGroup* host, const Status& mine) {
  const auto texts = host->AllGather(std::as_bytes(std::span(mine.message())));
  VARVE_RETURN_IF_ERROR(mine);
  VARVE_RETURN_IF_ERROR(texts.status());
  for (size_t r = 0; r < texts->size(); ++r) {
    const Bytes& text = (*texts)[r];
    if (text.empty()) continue;
    return Status::Unavailable(
        "rank " + std::to_string(r) +
        " has no NCCL: " + std::string(reinterpret_cast<const char*>(text.data()), text.size()));
  }
  return Status::Ok();
}

Result<std::vector<Hello>> Meet(RankGroup* host, const Hello& mine) {
  VARVE_ASSIGN_OR_RETURN(const auto all, host->AllGather(std::as_bytes(std::span(&mine, 1))));
  std::vector<Hello> hellos(all.size());
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != sizeof(Hello)) {
      return Status::InvalidArgument("rank " + std::to_string(r) + " is of another varve");
    }
    std::memcpy(&hellos[r], all[r].data(), sizeof(Hello));
    if (hellos[r].piece_bytes == hellos[0].piece_bytes) continue;
    return Status::InvalidArgument(
        "NcclOptions: piece_bytes is " + std::to_string(hellos[r].piece_bytes) + " on rank " +
        std::to_string(r) + " and " + std::to_string(hellos[0].piece_bytes) + " on rank 0");
  }
  return hellos;
}

// `name` is this rank's name in messages.
Result<std::unique_ptr<RankGroup>> MakeGroup(RankGroup* host, int name,
                                             const NcclOptions& options) {
  const DeviceScope scope(options.device);
  Hello mine{.piece_bytes = options.piece_bytes, .name = static_cast<uint64_t>(name)};
  Result<Pipe> pipe = scope.status().ok() ? MakePipe(options.piece_bytes) : scope.status();
  Status ready = pipe.status();
  if (ready.ok() && host->rank() == 0) {
    ready = FromNccl(ncclGetUniqueId(&mine.id), "ncclGetUniqueId");
  }
  VARVE_RETURN_IF_ERROR(AllOk(host, ready));
  VARVE_ASSIGN_OR_RETURN(const auto hellos, Meet(host, mine));
  std::vector<int> names;
  for (const Hello& hello : hellos) names.push_back(static_cast<int>(hello.name));

  auto comm = NcclComm::Join(hellos[0].id, host->rank(), host->size(), options.timeout);
  VARVE_RETURN_IF_ERROR(AllOk(host, comm.status()));
  // The group has its own control group, so that its calls are counted from 1.
  VARVE_ASSIGN_OR_RETURN(auto control, host->Split(0));
  return Result<std::unique_ptr<RankGroup>>(std::make_unique<NcclGroup>(
      std::move(control), *std::move(comm), *std::move(pipe), std::move(names), options));
}

Result<std::unique_ptr<RankGroup>> NcclGroup::Split(int color) {
  VARVE_RETURN_IF_ERROR(failure_);
  VARVE_ASSIGN_OR_RETURN(const auto part, Keep(control_->Split(color)));
  auto group = MakeGroup(part.get(), names_[rank_], options_);
  if (!group.ok()) return Leave(group.status());
  return group;
}

}  // namespace

Result<std::unique_ptr<RankGroup>> NcclRanks(RankGroup* host, const NcclOptions& options) {
  return MakeGroup(host, host->rank(), options);
}

}  // namespace varve
