// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/load_together.h"

#include <optional>
#include <string>
#include <utility>

#include "store/util.h"
#include "trainer_hooks/group/agree.h"
#include "trainer_hooks/group/exchange.h"

namespace varve {
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

Result<LoadReport> LoadWithExchange(RankGroup* ranks, const LoadOptions& options,
                                    const LoadOne& load) {
  std::optional<Status> agreed;  // on all ranks
  const ReadRegions read = [&](const CheckpointReader& reader,
                               std::span<const ReadRequest> requests) {
    agreed = Agree(ranks, Status::Ok());
    if (agreed->ok()) agreed = ReadTogether(reader, requests, ranks);
    return *agreed;
  };
  Result<LoadReport> report = load(options, read);
  // It has failed before anything was read: the others hear of it instead of reading.
  if (!agreed.has_value()) agreed = Agree(ranks, report.status());
  VARVE_RETURN_IF_ERROR(*agreed);
  VARVE_RETURN_IF_ERROR(Agree(ranks, report.status()));
  return report;
}

}  // namespace

Result<LoadReport> LoadTogether(RankGroup* ranks, const LoadOptions& options,
                                const TrainingState& into, const LoadOne& load) {
  VARVE_ASSIGN_OR_RETURN(const LoadOptions with, WithNamesOfAllRanks(ranks, options, into));
  VARVE_ASSIGN_OR_RETURN(const bool exchange, IsTrueOnAny(ranks, options.exchange));
  if (exchange) return LoadWithExchange(ranks, with, load);
  Result<LoadReport> report = load(with, ReadThroughReader);
  VARVE_RETURN_IF_ERROR(Agree(ranks, report.status()));
  return report;
}

}  // namespace varve
