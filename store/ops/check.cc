// SPDX-License-Identifier: Apache-2.0
//
// The full verification of a store, from the records down. It decodes every record. It counts every
// reference to a list or a chunk again from scratch, and compares the result with the stored counts
// and totals. On request it reads every live chunk and compares its digest. It repairs nothing.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/file_descriptor.h"
#include "base/random_number.h"
#include "base/stop.h"
#include "base/util.h"
#include "store/db/store_impl.h"
#include "store/db/writer_files.h"
#include "store/format/root_digest.h"
#include "store/ops/check_data.h"
#include "store/ops/check_planes.h"
#include "store/ops/check_seal.h"
#include "store/ops/check_spares.h"
#include "store/ops/check_state.h"
#include "store/ops/damaged_steps.h"

namespace varve::internal {

namespace {

constexpr size_t kMaxErrors = 1000;

struct ListFacts {
  uint64_t names = 0;     // tensor records that name it
  ListGeometry geometry;  // that all of them want
  bool found = false;
  std::string digests;  // of its chunks, as the content digest hashes them
};

struct ChunkFacts {
  uint64_t names = 0;  // lists and live deltas that name it
  ListAddress named_by;
  uint32_t index_in_list = 0;
  std::optional<ChunkRef> ref;  // as a list describes it
};

struct LiteralOrDerived {
  ChunkRef ref;
  ListAddress list;
  uint32_t index = 0;
};

std::string Name(uint64_t save_id, uint32_t number) {
  return std::to_string(save_id) + "/" + std::to_string(number);
}

class Checker {
 public:
  Checker(const StoreImpl* store, const CheckOptions& options, CheckReport* report)
      : store_(store), db_(store->database()), options_(options), report_(report) {}

  Status Run() {
    VARVE_RETURN_IF_ERROR(CheckTables());
    VARVE_RETURN_IF_ERROR(CheckSeal(*store_, report_));
    const Status status = CheckRecords();
    if (status.code() == StatusCode::kAborted) return status;
    // What needs a lost file or a damaged block cannot be checked, but the file is named.
    if (!status.ok() && status.code() != StatusCode::kCorruption && lost_.empty()) return status;
    if (!status.ok()) Error(status.message());
    const Status named = NameUsers();
    return named.code() == StatusCode::kAborted ? named : Status::Ok();
  }

 private:
  Status CheckRecords() {
    VARVE_RETURN_IF_ERROR(CheckRuns());
    VARVE_RETURN_IF_ERROR(CheckSteps());
    VARVE_RETURN_IF_ERROR(CheckTensors());
    VARVE_RETURN_IF_ERROR(CheckLists());
    CheckContents();
    VARVE_RETURN_IF_ERROR(LoadSaves());
    VARVE_RETURN_IF_ERROR(CheckStateAndMeta());
    CountBases();
    VARVE_RETURN_IF_ERROR(CheckCounts());
    VARVE_RETURN_IF_ERROR(CheckIndex());
    VARVE_RETURN_IF_ERROR(CheckFiles());
    return options_.read_data ? ReadData() : Status::Ok();
  }

  void Error(std::string message) {
    const std::lock_guard lock(mutex_);
    if (report_->errors.size() < kMaxErrors) report_->errors.push_back(std::move(message));
  }
  // Adds an error of chunk `index` of a list. NameUsers puts a tensor that names the list between
  // the two texts.
  void ErrorOfList(std::string before, ListAddress list, uint32_t index, std::string after) {
    const std::lock_guard lock(mutex_);
    if (report_->errors.size() == kMaxErrors) return;
    unnamed_[list].push_back({report_->errors.size(), std::move(before), index, std::move(after)});
    report_->errors.emplace_back();
  }

  std::string StepName(StepKey key) const {
    const auto run = runs_.find(key.run);
    return varve::internal::StepName(
        run == runs_.end() ? "#" + std::to_string(key.run) : run->second, key.step);
  }

