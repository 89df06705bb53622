// SPDX-License-Identifier: Apache-2.0
//
// Answers about one step: its tensors as a table and as a tree, and who holds them.
#include <algorithm>
#include <future>
#include <set>
#include <utility>

#include "base/glob.h"
#include "cli/json.h"
#include "cli/view/answers.h"
#include "cli/view/chosen_tensors.h"
#include "cli/view/last_change.h"
#include "varve/digest.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

// Rows whose last change is looked for. Each costs about fifteen look-ups in records.
constexpr size_t kMaxLastChanges = 200;
// Groups of the treemap are opened up to so many boxes, and of a group with many children so many
// are shown. More cannot be told apart.
constexpr size_t kMaxOpened = 60;
constexpr size_t kMaxBoxes = 1024;

// Which of the listed tensors to show, in which order.
using Order = std::vector<const LsEntry*>;

uint64_t StoredOf(const StoredSizes& sizes, const LsEntry& entry) {
  const auto found = sizes.by_tensor.find(entry.name);
  return found == sizes.by_tensor.end() ? 0 : found->second;
}

// Looks each key up once, because a look-up in a map takes longer than a comparison.
template <class Key>
void SortBy(Order* order, bool down, const Key& key) {
  std::vector<std::pair<decltype(key(*order->front())), const LsEntry*>> keyed;
  keyed.reserve(order->size());
  for (const LsEntry* entry : *order) keyed.emplace_back(key(*entry), entry);
  std::ranges::stable_sort(keyed, [down](const auto& a, const auto& b) {
    return down ? b.first < a.first : a.first < b.first;
  });
  std::ranges::transform(keyed, order->begin(), [](const auto& pair) { return pair.second; });
}

Result<std::shared_ptr<const StoredSizes>> AllStoredSizes(const Ask& ask, const OpenStep& step) {
  return ask.caches.stored.Get(step.key, [&] { return MeasureStored(*step.reader, "*"); });
}

// Both lists of a large step take long, so they are made side by side.
Result<std::shared_ptr<const Listing>> TensorsToSort(const Ask& ask, const OpenStep& step) {
  if (ask.query.Text("sort") != "stored") return TensorsOf(ask, step);
  auto sizes = std::async(std::launch::async, [&] { return AllStoredSizes(ask, step); });
  auto listing = TensorsOf(ask, step);
  VARVE_RETURN_IF_ERROR(sizes.get().status());
  return listing;
}

Status Sort(const Ask& ask, const OpenStep& step, Order* order) {
  VARVE_ASSIGN_OR_RETURN(const std::string by,
                         ask.query.OneOf("sort", "name bytes stored dtype role shards"));
  VARVE_ASSIGN_OR_RETURN(const std::string direction, ask.query.OneOf("order", "up down"));
  const bool down = direction == "down";
  if (by == "bytes") SortBy(order, down, [](const LsEntry& entry) { return entry.logical_bytes; });
  if (by == "shards") SortBy(order, down, [](const LsEntry& entry) { return entry.num_shards; });
  if (by == "dtype") SortBy(order, down, [](const LsEntry& entry) { return entry.dtype; });
  if (by == "role") SortBy(order, down, [](const LsEntry& entry) { return entry.role; });
  if (by == "name" && down) std::ranges::reverse(*order);
  if (by == "stored") {
    VARVE_ASSIGN_OR_RETURN(const auto sizes, AllStoredSizes(ask, step));
    SortBy(order, down, [&](const LsEntry& entry) { return StoredOf(*sizes, entry); });
  }
  return Status::Ok();
}

// Measures the tensors of one page of the table only.
Result<StoredSizes> MeasureRows(const OpenStep& step, std::span<const LsEntry* const> rows) {
  NameSet names;
  for (const LsEntry* entry : rows) names.insert(entry->name);
  return MeasureStored(ChosenTensors(*step.reader, std::move(names)), "*");
}

Result<LastChange> LastChangeUpTo(const Ask& ask, const CheckpointId& id) {
  VARVE_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> steps, ask.store.ListCheckpoints(id.run));
  std::erase_if(steps, [&id](const CheckpointInfo& info) { return info.id.step > id.step; });
  return LastChange(ask.store, std::move(steps));
}

std::string DigestText(const LsEntry& entry) {
  const auto& content = entry.content;
  if (content[0] == 0 && content[1] == 0) return "";
  return ToHex({content[0], content[1]});
}

// Looks for the steps at which tensors changed last. What earlier steps cannot tell, as after
// damage, is not known, and errors say why.
class LastChanges {
 public:
  LastChanges(const Ask& ask, const CheckpointId& id, std::vector<std::string>* errors)
      : last_change_(LastChangeUpTo(ask, id)), errors_(errors) {
    if (!last_change_.ok()) Note(last_change_.status());
  }
  ordered_json Of(const std::string& name) {
    if (!last_change_.ok() || num_errors_ >= kMaxErrors) return nullptr;
    const auto changed = last_change_->Of(name);
    if (!changed.ok()) Note(changed.status());
    return changed.ok() && *changed ? ordered_json(**changed) : ordered_json();
  }

