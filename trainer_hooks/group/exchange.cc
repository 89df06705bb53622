// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/exchange.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <map>
#include <optional>
#include <utility>
#include <vector>

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
constexpr uint64_t kSeed = 0;

using Round = std::vector<ExchangeItem>;
using Message = std::vector<std::byte>;

class Exchange {
 public:
  Exchange(const CheckpointReader& reader, std::span<const TensorInfo> shards,
           std::span<const ReadRequest> requests, RankGroup* ranks)
      : reader_(reader),
        shards_(shards),
        requests_(requests),
        ranks_(ranks),
        rank_(static_cast<uint32_t>(ranks->rank())) {}

  Status Run() {
    FindWanted();
    VARVE_ASSIGN_OR_RETURN(const auto lists, ranks_->AllGather(AsBytes(EncodeHeld(wanted_))));
    VARVE_RETURN_IF_ERROR(Agree(ranks_, MakePlan(lists)));
    Status status = ReadAlone();
    const std::vector<Round>& rounds = plan_.rounds;
    ReadAhead next = BeginRead(rounds, 0);
    for (size_t i = 0; i < rounds.size(); ++i) {
      Result<Items> read = next.get();
      if (status.ok()) status = read.status();
      VARVE_RETURN_IF_ERROR(Agree(ranks_, status));
      next = BeginRead(rounds, i + 1);  // while this one is on its way
      read_ = *std::move(read);
      VARVE_ASSIGN_OR_RETURN(const auto received, Send(rounds[i]));
      status = Receive(rounds[i], received);
    }
    return Agree(ranks_, status);
  }

 private:
  // What this rank has read of a round.
  using Items = std::map<const ExchangeItem*, std::vector<std::byte>>;
  // Waits for it when it goes.
  using ReadAhead = std::future<Result<Items>>;

  void FindWanted();
  std::optional<HeldTensor> AsWanted(const ReadRequest& request) const;
  Status MakePlan(const std::vector<std::vector<std::byte>>& lists);
  Status ReadAlone();
  ReadAhead BeginRead(const std::vector<Round>& rounds, size_t i) const;
  Result<Items> Read(const Round& round) const;
  Result<std::vector<Message>> Send(const Round& round);
  Message Pack(const Round& round, uint32_t to) const;
  Status Receive(const Round& round, const std::vector<Message>& received);
  // What an item and a region have in common, in bytes: `use(const CopyBlock&)`, on all ranks in
  // one order.
  template <typename Use>
  void ForEachBlock(const ExchangeItem& item, uint32_t region, Use use) const {
    const auto element = static_cast<uint64_t>(DTypeBits(shards_[item.shard].dtype)) / 8;
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
  std::vector<HeldTensor> wanted_;
  std::vector<size_t> request_of_;  // of each of wanted_
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

// Nothing when it is better read as ever: what has a fault, which is then said; what comes from a
// shard with its padding; elements that share bytes.
std::optional<HeldTensor> Exchange::AsWanted(const ReadRequest& request) const {
  std::vector<ShardLayout> layouts;
  auto it = std::ranges::lower_bound(shards_, request.name(), {}, &TensorInfo::name);
  for (; it != shards_.end() && it->name == request.name(); ++it) {
    layouts.push_back(LayoutOfShard(*it));
    if (DTypeBits(it->dtype) % 8 != 0) return std::nullopt;
  }
  if (layouts.empty()) return std::nullopt;
  const TensorInfo& last = *(it - 1);
  HeldTensor wanted{{.name = std::string(request.name()), .dtype = last.dtype}};
  wanted.layout =
      Canonical(request.region() != nullptr ? *request.region()
                                            : ShardLayout::Whole(layouts[0].global_shape));
  const Result<RegionPlan> plan = PlanRegion(layouts, *wanted.layout);
  const bool has_padding = wanted.layout->NumHeld() != wanted.layout->NumLocal();
  if (!plan.ok() || (plan->same.has_value() && has_padding)) return std::nullopt;
  if (request.out().size() != wanted.Bytes() || wanted.Bytes() == 0) return std::nullopt;
  return wanted;
}

Status Exchange::MakePlan(const std::vector<std::vector<std::byte>>& lists) {
  std::vector<std::vector<HeldTensor>> wanted;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    Result<std::vector<HeldTensor>> list = DecodeHeld(AsString(lists[rank]));
    const Status fits = list.ok() ? CheckWanted(shards_, *list) : list.status();
    if (!fits.ok()) return fits.WithContext("what rank " + std::to_string(rank) + " wants");
    wanted.push_back(*std::move(list));
  }
  plan_ = PlanExchange(shards_, wanted, kExchangeBudgetBytes / 2);  // two rounds at a time
  return Status::Ok();
}

// What shares no chunk with other ranks.
Status Exchange::ReadAlone() {
  std::vector<bool> is_exchanged(requests_.size());
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (!plan_.is_exchanged[rank_][i]) continue;
    is_exchanged[request_of_[i]] = true;
    FillPadding(requests_[request_of_[i]], *wanted_[i].layout);
  }
  std::vector<ReadRequest> alone;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (!is_exchanged[i]) alone.push_back(requests_[i]);
  }
  return alone.empty() ? Status::Ok() : reader_.ReadMany(alone);
}

