// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/exchange.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes_of.h"
#include "base/coding.h"
#include "base/digest.h"
#include "base/util.h"
#include "store/shards/overlap.h"
#include "store/shards/regions.h"
#include "store/shards/strided_copy.h"
#include "trainer_hooks/group/agree.h"
#include "trainer_hooks/group/exchange_plan.h"

namespace varve::internal {

namespace {

// Any seed: the digest of a message is that of what was sent.
constexpr uint64_t kExchangeSeed = 0;
// A device digests parts of a message at once. The last part may have up to twice as many bytes.
constexpr size_t kPartBytes = size_t{1} << 20;

using Round = std::vector<ExchangeItem>;
using Message = std::vector<std::byte>;
using Parts = std::vector<std::span<const std::byte>>;

Parts CutMessage(std::span<const std::byte> message) {
  Parts parts;
  while (message.size() >= 2 * kPartBytes) {
    parts.push_back(message.first(kPartBytes));
    message = message.subspan(kPartBytes);
  }
  if (!message.empty()) parts.push_back(message);
  return parts;
}

Message DigestsOf(std::span<const std::byte> message) {
  Message digests;
  for (const auto part : CutMessage(message)) {
    const Digest digest = ComputeDigest(kExchangeSeed, part);
    AppendBytes(std::as_bytes(std::span(&digest, 1)), &digests);
  }
  return digests;
}

Status Damaged(size_t rank) {
  return Status::Corruption("what rank " + std::to_string(rank) + " has sent is damaged");
}

class Exchange {
 public:
  // `device`: the requests are for its memory, on which `devices` copies. kHost: they are for the
  // host's.
  Exchange(const CheckpointReader& reader, std::span<const TensorInfo> shards,
           std::span<const ReadRequest> requests, RankGroup* ranks, int device = kHost,
           DeviceTensorSource* devices = nullptr)
      : reader_(reader),
        shards_(shards),
        requests_(requests),
        ranks_(ranks),
        rank_(static_cast<uint32_t>(ranks->rank())),
        device_(device),
        devices_(devices),
        is_exchanged_(requests.size()) {}

  Status Run() {
    FindWanted();
    VARVE_ASSIGN_OR_RETURN(const auto lists, ranks_->AllGather(EncodeHeld(wanted_)));
    VARVE_RETURN_IF_ERROR(Agree(ranks_, MakePlan(lists)));
    NoteExchanged();
    Status status = device_ == kHost ? ReadAlone() : Status::Ok();
    const std::vector<Round>& rounds = plan_.rounds;
    ReadAhead next = BeginRead(rounds, 0);
    for (size_t i = 0; i < rounds.size(); ++i) {
      Result<Items> read = next.get();
      if (status.ok()) status = read.status();
      VARVE_RETURN_IF_ERROR(Agree(ranks_, status));
      next = BeginRead(rounds, i + 1);  // while this one is on its way
      read_ = *std::move(read);
      VARVE_RETURN_IF_ERROR(SendAndReceive(rounds[i], &status));
    }
    return Agree(ranks_, status);
  }
  // By request: whether it comes by the exchange.
  const std::vector<bool>& is_exchanged() const { return is_exchanged_; }

 private:
  // What this rank has read of a round.
  using Items = std::map<const ExchangeItem*, std::vector<std::byte>>;
  // Waits for it when it goes.
  using ReadAhead = std::future<Result<Items>>;

  void FindWanted();
  std::optional<HeldTensor> AsWanted(const ReadRequest& request);
  Status MakePlan(const std::vector<std::vector<std::byte>>& lists);
  void NoteExchanged();
  Status ReadAlone();
  ReadAhead BeginRead(const std::vector<Round>& rounds, size_t i) const;
  Result<Items> Read(const Round& round) const;
  // Returns an error of the group. `received` is ok when what has arrived is right and in its
  // place.
  Status SendAndReceive(const Round& round, Status* received);
  // What this rank sends in a round, by rank. Ranks that want the same share a message.
  std::vector<std::shared_ptr<const Message>> PackAll(const Round& round) const;
  Message Pack(const Round& round, uint32_t to) const;
  Status ReceiveOnHost(const Round& round, const std::vector<Message>& arrived);
  Status ReceiveOnDevice(const Round& round, const std::vector<RankGroup::BodyOnDevice>& arrived);
  Status CheckOnDevice(const std::vector<RankGroup::BodyOnDevice>& arrived) const;
  // Calls `use(const DeviceTensorSource::Block&)` for each block that goes from what a rank has
  // sent to its place.
  template <typename Use>
  Status ForEachArrival(const Round& round, std::span<const std::span<const std::byte>> bodies,
                        Use use) const;
  // What an item and a region have in common, in bytes: `use(const CopyBlock&)`, on all ranks in
  // one order.
  template <typename Use>
  void ForEachBlock(const ExchangeItem& item, uint32_t region, Use use) const {
    const uint64_t element = BytesOf(shards_[item.shard].dtype, 1);
    Overlap(item.layout, plan_.regions[region])
        .ForEachBlock(Overlap::kEverywhere, [&](const CopyBlock& block) {
          use(CopyBlock{block.source * element, block.target * element, block.length * element,
                        block.count, block.source_step * element, block.target_step * element});
        });
  }