  Status CheckTables();
  Status CheckRuns();
  Status CheckSteps();
  Status CheckTensors();
  void FinishStep(StepKey key);
  Status CheckLists();
  void CheckContents();
  Status LoadSaves();
  Status CheckStateAndMeta();
  void CountBases();
  Status CheckCounts();
  void NameAbsentSaves();
  void CheckSave(uint64_t save_id, const SaveRecord& record);
  Status CheckIndex();
  Status CheckFiles();
  Status ReadData();
  Status NameUsers();

  const StoreImpl* const store_;
  const Database* const db_;
  const CheckOptions& options_;
  CheckReport* const report_;
  const StopFlag stop_;
  std::mutex mutex_;

  std::set<std::string> lost_;  // table files, by name
  std::map<RunId, std::string> runs_;
  std::map<StepKey, StepRecord> steps_;
  std::map<ListAddress, ListFacts> lists_;
  std::map<ChunkAddress, ChunkFacts> chunks_;
  std::vector<LiteralOrDerived> others_;
  std::map<std::vector<ListAddress>, Digest> contents_;  // of distinct sequences of lists
  std::map<std::vector<ListAddress>, std::string> content_users_;
  std::map<uint64_t, SaveRecord> saves_;
  std::set<uint64_t> recorded_;  // saves with a record, damaged ones too
  SourcesOfSaves sources_;

  struct Unnamed {
    size_t error;  // index in the report
    std::string before;
    uint32_t index;  // of the chunk in its list
    std::string after;
  };
  std::map<ListAddress, std::vector<Unnamed>> unnamed_;  // guarded by mutex_