 private:
  // Each error has looked for a newer state of the store several times.
  static constexpr int kMaxErrors = 10;

  void Note(const Status& status) {
    ++num_errors_;
    std::string text = "the step of a last change is not known: " + status.message();
    if (std::ranges::find(*errors_, text) == errors_->end()) errors_->push_back(std::move(text));
  }

  Result<LastChange> last_change_;
  std::vector<std::string>* const errors_;
  int num_errors_ = 0;
};

// The elements of ls --stored --json, each with what else the table shows.
Answer RowsOf(const Ask& ask, const OpenStep& step, std::span<const LsEntry* const> entries,
              std::vector<std::string>* errors) {
  Listing measured;
  VARVE_ASSIGN_OR_RETURN(measured.stored, MeasureRows(step, entries));
  *errors = measured.stored->errors;
  LastChanges last_changes(ask, step.id, errors);
  auto rows = ordered_json::array();
  for (const LsEntry* entry : entries) {
    ordered_json row = ToJson(measured, *entry);
    row["role"] = TensorRoleName(entry->role);
    row["digest"] = DigestText(*entry);
    if (entries.size() <= kMaxLastChanges) row["last_changed"] = last_changes.Of(entry->name);
    rows.push_back(std::move(row));
  }
  return rows;
}

// The part of a name up to and with the first separator behind `prefix`, or all of it.
std::string_view ChildOf(std::string_view name, size_t prefix) {
  const size_t end = name.find_first_of("./", prefix);
  return end == std::string_view::npos ? name : name.substr(0, end + 1);
}

struct Node {
  uint64_t num_tensors = 0;
  uint64_t bytes = 0;
  const LsEntry* tensor = nullptr;  // if it is one
  TensorRole role = TensorRole::kOther;
  bool is_mixed = false;  // of several roles
};
using Nodes = std::map<std::string, Node>;

// What lies below a prefix, one level down. Entries are ordered by name.
Nodes ChildrenOf(const Listing& listing, const std::string& prefix) {
  Nodes nodes;
  auto entry = std::ranges::lower_bound(listing.entries, prefix, {}, &LsEntry::name);
  for (; entry != listing.entries.end() && entry->name.starts_with(prefix); ++entry) {
    const std::string child(ChildOf(entry->name, prefix.size()));
    Node& node = nodes[child];
    if (node.num_tensors > 0 && node.role != entry->role) node.is_mixed = true;
    node.role = entry->role;
    ++node.num_tensors;
    node.bytes += entry->logical_bytes;
    if (child == entry->name) node.tensor = &*entry;
  }
  // "a." may be a tensor and the start of "a.b", which must be within reach.
  for (auto& [name, node] : nodes) {
    if (node.num_tensors > 1) node.tensor = nullptr;
  }
  return nodes;
}

// Opens the largest groups, as long as all boxes can be told apart.
void OpenGroups(const Listing& listing, Nodes* nodes) {
  std::set<std::string> too_many;
  while (nodes->size() < kMaxOpened) {
    auto largest = nodes->end();
    for (auto node = nodes->begin(); node != nodes->end(); ++node) {
      if (node->second.tensor != nullptr || too_many.contains(node->first)) continue;
      if (largest == nodes->end() || largest->second.bytes < node->second.bytes) largest = node;
    }
    if (largest == nodes->end()) return;
    const std::string name = largest->first;
    Nodes children = ChildrenOf(listing, name);
    if (nodes->size() - 1 + children.size() > kMaxOpened) {
      too_many.insert(name);
    } else {
      nodes->erase(largest);
      nodes->merge(children);
    }
  }
}

ordered_json ToObject(const std::string& name, const Node& node) {
  return {{"name", name},
          {"tensors", node.num_tensors},
          {"bytes", node.bytes},
          {"is_tensor", node.tensor != nullptr},
          {"role", node.is_mixed ? ordered_json() : ordered_json(TensorRoleName(node.role))}};
}

// The largest boxes, and one for all the others.
ordered_json ToBoxes(const Nodes& nodes) {
  std::vector<const Nodes::value_type*> sorted;
  for (const auto& node : nodes) sorted.push_back(&node);
  std::ranges::stable_sort(sorted,
                           [](auto* a, auto* b) { return a->second.bytes > b->second.bytes; });
  auto boxes = ordered_json::array();
  Node others{.is_mixed = true};
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i < kMaxBoxes - 1 || sorted.size() == kMaxBoxes) {
      boxes.push_back(ToObject(sorted[i]->first, sorted[i]->second));
    } else {
      others.num_tensors += sorted[i]->second.num_tensors;
      others.bytes += sorted[i]->second.bytes;
    }
  }
  if (others.num_tensors > 0) {
    ordered_json rest = ToObject("", others);
    rest["boxes"] = sorted.size() - (kMaxBoxes - 1);
    boxes.push_back(std::move(rest));
  }
  return boxes;
}