  const CheckpointReader& reader_;
  const std::span<const TensorInfo> shards_;
  const std::span<const ReadRequest> requests_;
  RankGroup* const ranks_;
  const uint32_t rank_;
  const int device_;
  DeviceTensorSource* const devices_;
  std::vector<bool> is_exchanged_;  // by request
  std::vector<HeldTensor> wanted_;
  std::deque<std::string> layouts_;  // the bytes of the layouts of wanted_
  std::vector<size_t> request_of_;   // of each of wanted_
  ExchangePlan plan_;
  Items read_;  // of the round that is sent
};

void Exchange::FindWanted() {
  for (size_t i = 0; i < requests_.size(); ++i) {
    std::optional<HeldTensor> wanted = AsWanted(requests_[i]);
    if (!wanted.has_value()) continue;
    wanted_.push_back(*std::move(wanted));
    request_of_.push_back(i);
  }
}

// Returns nullopt if the rank should read this by itself. That is so if the request has a fault,
// which the read then reports, if it takes a shard with its padding, if elements share bytes, or if
// there is padding on a device.
std::optional<HeldTensor> Exchange::AsWanted(const ReadRequest& request) {
  std::vector<ShardLayout> layouts;
  auto it = std::ranges::lower_bound(shards_, request.name(), {}, &TensorInfo::name);
  for (; it != shards_.end() && it->name == request.name(); ++it) {
    layouts.push_back(LayoutOf(*it));
    if (DTypeBits(it->dtype) % 8 != 0) return std::nullopt;
  }
  if (layouts.empty()) return std::nullopt;
  const TensorInfo& last = *(it - 1);
  const ShardLayout wanted =
      Canonical(request.region() != nullptr ? *request.region()
                                            : ShardLayout::Whole(layouts[0].global_shape));
  const Result<RegionPlan> plan = PlanRegion(layouts, wanted);
  const bool has_padding = wanted.NumHeld() != wanted.NumLocal();
  if (!plan.ok() || (plan->same.has_value() && has_padding)) return std::nullopt;
  if (device_ != kHost && has_padding) return std::nullopt;
  const uint64_t bytes = BytesOf(last.dtype, wanted.NumLocal());
  if (request.out().size() != bytes || bytes == 0) return std::nullopt;
  return HeldTensor{
      .name = last.name, .dtype = last.dtype, .layout = layouts_.emplace_back(LayoutBytes(wanted))};
}

Status Exchange::MakePlan(const std::vector<std::vector<std::byte>>& lists) {
  std::vector<std::vector<HeldTensor>> wanted;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    Result<std::vector<HeldTensor>> list = DecodeHeld(lists[rank]);
    const Status fits = list.ok() ? CheckWanted(shards_, *list) : list.status();
    if (!fits.ok()) return fits.WithContext("what rank " + std::to_string(rank) + " wants");
    wanted.push_back(*std::move(list));
  }
  plan_ = PlanExchange(shards_, wanted, kExchangeBudgetBytes / 2);  // two rounds at a time
  return Status::Ok();
}

void Exchange::NoteExchanged() {
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (plan_.is_exchanged[rank_][i]) is_exchanged_[request_of_[i]] = true;
  }
}

// What shares no chunk with other ranks.
Status Exchange::ReadAlone() {
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const size_t request = request_of_[i];
    if (is_exchanged_[request]) FillPadding(requests_[request], wanted_[i].Layout());
  }
  std::vector<ReadRequest> alone;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (!is_exchanged_[i]) alone.push_back(requests_[i]);
  }
  return alone.empty() ? Status::Ok() : reader_.ReadMany(alone);
}

