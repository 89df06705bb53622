// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/load/rank_states.h"

#include <algorithm>
#include <set>

#include "trainer_hooks/state/item_name.h"

namespace varve::internal {

namespace {

std::string ToText(const Topology& t) {
  std::string text;
  const auto add = [&](const char* name, uint32_t value, uint32_t usual) {
    if (value != usual) text += std::string(name) + " " + std::to_string(value) + ", ";
  };
  add("dp", t.dp, 1);
  add("tp", t.tp, 1);
  add("pp", t.pp, 1);
  add("vpp", t.vpp, 1);
  add("sp", t.sp, 1);
  add("cp", t.cp, 1);
  add("ep", t.ep, 1);
  add("ZeRO stage", t.zero_stage, 0);
  return text + std::to_string(t.world_size) + (t.world_size == 1 ? " rank" : " ranks") +
         ", order " + t.rank_order;
}

// The error about a state that belongs to no rank in particular.
Status Ownerless(const Topology& stored, const Topology& target, const std::string& names) {
  return Status::InvalidArgument(
      "saved by " + ToText(stored) + "; to be loaded by " + ToText(target) +
      ": these states of single ranks belong to no rank of the new job: " + names);
}

// splitmix64
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

}  // namespace varve::internal

namespace varve {
using namespace internal;

uint64_t DerivedSeed(int64_t consumed_samples, uint32_t rank) {
  return Mix(Mix(static_cast<uint64_t>(consumed_samples)) + rank);
}

}  // namespace varve

namespace varve::internal {

bool AreOtherRanks(const std::optional<Topology>& stored, const std::optional<Topology>& target) {
  return stored && target && stored->world_size != target->world_size;
}

Status CompareTopologies(const std::optional<Topology>& stored,
                         const std::optional<Topology>& target, const LoadOptions& options) {
  if (options.reshard || !stored || !target || *stored == *target) return Status::Ok();
  return Status::InvalidArgument("saved by " + ToText(*stored) + "; to be loaded by " +
                                 ToText(*target) + ", and resharding is not allowed");
}

Status FitRankStates(const std::optional<Topology>& stored, const std::optional<Topology>& target,
                     RankStates policy, TrainerProgress* trainer, std::vector<StateItem>* items,
                     std::vector<std::string>* dropped) {
  if (!AreOtherRanks(stored, target)) return Status::Ok();
  const size_t before = dropped->size();
  const auto of_rank = [](const StateItem& item) { return item.rank.has_value(); };
  std::string names;
  const auto note = [&](const std::string& name) {
    dropped->push_back(name);
    names += (names.empty() ? "" : ", ") + name;
  };
  for (const RngState& rng : trainer->rng) {
    note("RNG " + rng.generator + " of rank " + std::to_string(rng.rank));
  }
  for (const StateItem& item : *items) {
    if (of_rank(item)) note("item " + item.name + " of rank " + std::to_string(*item.rank));
  }
  if (dropped->size() == before) return Status::Ok();
  if (policy == RankStates::kError) return Ownerless(*stored, *target, names);
  trainer->rng.clear();
  std::erase_if(*items, of_rank);
  return Status::Ok();
}

Status FitRankTensors(const std::optional<Topology>& stored_by,
                      const std::optional<Topology>& target, std::vector<TensorInfo>* stored,
                      LoadOptions* options, std::vector<std::string>* dropped) {
  if (!options->rank.has_value()) return Status::Ok();
  const bool are_others = AreOtherRanks(stored_by, target);
  std::set<std::string> names;
  std::erase_if(*stored, [&](const TensorInfo& info) {
    const ItemName of = DecodeItemName(info.name);
    if (!of.rank.has_value()) return false;
    if (are_others) names.emplace(of.name);
    return are_others || of.rank != options->rank;
  });
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "tensor " : ", tensor ") + name;
    dropped->push_back("tensor " + name + " of single ranks");
    options->exclude.push_back(options->rename.Apply(name));
  }
  if (names.empty() || options->rank_states == RankStates::kDrop) return Status::Ok();
  return Ownerless(*stored_by, *target, text);
}

}  // namespace varve::internal