// On another thread; behind the last round there is nothing.
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
    bytes.resize(static_cast<size_t>(item.layout.NumLocal()) *
                 static_cast<size_t>(DTypeBits(shard.dtype)) / 8);
    requests.push_back(ReadRequest::Shard(shard.name, shard.shard, bytes, item.layout));
  }
  if (!requests.empty()) VARVE_RETURN_IF_ERROR(reader_.ReadMany(requests));
  return read;
}

// Of each item that this rank has read, what a rank wants, in their order; behind the digest of
// that.
Message Exchange::Pack(const Round& round, uint32_t to) const {
  Message message;
  for (const ExchangeItem& item : round) {
    if (item.reader != rank_) continue;
    const std::span<const std::byte> bytes = read_.at(&item);
    for (const ExchangeItem::Consumer& consumer : item.consumers) {
      if (consumer.rank != to) continue;
      if (message.empty()) message.resize(sizeof(Digest));
      ForEachBlock(item, consumer.region, [&](const CopyBlock& block) {
        const size_t at = message.size();
        message.resize(at + block.length * block.count);
        CopyRuns(bytes.data() + block.source, static_cast<int64_t>(block.source_step),
                 message.data() + at, static_cast<int64_t>(block.length), block.length,
                 static_cast<int64_t>(block.count));
      });
    }
  }
  if (message.empty()) return message;
  const Digest digest = ComputeDigest(kSeed, std::span(message).subspan(sizeof(Digest)));
  std::memcpy(message.data(), &digest, sizeof digest);
  return message;
}

Result<std::vector<Message>> Exchange::Send(const Round& round) {
  const auto size = static_cast<uint32_t>(ranks_->size());
  // Ranks that want the same get the same message.
  std::map<std::vector<std::pair<const ExchangeItem*, uint32_t>>, Message> messages;
  std::vector<std::span<const std::byte>> to_each(size);
  for (uint32_t to = 0; to < size; ++to) {
    std::vector<std::pair<const ExchangeItem*, uint32_t>> contents;
    for (const ExchangeItem& item : round) {
      for (const ExchangeItem::Consumer& consumer : item.consumers) {
        if (item.reader == rank_ && consumer.rank == to)
          contents.emplace_back(&item, consumer.region);
      }
    }
    const auto [it, is_new] = messages.try_emplace(std::move(contents));
    if (is_new) it->second = Pack(round, to);
    to_each[to] = it->second;
  }
  return ranks_->AllToAll(to_each);
}

Status Exchange::Receive(const Round& round, const std::vector<Message>& received) {
  std::vector<size_t> used(received.size(), sizeof(Digest));
  for (uint32_t from = 0; from < received.size(); ++from) {
    const std::span<const std::byte> message = received[from];
    if (message.empty()) continue;
    Digest digest;
    std::memcpy(&digest, message.data(), std::min(sizeof digest, message.size()));
    if (message.size() < sizeof digest ||
        digest != ComputeDigest(kSeed, message.subspan(sizeof digest))) {
      return Status::Corruption("what rank " + std::to_string(from) + " has sent is damaged");
    }
  }
  for (const ExchangeItem& item : round) {
    for (const ExchangeItem::Consumer& consumer : item.consumers) {
      if (consumer.rank != rank_) continue;
      const std::span<const std::byte> message = received[item.reader];
      size_t& at = used[item.reader];
      bool fits = true;
      std::byte* const out = requests_[request_of_[consumer.wanted]].out().data();
      ForEachBlock(item, consumer.region, [&](const CopyBlock& block) {
        const uint64_t n = block.length * block.count;
        fits = fits && at + n <= message.size();
        if (!fits) return;
        CopyRuns(message.data() + at, static_cast<int64_t>(block.length), out + block.target,
                 static_cast<int64_t>(block.target_step), block.length,
                 static_cast<int64_t>(block.count));
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

}  // namespace varve::internal