// Reads on another thread. After the last round there is nothing to read.
Exchange::ReadAhead Exchange::BeginRead(const std::vector<Round>& rounds, size_t i) const {
  if (i == rounds.size()) return {};
  const auto read = [this, &round = rounds[i]]() -> Result<Items> {
    try {
      return Read(round);
    } catch (const std::exception& error) {  // out of memory
      return Status::Unavailable(std::string("reading for other ranks: ") + error.what());
    }
  };
  try {
    return std::async(std::launch::async, read);
  } catch (const std::exception&) {  // no more threads are to be had
    return std::async(std::launch::deferred, read);
  }
}

Result<Exchange::Items> Exchange::Read(const Round& round) const {
  Items read;
  std::vector<ReadRequest> requests;
  for (const ExchangeItem& item : round) {
    if (item.reader != rank_) continue;
    const TensorInfo& shard = shards_[item.shard];
    std::vector<std::byte>& bytes = read[&item];
    bytes.resize(static_cast<size_t>(item.layout.NumLocal()) * BytesOf(shard.dtype, 1));
    requests.push_back(ReadRequest::Shard(shard.name, shard.shard, bytes, item.layout));
  }
  if (!requests.empty()) VARVE_RETURN_IF_ERROR(reader_.ReadMany(requests));
  return read;
}

// The message has what rank `to` wants of each item that this rank has read, in the order of the
// items. A message for the host starts with its digest.
Message Exchange::Pack(const Round& round, uint32_t to) const {
  Message message;
  for (const ExchangeItem& item : round) {
    if (item.reader != rank_) continue;
    const std::span<const std::byte> bytes = read_.at(&item);
    for (const ExchangeItem::Consumer& consumer : item.consumers) {
      if (consumer.rank != to) continue;
      if (message.empty() && device_ == kHost) message.resize(sizeof(Digest));
      ForEachBlock(item, consumer.region, [&](const CopyBlock& block) {
        const size_t at = message.size();
        message.resize(at + block.length * block.count);
        CopyRuns(bytes.data() + block.source, static_cast<int64_t>(block.source_step),
                 message.data() + at, static_cast<int64_t>(block.length), block.length,
                 static_cast<int64_t>(block.count));
      });
    }
  }
  if (message.empty() || device_ != kHost) return message;
  const Digest digest = ComputeDigest(kExchangeSeed, std::span(message).subspan(sizeof(Digest)));
  std::memcpy(message.data(), &digest, sizeof digest);
  return message;
}

std::vector<std::shared_ptr<const Message>> Exchange::PackAll(const Round& round) const {
  using Contents = std::vector<std::pair<const ExchangeItem*, uint32_t>>;
  std::map<Contents, std::shared_ptr<const Message>> messages;
  std::vector<std::shared_ptr<const Message>> to_each;
  for (uint32_t to = 0; to < static_cast<uint32_t>(ranks_->size()); ++to) {
    Contents contents;
    for (const ExchangeItem& item : round) {
      for (const ExchangeItem::Consumer& consumer : item.consumers) {
        if (item.reader == rank_ && consumer.rank == to) {
          contents.emplace_back(&item, consumer.region);
        }
      }
    }
    const auto [it, is_new] = messages.try_emplace(std::move(contents));
    if (is_new) it->second = std::make_shared<const Message>(Pack(round, to));
    to_each.push_back(it->second);
  }
  return to_each;
}

Status Exchange::SendAndReceive(const Round& round, Status* received) {
  const auto messages = PackAll(round);
  if (device_ != kHost) {
    std::map<const Message*, Message> digests;
    std::vector<RankGroup::HeadAndBody> to_each;
    for (const auto& message : messages) {
      const auto [it, is_new] = digests.try_emplace(message.get());
      if (is_new) it->second = DigestsOf(*message);
      to_each.push_back({it->second, *message});
    }
    VARVE_ASSIGN_OR_RETURN(const auto arrived, ranks_->AllToAllToDevice(to_each));
    *received = ReceiveOnDevice(round, arrived);
    return Status::Ok();
  }
  std::vector<std::span<const std::byte>> to_each;
  for (const auto& message : messages) to_each.emplace_back(*message);
  VARVE_ASSIGN_OR_RETURN(const auto arrived, ranks_->AllToAll(to_each));
  *received = ReceiveOnHost(round, arrived);
  return Status::Ok();
}