  // The step whose tensors are being scanned.
  std::optional<StepKey> current_;
  uint64_t current_tensors_ = 0;
  std::string current_root_;
  std::set<StepKey> steps_with_tensors_;
};

// Checks that every table file of every family exists, has its size and opens, and that nothing is
// in the way of a writer. Otherwise no writer could open the store.
Status Checker::CheckTables() {
  if (!db_->is_far()) {
    for (const Status& refused : FindWhatAWriterRefuses(store_->path())) Error(refused.message());
  }
  VARVE_ASSIGN_OR_RETURN(const auto lost, db_->FindLostTables());
  for (const LostTable& table : lost) {
    Error(table.what);
    lost_.insert(table.file);
  }
  return Status::Ok();
}

Status Checker::CheckRuns() {
  return db_->Scan(Family::kMeta, keys::kRunPrefix,
                   [&](std::string_view key, std::string_view value) {
                     const std::string name(keys::ParseRun(key).value_or("?"));
                     const Result<RunRecord> record = DecodeRunRecord(value);
                     if (!record.ok()) {
                       Error("run " + name + ": " + record.status().message());
                     } else if (!runs_.emplace(record->id, name).second) {
                       Error("run " + name + " and run " + runs_[record->id] + " have the same id");
                     }
                     return Status::Ok();
                   });
}

Status Checker::CheckSteps() {
  return db_->Scan(Family::kSteps, "", [&](std::string_view key, std::string_view value) {
    const auto step = keys::ParseStep(key);
    if (!step.has_value()) {
      Error("family steps has a malformed key");
      return Status::Ok();
    }
    ++report_->num_steps;
    Result<StepRecord> record = DecodeStepRecord(value);
    if (!record.ok()) {
      Error(StepName(*step) + ": " + record.status().message());
      return Status::Ok();
    }
    if (!runs_.contains(step->run)) Error(StepName(*step) + ": its run does not exist");
    steps_.emplace(*step, *std::move(record));
    return Status::Ok();
  });
}

Status Checker::CheckTensors() {
  VARVE_RETURN_IF_ERROR(
      db_->Scan(Family::kTensors, "", [&](std::string_view key, std::string_view value) {
        VARVE_RETURN_IF_ERROR(stop_.Check());
        const auto parsed = keys::ParseTensor(key);
        if (!parsed.has_value()) {
          Error("family tensors has a malformed key");
          return Status::Ok();
        }
        if (current_ != parsed->step) {
          if (current_.has_value()) FinishStep(*current_);
          current_ = parsed->step;
          current_tensors_ = 0;
          current_root_.clear();
        }
        ++current_tensors_;
        ++report_->num_tensors;
        const std::string where =
            "tensor " + std::string(parsed->name) + " at " + StepName(parsed->step);
        const Result<TensorRecord> record = DecodeTensorRecord(value);
        if (!record.ok()) {
          Error(where + ": " + record.status().message());
          return Status::Ok();
        }
        const auto step = steps_.find(parsed->step);
        if (step != steps_.end() && step->second.save_id != record->save_id) {
          Error(where + ": is of save " + std::to_string(record->save_id) + ", its step of save " +
                std::to_string(step->second.save_id));
        }
        for (size_t i = 0; i < record->lists.size(); ++i) {
          const ListAddress list = record->lists[i];
          ListFacts& facts = lists_[list];
          const ListGeometry geometry = record->GeometryOfList(i);
          if (facts.names++ == 0) facts.geometry = geometry;
          if (facts.geometry == geometry) continue;
          Error(where + ": does not fit list " + Name(list.save_id, list.number) +
                ", which is also a list of another tensor");
        }
        const auto [it, is_new] = contents_.emplace(record->lists, record->content);
        if (is_new) content_users_.emplace(record->lists, where);
        if (it->second != record->content) {
          Error(where + ": its content digest is not that of another tensor with the same lists");
        }
        AppendToRoot(parsed->name, parsed->shard, record->View(), &current_root_);
        return Status::Ok();
      }));
  if (current_.has_value()) FinishStep(*current_);
  for (const auto& [key, record] : steps_) {
    if (record.num_tensors > 0 && !steps_with_tensors_.contains(key)) {
      Error(StepName(key) + ": has no tensors, expected " + std::to_string(record.num_tensors));
    }
  }
  return Status::Ok();
}

void Checker::FinishStep(StepKey key) {
  steps_with_tensors_.insert(key);
  const auto step = steps_.find(key);
  if (step == steps_.end()) {
    Error(StepName(key) + ": has tensors but no step record");
    return;
  }
  if (current_tensors_ != step->second.num_tensors) {
    Error(StepName(key) + ": has " + std::to_string(current_tensors_) + " tensors, expected " +
          std::to_string(step->second.num_tensors));
  } else if (ComputeDigest(store_->digest_seed(), AsBytes(current_root_)) != step->second.root) {
    Error(StepName(key) + ": its tensors do not have the root digest of its record");
  }
}

Status Checker::CheckLists() {
  VARVE_RETURN_IF_ERROR(
      db_->Scan(Family::kLists, "", [&](std::string_view key, std::string_view value) {
        VARVE_RETURN_IF_ERROR(stop_.Check());
        const auto address = keys::ParseList(key);
        if (!address.has_value()) {
          Error("family lists has a malformed key");
          return Status::Ok();
        }
        const std::string where = "list " + Name(address->save_id, address->number);
        const auto facts = lists_.find(*address);
        if (facts == lists_.end()) {
          Error(where + ": no tensor names it");
          return Status::Ok();
        }
        facts->second.found = true;
        Result<std::vector<ChunkRef>> refs = DecodeChunkList(value);
        if (!refs.ok()) {
          ErrorOfList(where + " (", *address, 0, "): " + refs.status().message());
          return Status::Ok();
        }
        const Status fits = CheckFits(*refs, facts->second.geometry);
        if (!fits.ok()) ErrorOfList(where + " (", *address, 0, "): " + fits.message());
        for (uint32_t i = 0; i < refs->size(); ++i) {
          ChunkRef& ref = (*refs)[i];
          keys::AppendIndex(ref.digest, &facts->second.digests);
          if (ref.NamesFrame()) {
            ChunkFacts& chunk = chunks_[ref.address];
            if (chunk.names++ == 0) {
              chunk.named_by = *address;
              chunk.index_in_list = i;
            }
            if (ref.kind == ChunkKind::kStored && !chunk.ref.has_value()) chunk.ref = ref;
          }
          if (ref.kind != ChunkKind::kStored && options_.read_data) {
            others_.push_back({std::move(ref), *address, i});
          }
        }
        return Status::Ok();
      }));
  for (const auto& [address, facts] : lists_) {
    if (!facts.found) {
      ErrorOfList("list " + Name(address.save_id, address.number) + " is missing (", address, 0,
                  ")");
    }
  }
  return Status::Ok();
}

void Checker::CheckContents() {
  for (const auto& [lists, content] : contents_) {
    std::string all;
    for (const ListAddress& list : lists) all += lists_[list].digests;
    if (ComputeDigest(store_->digest_seed(), AsBytes(all)) != content) {
      Error(content_users_[lists] + ": its lists do not have the content digest of its record");
    }
  }
}

Status Checker::LoadSaves() {
  return db_->Scan(Family::kBirths, "", [&](std::string_view key, std::string_view value) {
    const auto parsed = keys::ParseSave(key);
    if (!parsed.has_value()) {
      Error("family births has a malformed key");
      return Status::Ok();
    }
    const std::string where = "save " + std::to_string(parsed->save_id) + ": ";
    if (!parsed->block.has_value()) {
      recorded_.insert(parsed->save_id);
      Result<SaveRecord> record = DecodeSaveRecord(value);
      if (!record.ok()) {
        Error(where + record.status().message());
      } else {
        saves_.emplace(parsed->save_id, *std::move(record));
      }
      return Status::Ok();
    }
    const Result<SaveBlock> block = DecodeSaveBlock(value);
    if (!block.ok()) {
      Error(where + block.status().message());
      sources_.unknown.insert({parsed->save_id, *parsed->block});
      return Status::Ok();
    }
    for (const BaseEdge& edge : block->edges) {
      const ChunkAddress address{parsed->save_id, edge.ordinal};
      if (edge.base >= address) {
        Error("chunk " + Name(address.save_id, address.ordinal) + ": its source " +
              Name(edge.base.save_id, edge.base.ordinal) + " has no smaller address");
        sources_.unknown.insert({parsed->save_id, *parsed->block});
      } else {
        sources_.edges.emplace(address, edge);
      }
    }
    return Status::Ok();
  });
}

Status Checker::CheckStateAndMeta() {
  uint64_t highest_save_id = saves_.empty() ? 0 : saves_.rbegin()->first;
  for (const auto& [key, record] : steps_)
    highest_save_id = std::max(highest_save_id, record.save_id);
  const CheckedSteps checked{runs_, steps_, [this](StepKey key) { return StepName(key); },
                             [this](std::string message) { Error(std::move(message)); }};
  VARVE_RETURN_IF_ERROR(CheckState(*db_, store_->digest_seed(), checked));
  return CheckMeta(*db_, highest_save_id, checked);
}

// Sources have smaller addresses. So going down visits every chunk before those it is predicted
// from.
void Checker::CountBases() {
  for (auto it = sources_.edges.rbegin(); it != sources_.edges.rend(); ++it) {
    const auto delta = chunks_.find(it->first);
    if (delta == chunks_.end()) continue;  // dead
    ChunkFacts& base = chunks_[it->second.base];
    if (base.names++ == 0) {
      base.named_by = delta->second.named_by;
      base.index_in_list = delta->second.index_in_list;
    }
    if (!base.ref.has_value()) {
      ChunkRef ref;
      ref.digest = it->second.base_digest;
      ref.predictor = it->second.base_predictor;
      ref.raw_bytes = it->second.base_raw_bytes;
      ref.stored_bytes = it->second.base_stored_bytes;
      ref.address = it->second.base;
      base.ref = ref;
    }
  }
  report_->num_chunks = chunks_.size();
}

Status Checker::CheckCounts() {
  NameAbsentSaves();
  for (const auto& [address, facts] : chunks_) {
    const auto save_id = saves_.find(address.save_id);
    if (save_id == saves_.end() || address.ordinal >= save_id->second.chunks) {
      ErrorOfList("chunk " + Name(address.save_id, address.ordinal) + " was never stored (",
                  facts.named_by, facts.index_in_list, ")");
    }
  }
  for (const auto& [save_id, record] : saves_) CheckSave(save_id, record);
  // Blocks of saves that do not exist are leaks.
  return db_->Scan(Family::kCounts, "", [&](std::string_view key, std::string_view) {
    const auto parsed = keys::ParseCounts(key);
    if (!parsed.has_value()) {
      Error("family counts has a malformed key");
    } else if (!saves_.contains(parsed->save_id)) {
      Error("save " + std::to_string(parsed->save_id) + " has counts but no record");
    }
    return Status::Ok();
  });
}

// What is named of a save without a record is kept and shared, but its space is never freed.
void Checker::NameAbsentSaves() {
  std::set<uint64_t> absent;
  const auto note = [&](uint64_t save_id) {
    if (!recorded_.contains(save_id)) absent.insert(save_id);
  };
  for (const auto& [address, facts] : lists_) note(address.save_id);
  for (const auto& [address, facts] : chunks_) note(address.save_id);
  for (const uint64_t save_id : absent) {
    Error("save " + std::to_string(save_id) +
          " has no record, but its lists or chunks are still in use");
  }
}

void Checker::CheckSave(uint64_t save_id, const SaveRecord& record) {
  ReferenceCounts counts(db_);
  if (const Status readable = counts.Save(save_id).status(); !readable.ok()) {
    Error(readable.message());
    return;
  }
  SaveRecord found = record;
  found.live_chunks = found.live_lists = 0;
  found.live = {};
  bool dead_on_disk = false;
  for (uint32_t ordinal = 0; ordinal < record.chunks; ++ordinal) {
    const std::string where = "chunk " + Name(save_id, ordinal) + ": ";
    const Result<uint32_t> count = counts.ChunkCount({save_id, ordinal});
    if (!count.ok()) {
      Error(where + count.status().message());
      continue;
    }
    const bool dead = *count == 0 || (*count & kDeadBit) != 0;
    dead_on_disk |= dead && *count != 0;
    const auto facts = chunks_.find({save_id, ordinal});
    const uint64_t names = facts == chunks_.end() ? 0 : facts->second.names;
    if ((dead ? 0 : *count) != names) {
      Error(where + "is counted " + (dead ? "as dead" : std::to_string(*count) + " times") +
            ", named " + std::to_string(names) + " times");
    }
    if (names == 0) continue;
    ++found.live_chunks;
    if (!facts->second.ref.has_value()) continue;  // a source whose own list is gone
    const ChunkRef& ref = *facts->second.ref;
    found.live[static_cast<size_t>(ref.predictor)].Add({1, ref.raw_bytes, ref.stored_bytes});
  }
  for (uint32_t number = 0; number < record.lists; ++number) {
    const Result<uint32_t> count = counts.ListCount({save_id, number});
    const auto facts = lists_.find({save_id, number});
    const uint64_t names = facts == lists_.end() ? 0 : facts->second.names;
    if (!count.ok() || *count != names) {
      Error("list " + Name(save_id, number) + ": is counted " +
            (count.ok() ? std::to_string(*count) : count.status().message()) + " times, named " +
            std::to_string(names) + " times");
    }
    if (names > 0) ++found.live_lists;
  }
  if (found.live_chunks != record.live_chunks || found.live_lists != record.live_lists) {
    Error("save " + std::to_string(save_id) + ": says " + std::to_string(record.live_chunks) +
          " live chunks and " + std::to_string(record.live_lists) + " live lists, found " +
          std::to_string(found.live_chunks) + " and " + std::to_string(found.live_lists));
  } else if (found.Live().stored_bytes > record.Live().stored_bytes) {
    Error("save " + std::to_string(save_id) + ": says " +
          std::to_string(record.Live().stored_bytes) + " live bytes, found " +
          std::to_string(found.Live().stored_bytes));
  }
  const auto live_frame = [&](uint32_t ordinal) -> std::optional<uint32_t> {
    const auto facts = chunks_.find({save_id, ordinal});
    if (facts == chunks_.end() || facts->second.names == 0) return std::nullopt;
    return facts->second.ref.has_value() ? facts->second.ref->stored_bytes : UINT32_MAX;
  };
  CheckPlanes(*db_, save_id, record, live_frame,
              [this](std::string message) { Error(std::move(message)); });
  if (found.live_chunks == 0 && found.live_lists == 0 && !dead_on_disk) {
    Error("save " + std::to_string(save_id) + ": all its data is gone, but its record is left");
  }
}

// Entries are hints, and those of dead chunks may stay. But each must be readable for a writer.
Status Checker::CheckIndex() {
  return db_->Scan(Family::kIndex, "", [&](std::string_view, std::string_view value) {
    if (!DecodeAddress(value).has_value()) Error("family index has a malformed address");
    return Status::Ok();
  });
}

// Checks that every live chunk lies within an existing file. The files must hold at least as many
// frames as live, and at most as many as were stored.
Status Checker::CheckFiles() {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, db_->BeginRead());
  std::map<ChunkAddress, ChunkAddress> ranges;
  for (const auto& file : db_->FilesOf(Family::kChunks)) {
    const auto first = keys::ParseChunk(file.smallestkey);
    const auto last = keys::ParseChunk(file.largestkey);
    if (lost_.contains(file.name)) continue;
    if (!first.has_value() || !last.has_value()) {
      Error("chunk file " + file.name + " has malformed keys");
      continue;
    }
    ranges.emplace(*first, *last);
    const auto save_id = saves_.lower_bound(first->save_id);
    if (save_id == saves_.end() || save_id->first > last->save_id) {
      Error("chunk file " + file.name + " is orphaned: no save from " +
            std::to_string(first->save_id) + " to " + std::to_string(last->save_id) +
            " has a record");
    }
  }
  for (const auto& [address, facts] : chunks_) {
    const auto after = ranges.upper_bound(address);
    if (after == ranges.begin() || std::prev(after)->second < address) {
      ErrorOfList("chunk " + Name(address.save_id, address.ordinal) + " lies in no file (",
                  facts.named_by, facts.index_in_list, ")");
    }
  }
  return Status::Ok();
}

// The list of a rounded copy does not know the digest of its source. Where no other list and no
// delta names the source, nothing else reads its frame.
Status Checker::ReadData() {
  std::vector<ChunkToCheck> chunks;
  std::mt19937_64 random(RandomNumber());
  std::bernoulli_distribution chosen(std::clamp(options_.read_data_fraction, 0.0, 1.0));
  const auto add = [&](ChunkToCheck chunk) {
    if (chosen(random)) chunks.push_back(std::move(chunk));
  };
  for (const auto& [address, facts] : chunks_) {
    if (facts.ref.has_value()) add({*facts.ref, facts.named_by, facts.index_in_list});
  }
  for (const LiteralOrDerived& other : others_) {
    const auto source = chunks_.find(other.ref.address);
    const bool is_only_use = other.ref.kind == ChunkKind::kDerived && source != chunks_.end() &&
                             !source->second.ref.has_value();
    add({other.ref, other.list, other.index, is_only_use});
  }
  const auto error = [this](const ChunkToCheck& chunk, const Status& status) {
    ErrorOfList("", chunk.list, chunk.index, ": " + status.message());
  };
  VARVE_ASSIGN_OR_RETURN(report_->bytes_read,
                         CheckData(*store_, options_, sources_, chunks, error));
  return Status::Ok();
}

// Writes the errors of lists: "tensor T at step S of run R, chunk I" names one user of each. It
// scans the records once, however many errors there are.
Status Checker::NameUsers() {
  const auto write = [&](const std::vector<Unnamed>& errors, const auto& user) {
    for (const Unnamed& e : errors) report_->errors[e.error] = e.before + user(e.index) + e.after;
  };
  if (unnamed_.empty()) return Status::Ok();
  const Status scanned =
      db_->Scan(Family::kTensors, "", [&](std::string_view key, std::string_view value) {
        const Result<TensorRecord> record = DecodeTensorRecord(value);
        const auto parsed = keys::ParseTensor(key);
        if (!record.ok() || !parsed.has_value()) return Status::Ok();
        for (size_t i = 0; i < record->lists.size(); ++i) {
          const auto found = unnamed_.find(record->lists[i]);
          if (found == unnamed_.end()) continue;
          write(found->second, [&](uint32_t index) {
            return "tensor " + std::string(parsed->name) + " at " + StepName(parsed->step) +
                   ", chunk " + std::to_string(i * kChunksPerList + index);
          });
          unnamed_.erase(found);
        }
        return Status::Ok();
      });
  for (const auto& [list, errors] : unnamed_) {
    write(errors, [&list = list](uint32_t index) {
      return "list " + Name(list.save_id, list.number) + ", chunk " + std::to_string(index);
    });
  }
  return scanned;
}

}  // namespace