Result<RankParts> GatherParts(const ShardedReader& reader) {
  VARVE_ASSIGN_OR_RETURN(const auto shards, reader.FindStored());
  RankParts gathered;
  for (const StoredShard& shard : shards) {
    if (shard.rank) gathered.has_ranks = true;
    RankPart& part = gathered.parts[shard.rank.value_or(shard.number)];
    const uint64_t bytes = shard.record.LogicalBytes();
    ++part.num_shards;
    part.bytes += bytes;
    part.bytes_by_role[std::string(TensorRoleName(shard.record.role))] += bytes;
  }
  return gathered;
}

}  // namespace

Result<OpenStep> OpenAskedStep(const Ask& ask, const std::string& parameter) {
  OpenStep step;
  VARVE_ASSIGN_OR_RETURN(const std::string text, ask.query.Needed(parameter));
  VARVE_ASSIGN_OR_RETURN(step.id, ask.store.Resolve(text));
  VARVE_ASSIGN_OR_RETURN(step.reader, ShardedReader::Open(ask.store, step.id.run, step.id.step));
  step.key = step.id.run + "@" + std::to_string(step.id.step) + " " +
             IsoTime(step.reader->info().created) + " " + ask.snapshot;
  return step;
}

Result<std::shared_ptr<const Listing>> TensorsOf(const Ask& ask, const OpenStep& step) {
  return ask.caches.listings.Get(step.key, [&] { return ListTensors(*step.reader, {.step = ""}); });
}

Answer AnswerShow(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const std::string step, ask.query.Needed("step"));
  return ShowCheckpoint(ask.store, ask.path, step);
}

Answer AnswerTensors(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const PageOfRows page, ask.query.Page());
  VARVE_ASSIGN_OR_RETURN(const OpenStep step, OpenAskedStep(ask, "step"));
  VARVE_ASSIGN_OR_RETURN(const auto listing, TensorsToSort(ask, step));
  const std::string glob = ask.query.Text("glob", "*");
  Order order;
  uint64_t bytes = 0;
  for (const LsEntry& entry : listing->entries) {
    if (!MatchesGlob(glob, entry.name)) continue;
    order.push_back(&entry);
    bytes += entry.logical_bytes;
  }
  VARVE_RETURN_IF_ERROR(Sort(ask, step, &order));
  const auto [begin, end] = page.Of(order.size());
  std::vector<std::string> errors;
  VARVE_ASSIGN_OR_RETURN(
      ordered_json rows,
      RowsOf(ask, step, std::span<const LsEntry* const>(order).subspan(begin, end - begin),
             &errors));
  return ordered_json{{"run", step.id.run},     {"step", step.id.step}, {"total", order.size()},
                      {"logical_bytes", bytes}, {"offset", begin},      {"rows", std::move(rows)},
                      {"errors", errors}};
}

// The boxes of the treemap below a prefix. A level with a single child is passed over.
Answer AnswerTree(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const OpenStep step, OpenAskedStep(ask, "step"));
  VARVE_ASSIGN_OR_RETURN(const auto listing, TensorsOf(ask, step));
  std::string prefix = ask.query.Text("prefix");
  Nodes nodes = ChildrenOf(*listing, prefix);
  while (nodes.size() == 1 && nodes.begin()->second.tensor == nullptr) {
    prefix = nodes.begin()->first;
    nodes = ChildrenOf(*listing, prefix);
  }
  OpenGroups(*listing, &nodes);
  Node all;
  for (const auto& [name, node] : nodes) {
    all.num_tensors += node.num_tensors;
    all.bytes += node.bytes;
  }
  return ordered_json{{"prefix", prefix},
                      {"tensors", all.num_tensors},
                      {"bytes", all.bytes},
                      {"boxes", ToBoxes(nodes)}};
}

Answer AnswerRanks(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const PageOfRows page, ask.query.Page());
  VARVE_ASSIGN_OR_RETURN(const OpenStep step, OpenAskedStep(ask, "step"));
  VARVE_ASSIGN_OR_RETURN(const auto topology, step.reader->ReadTopology());
  VARVE_ASSIGN_OR_RETURN(const auto gathered,
                         ask.caches.ranks.Get(step.key, [&] { return GatherParts(*step.reader); }));
  auto rows = ordered_json::array();
  for (const auto& [number, part] : gathered->parts) {
    rows.push_back({{gathered->has_ranks ? "rank" : "shard", number},
                    {"shards", part.num_shards},
                    {"bytes", part.bytes},
                    {"bytes_by_role", part.bytes_by_role}});
  }
  ordered_json object = CutRows(page, std::move(rows));
  object["has_ranks"] = gathered->has_ranks;
  object["topology"] = topology ? ToJson(*topology) : ordered_json();
  return object;
}

Answer AnswerShards(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const PageOfRows page, ask.query.Page());
  VARVE_ASSIGN_OR_RETURN(const std::string step, ask.query.Needed("step"));
  VARVE_ASSIGN_OR_RETURN(const std::string name, ask.query.Needed("name"));
  VARVE_ASSIGN_OR_RETURN(ordered_json shards, ShowShards(ask.store, step, name));
  return CutRows(page, std::move(shards));
}

}  // namespace varve::internal::cli
