// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/rank_states.h"

#include <algorithm>

namespace varve {
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

// splitmix64
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t DerivedSeed(int64_t consumed_samples, uint32_t rank) {
  return Mix(Mix(static_cast<uint64_t>(consumed_samples)) + rank);
}

Status CompareTopologies(const std::optional<Topology>& stored,
                         const std::optional<Topology>& target, const LoadOptions& options) {
  if (options.reshard || !stored || !target || *stored == *target) return Status::Ok();
  return Status::InvalidArgument("saved by " + ToText(*stored) + "; to be loaded by " +
                                 ToText(*target) + ", and resharding is not allowed");
}

Status FitRankStates(const std::optional<Topology>& stored, const std::optional<Topology>& target,
                     RankStates policy, TrainerState* trainer, std::vector<StateItem>* items,
                     std::vector<std::string>* dropped) {
  if (!stored || !target || stored->world_size == target->world_size) return Status::Ok();
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
  if (dropped->empty()) return Status::Ok();
  if (policy == RankStates::kError) {
    return Status::InvalidArgument(
        "saved by " + ToText(*stored) + "; to be loaded by " + ToText(*target) +
        ": nobody in particular owns these states of single ranks: " + names);
  }
  trainer->rng.clear();
  std::erase_if(*items, of_rank);
  return Status::Ok();
}

}  // namespace varve