Status StoreImpl::CheckOnce(const CheckOptions& options, CheckReport* report) const {
  *report = CheckReport{};
  VARVE_RETURN_IF_ERROR(Checker(this, options, report).Run());
  if (database_->is_far()) return Status::Ok();  // a snapshot in an object store has no such files
  VARVE_ASSIGN_OR_RETURN(report->warnings, FindSpareWarnings(path_));
  return Status::Ok();
}

// An error must occur three times, because one catch-up may fall between two steps of the writer.
Result<CheckReport> StoreImpl::CheckFrozen(const CheckOptions& options,
                                           const std::function<Status()>& catch_up) const {
  CheckReport report;
  Status status;
  for (int attempt = 0; attempt < 3; ++attempt) {
    VARVE_RETURN_IF_ERROR(catch_up());
    {
      const Frozen frozen(this);
      status = CheckOnce(options, &report);
    }
    if ((status.ok() && report.ok()) || status.code() == StatusCode::kAborted) break;
  }
  if (!status.ok()) return status;
  if (!report.ok()) {
    const Frozen frozen(this);
    status = NameDamagedSteps(*this, options, &report);
  }
  if (!status.ok()) return status;
  return report;
}

// A writer looks through a reader of its own. The reader keeps what it has seen, however the store
// changes, so commits, drops and reclaims need not wait.
Result<CheckReport> StoreImpl::Check(const CheckOptions& options) const {
  if (!database_->for_writing()) {
    return CheckFrozen(options, [this] { return CatchUp(); });
  }
  const auto reader = OpenPath(path_, options_, /*for_writing=*/false);
  if (!reader.ok()) {
    const std::lock_guard maintenance(maintenance_mutex_);
    const auto commits = LockCommits();  // other saves wait with their commit
    CheckReport report;
    VARVE_RETURN_IF_ERROR(CheckOnce(options, &report));
    if (!report.ok()) VARVE_RETURN_IF_ERROR(NameDamagedSteps(*this, options, &report));
    return report;
  }
  return (*reader)->CheckFrozen(options, [&] { return CatchUpBetweenCommits(**reader); });
}

}  // namespace varve::internal
