// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/load_together.h"

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/util.h"
#include "store/read/sharded_reader.h"
#include "trainer_hooks/group/agree.h"
#include "trainer_hooks/group/exchange.h"

namespace varve::internal {

namespace {

Result<LoadOptions> WithNamesOfAllRanks(RankGroup* ranks, const LoadOptions& options,
                                        const TrainingState& into) {
  std::string names;  // each with a zero behind it
  for (const StateTensor& tensor : into.tensors) names += tensor.name + '\0';
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks->AllGather(AsBytes(names)));
  LoadOptions with = options;
  with.rank = static_cast<uint32_t>(ranks->rank());
  for (const auto& of_rank : all) {
    std::string_view left = AsString(of_rank);
    for (size_t end = left.find('\0'); end != left.npos; end = left.find('\0')) {
      with.on_other_ranks.emplace(left.substr(0, end));
      left.remove_prefix(end + 1);
    }
  }
  return with;
}

// Reads together with the other ranks, each call with theirs.
class TogetherReader : public RegionReader {
 public:
  explicit TogetherReader(RankGroup* ranks) : ranks_(ranks) {}

  Status Read(const CheckpointReader& reader, std::span<const ReadRequest> requests) override {
    --calls_left_;
    agreed_ = Agree(ranks_, ListOnce(reader));
    if (agreed_.ok()) agreed_ = ReadTogether(reader, *shards_, requests, ranks_);
    return agreed_;
  }
  Result<Rounds> AgreeOnRounds(const RankPieces& mine) override {
    agreed_ = Agree(ranks_, Status::Ok());
    VARVE_RETURN_IF_ERROR(agreed_);
    const auto lists = ranks_->AllGather(EncodePieces(mine));
    agreed_ = lists.status();
    VARVE_RETURN_IF_ERROR(agreed_);
    // An error ends the load, and the others hear of it by Finish.
    VARVE_ASSIGN_OR_RETURN(Rounds rounds, PlanRoundsOf(*lists));
    calls_left_ = rounds.count;
    return rounds;
  }
  // The load has ended so on this rank. If that was before its last call, the others hear of it
  // instead of reading.
  Status Finish(const Status& load) {
    if (agreed_.ok() && calls_left_ > 0) agreed_ = Agree(ranks_, load);
    return agreed_;
  }

 private:
  Status ListOnce(const CheckpointReader& reader) {
    if (shards_.has_value()) return Status::Ok();
    if (const ShardedReader* const sharded = ShardedReader::Of(reader); sharded != nullptr) {
      VARVE_ASSIGN_OR_RETURN(Outline outline, sharded->OutlineShards());
      shards_ = std::move(outline.infos);
      return Status::Ok();
    }
    VARVE_ASSIGN_OR_RETURN(shards_, reader.ListShards());
    return Status::Ok();
  }

  RankGroup* const ranks_;
  std::optional<std::vector<TensorInfo>> shards_;  // of the checkpoint
  Status agreed_;                                  // on all ranks
  size_t calls_left_ = 2;  // a Read and AgreeOnRounds, then a Read for each round
};

Result<LoadReport> LoadWithExchange(RankGroup* ranks, const LoadOptions& options,
                                    const LoadOne& load) {
  TogetherReader read(ranks);
  Result<LoadReport> report = load(options, &read);
  VARVE_RETURN_IF_ERROR(read.Finish(report.status()));
  VARVE_RETURN_IF_ERROR(Agree(ranks, report.status()));
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
