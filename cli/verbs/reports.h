// SPDX-License-Identifier: Apache-2.0
//
// What verbs tell with --json, for the verbs themselves and for `varve view`, which shows the same
// numbers in a browser. Each function lies in the file of its verb. The functions are stateless.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/tensor_stream.h"
#include "cli/verbs/tensor_summary.h"
#include "store/ops/stored_size.h"
#include "store/read/sharded_reader.h"
#include "varve/retention.h"
#include "varve/store.h"

namespace varve::internal::cli {

// runs. If the store is damaged, `runs` has those with a step that can be read, and `errors` names
// what is left out.
struct KnownRuns {
  std::vector<RunInfo> runs;
  std::vector<std::string> errors;
};
Result<KnownRuns> ListKnownRuns(const Store& store);
nlohmann::ordered_json ToJson(std::span<const RunInfo> runs);

// steps. Each of the result is an element of the array (cli/json.h).
struct StepsOptions {
  std::string run{};   // empty = all
  std::string last{};  // of each run. Empty = all
  std::string sort{};  // METRIC[:max|:min]. Empty = by run and step
};
Result<std::vector<CheckpointInfo>> ListSteps(const Store& store, const StepsOptions& options);
// The same of a damaged store: the steps that can be read, and errors that name what cannot.
// Without errors the list is whole. An error is returned when no step can be read.
Result<KnownCheckpoints> ListKnownSteps(const Store& store, const StepsOptions& options);

// ls
struct LsOptions {
  std::string step;
  std::string glob = "*";
  bool stored = false;
};
// All shards of one name: of tensors without layouts, type and shape are those of the first.
struct LsEntry : TensorSpec {
  uint64_t num_shards = 0;
  uint64_t logical_bytes = 0;
  std::array<uint64_t, 2> content{};  // as in TensorInfo. Zero for several shards
};
struct Listing {
  std::vector<LsEntry> entries;       // by name
  std::optional<StoredSizes> stored;  // with `stored`
};
Result<Listing> ListTensors(const ShardedReader& reader, const LsOptions& options);
nlohmann::ordered_json ToJson(const Listing& listing, const LsEntry& entry);

// show STEP. `path` is that of the store, and may be a URL.
Result<nlohmann::ordered_json> ShowCheckpoint(const Store& store, const std::string& path,
                                              const std::string& step);
// show STEP NAME
Result<nlohmann::ordered_json> ShowShards(const Store& store, const std::string& step,
                                          const std::string& name);

// stats
nlohmann::ordered_json ToJson(const StoreStats& stats);
// The checkpoints of all runs in the order in which they were saved.
Result<std::vector<CheckpointInfo>> ListBySaving(const Store& store);

// log
nlohmann::ordered_json ToJson(const std::string& tensor, const TensorChange& change);

// diff
nlohmann::ordered_json ToJson(const TensorDiff& tensor, bool with_values);

// get
struct TensorChoice {
  std::string name;
  std::string shard{};  // empty = the only one
  std::string slice{};  // empty = all
};
// What to read: a box of a tensor, and the tensor that comes out.
struct Selection {
  TensorInfo tensor;
  std::vector<Range> ranges;
  TensorInfo result;
};
Result<Selection> SelectTensor(const ShardedReader& reader, const TensorChoice& choice);
nlohmann::ordered_json ToJson(const TensorInfo& tensor, const TensorSummary& summary);

// forget
struct ForgetOptions {
  std::string keep_last{};
  std::string keep_every{};
  std::vector<std::string> keep_best{};
  std::string keep_within{};
  std::vector<std::string> keep_tags{};
  std::string run = "main";
  bool dry_run = false;
  bool no_reclaim = false;
  bool no_wait = false;
};
// forget --dry-run
Result<nlohmann::ordered_json> ForetellForget(const Store& store, ForgetOptions options);

// check
nlohmann::ordered_json ToJson(const CheckReport& report);

}  // namespace varve::internal::cli