Status Exchange::ReceiveOnHost(const Round& round, const std::vector<Message>& arrived) {
  std::vector<std::span<const std::byte>> bodies(arrived.size());
  for (size_t from = 0; from < arrived.size(); ++from) {
    const std::span<const std::byte> message = arrived[from];
    if (message.empty()) continue;
    Digest digest;
    if (message.size() < sizeof digest) return Damaged(from);
    std::memcpy(&digest, message.data(), sizeof digest);
    bodies[from] = message.subspan(sizeof digest);
    if (digest != ComputeDigest(kExchangeSeed, bodies[from])) return Damaged(from);
  }
  return ForEachArrival(round, bodies, [](const DeviceTensorSource::Block& block) {
    CopyRuns(block.from, static_cast<int64_t>(block.from_step), block.to,
             static_cast<int64_t>(block.to_step), block.bytes, static_cast<int64_t>(block.count));
  });
}

Status Exchange::ReceiveOnDevice(const Round& round,
                                 const std::vector<RankGroup::BodyOnDevice>& arrived) {
  VARVE_RETURN_IF_ERROR(CheckOnDevice(arrived));
  std::vector<std::span<const std::byte>> bodies;
  for (const auto& message : arrived) bodies.push_back(message.body);
  std::vector<DeviceTensorSource::Block> blocks;
  VARVE_RETURN_IF_ERROR(ForEachArrival(
      round, bodies, [&](const DeviceTensorSource::Block& block) { blocks.push_back(block); }));
  return blocks.empty() ? Status::Ok() : devices_->CopyOnDevice(device_, blocks);
}

// Digests what has arrived where it lies.
Status Exchange::CheckOnDevice(const std::vector<RankGroup::BodyOnDevice>& arrived) const {
  std::vector<DeviceTensorSource::Chunk> parts;
  std::vector<size_t> senders;
  Message expected;
  for (size_t from = 0; from < arrived.size(); ++from) {
    const Parts of_message = CutMessage(arrived[from].body);
    if (arrived[from].head.size() != of_message.size() * sizeof(Digest)) return Damaged(from);
    AppendBytes(arrived[from].head, &expected);
    for (const auto part : of_message) parts.push_back({device_, part});
    senders.insert(senders.end(), of_message.size(), from);
  }
  if (parts.empty()) return Status::Ok();
  if (devices_ == nullptr) return Damaged(senders[0]);  // this rank wants nothing
  VARVE_RETURN_IF_ERROR(devices_->PrepareDigestNow(parts));
  VARVE_ASSIGN_OR_RETURN(const Digest* const found, devices_->DigestNow(kExchangeSeed, parts));
  for (size_t i = 0; i < parts.size(); ++i) {
    Digest digest;
    std::memcpy(&digest, expected.data() + i * sizeof digest, sizeof digest);
    if (found[i] != digest) return Damaged(senders[i]);
  }
  return Status::Ok();
}

template <typename Use>
Status Exchange::ForEachArrival(const Round& round,
                                std::span<const std::span<const std::byte>> bodies, Use use) const {
  std::vector<size_t> used(bodies.size());
  for (const ExchangeItem& item : round) {
    for (const ExchangeItem::Consumer& consumer : item.consumers) {
      if (consumer.rank != rank_) continue;
      const std::span<const std::byte> body = bodies[item.reader];
      size_t& at = used[item.reader];
      bool fits = true;
      std::byte* const out = requests_[request_of_[consumer.wanted]].out().data();
      ForEachBlock(item, consumer.region, [&](const CopyBlock& block) {
        const uint64_t n = block.length * block.count;
        fits = fits && at + n <= body.size();
        if (!fits) return;
        use(DeviceTensorSource::Block{.from = body.data() + at,
                                      .to = out + block.target,
                                      .bytes = block.length,
                                      .count = block.count,
                                      .from_step = block.length,
                                      .to_step = block.target_step});
        at += n;
      });
      if (fits) continue;
      return Status::Corruption("rank " + std::to_string(item.reader) +
                                " has sent less than tensor " + shards_[item.shard].name +
                                " needs");
    }
  }
  return Status::Ok();
}

}  // namespace

Status ReadTogether(const CheckpointReader& reader, std::span<const TensorInfo> shards,
                    std::span<const ReadRequest> requests, RankGroup* ranks) {
  return Exchange(reader, shards, requests, ranks).Run();
}

Status ReadTogetherToDevice(const CheckpointReader& reader, std::span<const TensorInfo> shards,
                            std::span<const ReadRequest> requests, RankGroup* ranks,
                            DeviceTensorSource* devices, std::vector<bool>* filled) {
  Exchange exchange(reader, shards, requests, ranks, ranks->device().value_or(kHost), devices);
  VARVE_RETURN_IF_ERROR(exchange.Run());
  *filled = exchange.is_exchanged();
  return Status::Ok();
}

}  // namespace varve::internal
