// SPDX-License-Identifier: Apache-2.0
//
// What the page asks about a store, as JSON. Where a verb tells the same, its function is called
// (cli/verbs/reports.h), so that page and command never differ. docs/view.md lists the requests.
//
// Thread rule: any thread. Caches may be shared.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/sharing.h"
#include "cli/verbs/reports.h"
#include "cli/view/cache.h"
#include "cli/view/query.h"
#include "store/ops/history.h"
#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal::cli {

// What one rank holds of a checkpoint. In a store without ranks, what all shards of one number are.
struct RankPart {
  uint64_t num_shards = 0;
  uint64_t bytes = 0;
  std::map<std::string, uint64_t> bytes_by_role;
};

struct RankParts {
  bool has_ranks = false;
  std::map<uint32_t, RankPart> parts;  // by rank, or by number of the shard
};

// What differs between two steps, and the bytes of the later one's tensors, by name.
struct StepsDiff {
  CheckpointDiff diff;
  std::vector<TensorBytes> bytes;
};

// A diff of the tensors that a request asks for, summed up.
struct ComparedSteps {
  std::vector<std::string> added;
  std::vector<std::string> removed;
  std::vector<TensorDiff> changed;
  uint64_t num_unchanged = 0;
  uint64_t changed_bytes = 0;
  bool has_values = false;
  nlohmann::ordered_json layers;
};

// Answers about steps that are expensive, and small enough to be kept.
struct Caches {
  Cache<Listing> listings{4};
  Cache<StoredSizes> stored{4};
  Cache<RankParts> ranks{4};
  Cache<StepsDiff> diffs{4};
  Cache<ComparedSteps> compared{8};
  Cache<StepsDiff> tensor_diffs{16};  // of one tensor each
  Cache<bool> values_fit{16};         // one request may compare the values of all changed tensors
  Cache<Sharing> sharing{1};
  Cache<nlohmann::ordered_json> forgets{4};
  Cache<std::vector<TensorChange>> logs{4};
};

// One request.
struct Ask {
  const Store& store;
  const std::string& path;      // of the store: a folder or a URL
  const std::string& snapshot;  // of a remote store, the number of the open one
  const std::string& warning;   // says why there may be a newer one. Empty = there is none
  const Query& query;
  Caches& caches;
};

// The bytes of tensors that one request may decode.
inline constexpr uint64_t kMaxDecodedBytes = uint64_t{16} << 20;

using Answer = Result<nlohmann::ordered_json>;

// Names all that these steps are. Any step that is added, dropped, saved anew, tagged or measured
// changes it.
std::string KeyOf(const std::vector<CheckpointInfo>& steps);

Answer AnswerStore(const Ask& ask);
Answer AnswerRuns(const Ask& ask);
Answer AnswerLineage(const Ask& ask);
Answer AnswerSteps(const Ask& ask);
Answer AnswerCurves(const Ask& ask);
Answer AnswerNear(const Ask& ask);
Answer AnswerStats(const Ask& ask);
Answer AnswerSpace(const Ask& ask);
Answer AnswerSharing(const Ask& ask);
Answer AnswerForget(const Ask& ask);
Answer AnswerShow(const Ask& ask);
Answer AnswerTensors(const Ask& ask);
Answer AnswerTree(const Ask& ask);
Answer AnswerRanks(const Ask& ask);
Answer AnswerShards(const Ask& ask);
Answer AnswerTensor(const Ask& ask);
Answer AnswerLog(const Ask& ask);
Answer AnswerDiff(const Ask& ask);
Answer AnswerHealth(const Ask& ask);

// The step that a parameter names, open. `key` names it in caches: a step that was dropped and
// saved anew has another one.
struct OpenStep {
  CheckpointId id;
  std::unique_ptr<ShardedReader> reader;
  std::string key;
};
Result<OpenStep> OpenAskedStep(const Ask& ask, const std::string& parameter);

// All tensors of a step, from the cache.
Result<std::shared_ptr<const Listing>> TensorsOf(const Ask& ask, const OpenStep& step);

// The rows of an array that a page shows: {total, offset, rows}.
nlohmann::ordered_json CutRows(const PageOfRows& page, nlohmann::ordered_json rows);

}  // namespace varve::internal::cli
