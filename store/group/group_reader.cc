// SPDX-License-Identifier: Apache-2.0
//
// Reads a checkpoint of a group. The catalogue says which rank has what, and a member is opened
// when a read needs it. The root digest of the member's step is compared with the log's before
// anything of it is used.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <set>

#include "base/util.h"
#include "store/db/guarded_store.h"
#include "store/group/attempt_names.h"
#include "store/group/catalogue_index.h"
#include "store/group/group_store.h"
#include "store/read/sharded_reader.h"
#include "store/shards/regions.h"

namespace varve::internal {

namespace {

// The same read, of a shard that has this number in its member.
ReadRequest OfShard(const ReadRequest& request, uint32_t number) {
  if (request.region() == nullptr) {
    return ReadRequest::Shard(request.name(), number, request.out(), request.slice());
  }
  return ReadRequest::Shard(request.name(), number, request.out(), *request.region());
}

class GroupReader : public ShardedReader {
 public:
  GroupReader(const GroupStore* store, CheckpointInfo info, AttemptId number, GroupAttempt attempt)
      : store_(store), info_(std::move(info)), number_(number), attempt_(std::move(attempt)) {}
  ~GroupReader() override {
    Guarded("unpinning", [this] {
      Unpin();
      return Status::Ok();
    }).IgnoreError();
  }

  // Keeps the attempt in the members while this reader lives, if it may write to the log.
  Status Pin();
  Status Load();

  const CheckpointInfo& info() const override { return info_; }
  Result<std::vector<StoredShard>> FindStored(std::string_view name) const override;
  Result<std::vector<StoredShard>> FindByPrefix(std::string_view prefix) const override;
  Result<ShardOutline> OutlineShards() const override;
  Status WithFrozenView(const std::function<Status()>& read) const override {
    return Explain(read());  // what is pinned stays as it is
  }
  Result<TensorInfo> Find(std::string_view name, uint32_t shard) const override;
  Status ReadMany(std::span<const ReadRequest> requests) const override;
  Result<std::vector<std::string>> ListBytes() const override;
  Result<std::vector<std::byte>> ReadBytes(std::string_view name) const override;
  Result<std::optional<TrainerProgress>> ReadTrainerProgress() const override;
  Result<std::optional<TrainerProgress>> ReadTrainerProgressFor(uint32_t rank) const override;
  Result<std::optional<Topology>> ReadTopology() const override;

 private:
  struct Part {
    std::shared_ptr<const StoreImpl> member;
    std::unique_ptr<ShardedReader> reader;
  };

  std::string Name() const { return StepName(info_.id.run, info_.id.step); }
  void Unpin();
  Result<const ShardedReader*> OfRank(uint32_t rank) const;
  Result<Part> OpenPart(const GroupPart& part) const;
  Result<std::span<const CatalogueShard>> Locate(std::string_view name) const;
  Result<const CatalogueShard*> Locate(std::string_view name, uint32_t shard) const;
  Result<TensorInfo> FindShard(std::string_view name, uint32_t shard) const;
  using Sections = std::vector<std::span<const CatalogueShard>>;
  using FindInMember = std::function<Result<std::vector<StoredShard>>(const ShardedReader& member)>;
  // Returns the shards of these sections. `find` returns those of a member.
  Result<std::vector<StoredShard>> Collect(const Sections& sections,
                                           const FindInMember& find) const;
  // The reads from each rank, with the regions that they name.
  struct Reads {
    std::map<uint32_t, std::vector<ReadRequest>> by_rank;
    std::deque<ShardLayout> regions;
  };
  Status Split(const ReadRequest& request, Reads* reads) const;
  // Where each generator of a list stands in it, by rank and name.
  using PlacesOfGenerators = std::map<std::pair<uint32_t, std::string>, size_t>;
  static PlacesOfGenerators PlacesIn(const std::vector<RngState>& rng);
  Status AddGeneratorsOf(uint32_t rank, std::vector<RngState>* all,
                         PlacesOfGenerators* places) const;
  std::string NameOf(const CatalogueItem& item) const;
  // Returns the result of a read, or not found when the checkpoint has been removed meanwhile.
  Status Explain(const Status& status) const;
  // Puts a member's error into the words of the group.
  Status OfMember(const Status& status) const {
    return store_->log()->With(
        [&](const GroupState& state) { return NameAttempts(status, state); });
  }

