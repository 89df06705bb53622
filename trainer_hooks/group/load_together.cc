// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/load_together.h"

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/util.h"
#include "trainer_hooks/group/agree.h"
#include "trainer_hooks/group/exchange.h"

namespace varve::internal {

namespace {

using Names = std::set<std::string, std::less<>>;

// Collective. Returns the names that any rank has.
template <typename Mine>
Result<Names> GatherNames(RankGroup* ranks, const Mine& mine) {
  std::string text;  // each name with a zero behind it
  for (const std::string& name : mine) text += name + '\0';
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks->AllGather(AsBytes(text)));
  Names names;
  for (const auto& of_rank : all) {
    std::string_view left = AsString(of_rank);
    for (size_t end = left.find('\0'); end != left.npos; end = left.find('\0')) {
      names.emplace(left.substr(0, end));
      left.remove_prefix(end + 1);
    }
  }
  return names;
}

Result<LoadOptions> WithNamesOfAllRanks(RankGroup* ranks, const LoadOptions& options,
                                        const TrainingState& into) {
  std::vector<std::string> mine;
  for (const StateTensor& tensor : into.tensors) mine.push_back(tensor.name);
  VARVE_ASSIGN_OR_RETURN(const Names names, GatherNames(ranks, mine));
  LoadOptions with = options;
  with.rank = static_cast<uint32_t>(ranks->rank());
  with.on_other_ranks.insert(names.begin(), names.end());
  return with;
}

// Reads together with the other ranks, each call with theirs.
class TogetherReader : public RegionReader {
 public:
  explicit TogetherReader(RankGroup* ranks) : ranks_(ranks) {}

  Status Read(const CheckpointReader& reader, std::span<const ReadRequest> requests) override {
    agreed_ = Agree(ranks_, ListOnce(reader));
    if (agreed_.ok()) agreed_ = ReadTogether(reader, *shards_, requests, ranks_);
    return agreed_;
  }
  std::optional<int> device() const override { return ranks_->device(); }
  Result<std::vector<bool>> ReadToDevice(const CheckpointReader& reader,
                                         std::span<const DeviceRead> reads,
                                         const std::set<std::string>& others,
                                         DeviceTensorSource* devices) override {
    std::vector<bool> filled(reads.size());
    if (!device().has_value()) return filled;  // on no rank
    agreed_ = Agree(ranks_, ListOnce(reader));
    if (agreed_.ok()) agreed_ = ReadTheseToDevice(reader, reads, others, devices, &filled);
    VARVE_RETURN_IF_ERROR(agreed_);
    return filled;
  }
  Result<Rounds> AgreeOnRounds(const RankPieces& mine) override {
    agreed_ = Agree(ranks_, Status::Ok());
    VARVE_RETURN_IF_ERROR(agreed_);
    const auto lists = ranks_->AllGather(EncodePieces(mine));
    agreed_ = lists.status();
    VARVE_RETURN_IF_ERROR(agreed_);
    return PlanRoundsOf(*lists);
  }
  // Collective. Returns how the load has ended on all ranks, when it has ended so on this one. A
  // rank whose load ends early comes here while the others begin their next call. That call starts
  // with the same Agree, so the others hear of the error there.
  Status Finish(const Status& load) {
    if (agreed_.ok()) agreed_ = Agree(ranks_, load);
    return agreed_;
  }

 private:
  Status ReadTheseToDevice(const CheckpointReader& reader, std::span<const DeviceRead> reads,
                           const std::set<std::string>& others, DeviceTensorSource* devices,
                           std::vector<bool>* filled) {
    VARVE_ASSIGN_OR_RETURN(const Names without, GatherNames(ranks_, others));
    std::vector<ReadRequest> these;
    std::vector<size_t> places;
    for (size_t i = 0; i < reads.size(); ++i) {
      if (without.contains(reads[i].origin)) continue;
      these.push_back(reads[i].request);
      places.push_back(i);
    }
    std::vector<bool> filled_these;
    VARVE_RETURN_IF_ERROR(
        ReadTogetherToDevice(reader, *shards_, these, ranks_, devices, &filled_these));
    for (size_t i = 0; i < places.size(); ++i) (*filled)[places[i]] = filled_these[i];
    return Status::Ok();
  }
  Status ListOnce(const CheckpointReader& reader) {
    if (shards_.has_value()) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(ShardOutline outline, reader.OutlineShards());
    shards_ = std::move(outline.shards);
    return Status::Ok();
  }

  RankGroup* const ranks_;
  std::optional<std::vector<TensorInfo>> shards_;  // of the checkpoint
  Status agreed_;                                  // on all ranks
};

Result<LoadReport> LoadWithExchange(RankGroup* ranks, const LoadOptions& options,
                                    const LoadOne& load) {
  TogetherReader read(ranks);
  Result<LoadReport> report = load(options, &read);
  VARVE_RETURN_IF_ERROR(read.Finish(report.status()));
  return report;
}

}  // namespace

Result<LoadReport> LoadTogether(RankGroup* ranks, const LoadOptions& options,
                                const TrainingState& into, const LoadOne& load) {
  VARVE_ASSIGN_OR_RETURN(const LoadOptions with, WithNamesOfAllRanks(ranks, options, into));
  VARVE_ASSIGN_OR_RETURN(const bool exchange, IsTrueOnAny(ranks, options.exchange));
  if (exchange) return LoadWithExchange(ranks, with, load);
  LoneReader read;
  Result<LoadReport> report = load(with, &read);
  VARVE_RETURN_IF_ERROR(Agree(ranks, report.status()));
  return report;
}

}  // namespace varve::internal