  const GroupStore* const store_;
  const CheckpointInfo info_;
  const AttemptId number_;
  const GroupAttempt attempt_;
  std::optional<uint64_t> pin_;  // the ticket
  std::unique_ptr<CatalogueReader> catalogue_;
  std::map<std::string, const CatalogueItem*, std::less<>> items_;  // of the catalogue, by NameOf
  mutable std::mutex mutex_;
  mutable std::map<uint32_t, Part> parts_;  // by rank, guarded by mutex_
};

Status GroupReader::Pin() {
  const auto ticket = store_->pins()->Pin(number_);
  if (ticket.status().code() == StatusCode::kNotFound) {
    return Status::NotFound(Name() + " was dropped");
  }
  VARVE_RETURN_IF_ERROR(ticket.status());
  pin_ = *ticket;
  return Status::Ok();
}

void GroupReader::Unpin() {
  if (pin_.has_value()) store_->pins()->Unpin(*pin_);
}

Status GroupReader::Load() {
  const GroupPlace& place = store_->place();
  auto catalogue = CatalogueReader::Open({place.root, place.file.digest_seed, number_}, attempt_);
  if (!catalogue.ok()) return Explain(catalogue.status());
  catalogue_ = *std::move(catalogue);
  for (const CatalogueItem& item : catalogue_->items()) items_.emplace(NameOf(item), &item);
  return Status::Ok();
}

Status GroupReader::Explain(const Status& status) const {
  if (status.ok() || status.code() == StatusCode::kInvalidArgument) return status;
  VARVE_RETURN_IF_ERROR(store_->log()->Refresh());
  const bool there = store_->log()->With(
      [&](const GroupState& state) { return state.FindAttempt(number_) != nullptr; });
  if (there) return status;
  return Status::NotFound(Name() +
                          " was dropped while it was read; open a step that is still there");
}

Result<GroupReader::Part> GroupReader::OpenPart(const GroupPart& part) const {
  Part opened;
  VARVE_ASSIGN_OR_RETURN(opened.member, store_->MemberForReading(part.member));
  auto reader = opened.member->OpenShards(kMemberRun, number_);
  if (reader.status().code() == StatusCode::kNotFound) {
    return Status::Corruption(reader.status().message() + " in " + opened.member->path().string());
  }
  VARVE_ASSIGN_OR_RETURN(opened.reader, std::move(reader));
  VARVE_ASSIGN_OR_RETURN(const auto step,
                         opened.member->RequireStep({std::string(kMemberRun), number_}));
  if (step.second.root == part.root) return opened;
  return Status::Corruption(StepName(kMemberRun, number_) + " has root digest " +
                            ToHex(step.second.root) + ", expected " + ToHex(part.root));
}

Result<const ShardedReader*> GroupReader::OfRank(uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  Part& part = parts_[rank];
  if (part.reader == nullptr) {
    const auto it = catalogue_->parts().find(rank);
    if (it == catalogue_->parts().end()) {
      return Status::Corruption(Name() + " has no part of rank " + std::to_string(rank));
    }
    Result<Part> opened = OpenPart(it->second);
    if (!opened.ok()) {
      return Explain(OfMember(opened.status())
                         .WithContext(Name() + ", member " + MemberName(it->second.member) +
                                      " of rank " + std::to_string(rank)));
    }
    part = *std::move(opened);
  }
  const ShardedReader* const reader = part.reader.get();
  return reader;
}

// All shards of a name.
Result<std::span<const CatalogueShard>> GroupReader::Locate(std::string_view name) const {
  const auto found = catalogue_->Find(name);
  if (!found.ok()) return Explain(found.status());
  if (!found->empty()) return found;
  return Status::NotFound("no tensor " + std::string(name) + " at " + Name());
}

Result<const CatalogueShard*> GroupReader::Locate(std::string_view name, uint32_t shard) const {
  VARVE_ASSIGN_OR_RETURN(const auto shards, Locate(name));
  if (shard < shards.size()) return &shards[shard];
  return Status::NotFound("no tensor " + std::string(name) + " at " + Name() + " shard " +
                          std::to_string(shard));
}

Result<TensorInfo> GroupReader::FindShard(std::string_view name, uint32_t shard) const {
  VARVE_ASSIGN_OR_RETURN(const CatalogueShard* place, Locate(name, shard));
  VARVE_ASSIGN_OR_RETURN(const ShardedReader* reader, OfRank(place->rank));
  Result<TensorInfo> info = reader->Find(name, place->shard);
  if (!info.ok()) return Explain(info.status());
  info->shard = shard;
  return info;
}

Result<TensorInfo> GroupReader::Find(std::string_view name, uint32_t shard) const {
  if (shard != kAllShards) return FindShard(name, shard);
  VARVE_ASSIGN_OR_RETURN(const auto shards, Locate(name));
  std::vector<TensorInfo> infos;
  for (uint32_t i = 0; i < shards.size(); ++i) {
    VARVE_ASSIGN_OR_RETURN(TensorInfo info, FindShard(name, i));
    infos.push_back(std::move(info));
    if (!infos[0].layout.has_value()) break;
  }
  return JoinShards(std::move(infos))[0];
}

Result<std::vector<StoredShard>> GroupReader::FindStored(std::string_view name) const {
  const FindInMember find = [name](const ShardedReader& member) { return member.FindStored(name); };
  if (!name.empty()) {
    VARVE_ASSIGN_OR_RETURN(const auto shards, Locate(name));
    return Collect({shards}, find);
  }
  const auto sections = catalogue_->FindByPrefix("");
  if (!sections.ok()) return Explain(sections.status());
  return Collect(*sections, find);
}

Result<std::vector<StoredShard>> GroupReader::FindByPrefix(std::string_view prefix) const {
  const auto sections = catalogue_->FindByPrefix(prefix);
  if (!sections.ok()) return Explain(sections.status());
  return Collect(*sections, [prefix](const auto& member) { return member.FindByPrefix(prefix); });
}

// From the catalogue alone: a job of many ranks does not open every member on every rank.
Result<ShardOutline> GroupReader::OutlineShards() const {
  const auto sections = catalogue_->FindByPrefix("");
  if (!sections.ok()) return Explain(sections.status());
  ShardOutline outline{.shards = {}, .has_details = false};
  std::vector<TensorInfo>& infos = outline.shards;
  for (const auto& section : *sections) {
    for (const CatalogueShard& shard : section) {
      const bool same_name = !infos.empty() && infos.back().name == shard.name;
      VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, NumBytes(shard.dtype, shard.shape));
      const uint32_t number = same_name ? infos.back().shard + 1 : 0;
      TensorInfo& info = infos.emplace_back(TensorInfo{shard});
      info.shard = number;
      info.logical_bytes = bytes;
      info.content = {shard.content.lo, shard.content.hi};
    }
  }
  return outline;
}

Result<std::vector<StoredShard>> GroupReader::Collect(const Sections& sections,
                                                      const FindInMember& find) const {
  size_t num_wanted = 0;
  std::set<uint32_t> ranks;
  for (const auto& section : sections) {
    num_wanted += section.size();
    for (const CatalogueShard& shard : section) ranks.insert(shard.rank);
  }
  std::map<std::tuple<std::string, uint32_t, uint32_t>, StoredShard> found;
  for (const uint32_t rank : ranks) {
    VARVE_ASSIGN_OR_RETURN(const ShardedReader* reader, OfRank(rank));
    Result<std::vector<StoredShard>> shards = find(*reader);
    if (!shards.ok()) return Explain(shards.status());
    for (StoredShard& shard : *shards) {
      const std::tuple key(shard.name, rank, shard.number);
      found.emplace(key, std::move(shard));
    }
  }
  std::vector<StoredShard> list;
  for (const auto& section : sections) {
    for (const CatalogueShard& shard : section) {
      const auto it = found.find({shard.name, shard.rank, shard.shard});
      if (it == found.end() || found.size() != num_wanted) {
        return Explain(
            Status::Corruption(Name() + ": its members do not hold what its catalogue says"));
      }
      const bool same_name = !list.empty() && list.back().name == shard.name;
      const uint32_t number = same_name ? list.back().number + 1 : 0;
      list.push_back(std::move(it->second));
      list.back().number = number;
      list.back().rank = shard.rank;
    }
  }
  return list;
}

// Splits a read of a global tensor into reads of the parts that ranks hold.
Status GroupReader::Split(const ReadRequest& request, Reads* reads) const {
  VARVE_ASSIGN_OR_RETURN(auto shards, Locate(request.name()));
  const std::string where = "tensor " + std::string(request.name()) + " at " + Name();
  if (!shards[0].layout.has_value()) shards = shards.first(1);
  std::vector<ShardLayout> layouts;
  for (const CatalogueShard& shard : shards) {
    layouts.push_back(LayoutOf(shard));
  }
  if (request.region() != nullptr) {
    const Status valid = ValidateLayout(*request.region());
    if (!valid.ok()) return valid.WithContext(where);
    reads->regions.push_back(*request.region());
  } else {
    Result<ShardLayout> box = LayoutOfSlice(layouts[0].global_shape, request.slice());
    if (!box.ok()) return box.status().WithContext(where);
    reads->regions.push_back(*std::move(box));
  }
  const ShardLayout& region = reads->regions.back();
  VARVE_RETURN_IF_ERROR(CheckBuffer(where, request, shards[0].dtype, region));
  const Result<RegionPlan> plan = PlanRegion(layouts, region);
  if (!plan.ok()) return plan.status().WithContext(where);
  if (plan->same.has_value()) {
    const CatalogueShard& same = shards[*plan->same];
    reads->by_rank[same.rank].push_back(
        ReadRequest::Shard(request.name(), same.shard, request.out()));
    return Status::Ok();
  }
  FillPadding(request, region);
  for (const size_t i : plan->parts) {
    reads->by_rank[shards[i].rank].push_back(
        ReadRequest::Shard(request.name(), shards[i].shard, request.out(), region));
  }
  return Status::Ok();
}

Status GroupReader::ReadMany(std::span<const ReadRequest> requests) const {
  Reads reads;
  for (const ReadRequest& request : requests) {
    if (request.shard() == kAllShards) {
      VARVE_RETURN_IF_ERROR(Split(request, &reads));
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(const CatalogueShard* place, Locate(request.name(), request.shard()));
    reads.by_rank[place->rank].push_back(OfShard(request, place->shard));
  }
  for (const auto& [rank, of_rank] : reads.by_rank) {
    VARVE_ASSIGN_OR_RETURN(const ShardedReader* reader, OfRank(rank));
    const Status status = reader->ReadMany(of_rank);
    if (!status.ok()) {
      return Explain(OfMember(status).WithContext(Name() + ", rank " + std::to_string(rank)));
    }
  }
  return Status::Ok();
}

// If several ranks have an item of this name, the lowest rank's is used.
std::string GroupReader::NameOf(const CatalogueItem& item) const {
  const bool is_first = &item == &catalogue_->items().front() || (&item - 1)->name != item.name;
  return is_first ? item.name : item.name + "@" + std::to_string(item.rank);
}

Result<std::vector<std::string>> GroupReader::ListBytes() const {
  std::vector<std::string> names;
  for (const CatalogueItem& item : catalogue_->items()) names.push_back(NameOf(item));
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::vector<std::byte>> GroupReader::ReadBytes(std::string_view name) const {
  const auto it = items_.find(name);
  if (it == items_.end()) return Status::NotFound("no item " + std::string(name) + " at " + Name());
  VARVE_ASSIGN_OR_RETURN(const ShardedReader* reader, OfRank(it->second->rank));
  auto value = reader->ReadBytes(it->second->name);
  if (!value.ok()) return Explain(value.status());
  return value;
}

GroupReader::PlacesOfGenerators GroupReader::PlacesIn(const std::vector<RngState>& rng) {
  PlacesOfGenerators places;
  for (size_t i = 0; i < rng.size(); ++i) places.try_emplace({rng[i].rank, rng[i].generator}, i);
  return places;
}

// Adds what `rank` has saved. It knows its own generators best.
Status GroupReader::AddGeneratorsOf(uint32_t rank, std::vector<RngState>* all,
                                    PlacesOfGenerators* places) const {
  VARVE_ASSIGN_OR_RETURN(const ShardedReader* reader, OfRank(rank));
  auto progress = reader->ReadTrainerProgress();
  if (!progress.ok()) return Explain(progress.status());
  if (!progress->has_value()) return Status::Ok();
  for (RngState& rng : (*progress)->rng) {
    const auto [place, is_new] = places->try_emplace({rng.rank, rng.generator}, all->size());
    if (is_new) {
      all->push_back(std::move(rng));
    } else if (rng.rank == rank) {
      (*all)[place->second] = std::move(rng);
    }
  }
  return Status::Ok();
}

Result<std::optional<TrainerProgress>> GroupReader::ReadTrainerProgress() const {
  VARVE_ASSIGN_OR_RETURN(auto progress, ReadTrainerProgressFor(0));
  if (!progress.has_value()) return progress;
  PlacesOfGenerators places = PlacesIn(progress->rng);
  for (const auto& [rank, part] : catalogue_->parts()) {
    if (rank != 0) VARVE_RETURN_IF_ERROR(AddGeneratorsOf(rank, &progress->rng, &places));
  }
  return progress;
}

Result<std::optional<TrainerProgress>> GroupReader::ReadTrainerProgressFor(uint32_t rank) const {
  VARVE_ASSIGN_OR_RETURN(const ShardedReader* reader, OfRank(0));
  auto progress = reader->ReadTrainerProgress();
  if (!progress.ok()) return Explain(progress.status());
  if (progress->has_value() && rank != 0 && catalogue_->parts().contains(rank)) {
    PlacesOfGenerators places = PlacesIn((*progress)->rng);
    VARVE_RETURN_IF_ERROR(AddGeneratorsOf(rank, &(*progress)->rng, &places));
  }
  return progress;
}

Result<std::optional<Topology>> GroupReader::ReadTopology() const {
  VARVE_ASSIGN_OR_RETURN(const ShardedReader* reader, OfRank(0));
  auto topology = reader->ReadTopology();
  if (!topology.ok()) return Explain(topology.status());
  return topology;
}

}  // namespace

Result<std::unique_ptr<ShardedReader>> GroupStore::OpenShards(std::string_view run,
                                                              uint64_t step) const {
  return OpenShards({std::string(run), step}, for_writing_);
}

Result<std::unique_ptr<ShardedReader>> GroupStore::OpenShards(const CheckpointId& id,
                                                              bool pin) const {
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  std::unique_ptr<GroupReader> reader = log()->With([&](const GroupState& state) {
    const GroupStep* found = state.FindStep(id);
    return found == nullptr ? nullptr
                            : std::make_unique<GuardedReader<GroupReader>>(
                                  this, MakeGroupInfo(state, id), found->attempt,
                                  *state.FindAttempt(found->attempt));
  });
  if (reader == nullptr) return Status::NotFound("no " + StepName(id.run, id.step));
  if (pin) VARVE_RETURN_IF_ERROR(reader->Pin());
  VARVE_RETURN_IF_ERROR(reader->Load());
  return std::unique_ptr<ShardedReader>(std::move(reader));
}

}  // namespace varve::internal
