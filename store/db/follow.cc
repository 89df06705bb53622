// SPDX-License-Identifier: Apache-2.0
//
// How a reader follows its writer: it compares what RocksDB shows with the manifest, and opens the
// database anew for each new manifest.
#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "base/guarded.h"
#include "base/util.h"
#include "store/db/database.h"
#include "store/db/manifest_note.h"
#include "store/db/manifest_tables.h"

namespace varve::internal {

namespace {

// The name in the stamp of a manifest.
std::string NameIn(const std::string& stamp) { return stamp.substr(0, stamp.find('\n')); }

// The size in it.
size_t SizeIn(const std::string& stamp) {
  size_t size = 0;
  const size_t at = stamp.find('\n');
  if (at != std::string::npos) {
    std::from_chars(stamp.data() + at + 1, stamp.data() + stamp.size(), size);
  }
  return size;
}

std::set<std::string> NamesOf(const FamilyTables& tables) {
  std::set<std::string> names;
  for (const auto& [family, numbers] : tables) {
    for (const uint64_t number : numbers) names.insert(TableFileName(number));
  }
  return names;
}

// Returns the families that show other tables than they should, and what they lack. What only a
// newer program knows is not looked at.
FamilyTables FamiliesBehind(const Families& families, const FamilyTables& shown,
                            const FamilyTables& named) {
  static const std::set<uint64_t> kNone;
  const auto of = [](const FamilyTables& tables, const std::string& family) -> const auto& {
    const auto found = tables.find(family);
    return found == tables.end() ? kNone : found->second;
  };
  FamilyTables behind;
  for (const auto& family : families) {
    std::set<uint64_t> lacks = of(named, family.name);
    const std::set<uint64_t>& mine = of(shown, family.name);
    if (lacks == mine) continue;
    for (const uint64_t number : mine) lacks.erase(number);
    behind.emplace(family.name, std::move(lacks));
  }
  return behind;
}

}  // namespace

Status Database::OpenReader() {
  const Result<std::string> found = ManifestStamp(path_);
  const std::string stamp = found.ok() ? *found : std::string();
  manifest_opened_ = NameIn(stamp);
  VARVE_ASSIGN_OR_RETURN(open_, OpenSecondary());
  VARVE_ASSIGN_OR_RETURN(Seen seen, Follow(*open_, stamp, /*in_place=*/false));
  manifest_seen_ = std::move(seen.stamp);
  if (seen.lost.empty()) return Status::Ok();
  lost_ = std::move(seen.lost);
  despite_lost_ = true;
  VARVE_RETURN_IF_ERROR(OpenDespite());
  const std::string_view chunks = kFamilyNames[static_cast<int>(Family::kChunks)];
  if (std::ranges::all_of(lost_, [&](const LostTable& table) { return table.family == chunks; })) {
    return Status::Ok();
  }
  const auto sound = OpenWithout(lost_, *open_);
  if (sound.ok()) sound_ = *sound;  // else a scan of a family that lacks a table is an error
  return IsShortage(sound.status()) ? sound.status() : Status::Ok();
}

// Opens the newest state while a writer may be at work. If a family lacks a table, it may show an
// older state of the family, or none, without an error.
Result<std::shared_ptr<const OpenRocksDb>> Database::OpenSecondary() const {
  // The second path is for RocksDB's log, which we replaced. Nothing is written there.
  const std::string db_path = DbPath(path_).string();
  rocksdb::DBOptions options = db_options_;
  options.max_file_opening_threads = MakeDbOptionsOf(path_).max_file_opening_threads;
  std::shared_ptr<const OpenRocksDb> opened;
  const rocksdb::Status status = OpenRocksDb::Open(
      [&](auto* handles, auto** db) {
        return rocksdb::DB::OpenAsSecondary(options, db_path, db_path, families_, handles, db);
      },
      &opened);
  if (!status.ok()) return OpenError(status, path_, families_);
  return opened;
}

// Compares what is shown with each state of the manifest since it had the stamp `before`. A reader
// that has read the manifest since then shows one of these states, however fast the writer is.
Result<Database::Fit> Database::Compare(const FamilyTables& shown,
                                        const std::string& before) const {
  // First, so that the manifest is at least as long.
  VARVE_ASSIGN_OR_RETURN(const auto note, ReadManifestNote(path_));
  if (const auto text = ReadManifestText(path_)) {
    Fit best;
    // What starts another manifest is written record by record, and its first states are no states
    // of the store.
    if (!before.starts_with(text->current)) return best;
    const size_t from = SizeIn(before);
    size_t best_end = 0;
    const auto end =
        VisitManifestStates(text->log, from, [&](const ManifestTables& state, size_t at) {
          FamilyTables behind = FamiliesBehind(families_, shown, state.ByFamily());
          if (best.is_known && behind.size() > best.behind.size()) return;
          best.is_known = true;
          best_end = at;
          best.behind = std::move(behind);
        });
    // A record that is not whole is being written, or the end of the manifest is lost.
    const bool is_noted = note.has_value() && note->manifest + "\n" == text->current;
    if (end.has_value() &&
        (*end < from || *end < text->log.size() || (is_noted && *end < note->bytes))) {
      VARVE_RETURN_IF_ERROR(CheckManifestLength(path_));
    }
    if (end.has_value()) {
      best.now = text->current + std::to_string(text->log.size());
      best.stamp = text->current + std::to_string(best_end);
      return best;
    }
  }
  // RocksDB says the newest state only.
  VARVE_ASSIGN_OR_RETURN(const std::string stamp, AwaitManifestStamp(path_));
  VARVE_ASSIGN_OR_RETURN(const auto files, ReadManifest(path_, families_));
  VARVE_ASSIGN_OR_RETURN(const std::string after, AwaitManifestStamp(path_));
  FamilyTables named;
  for (const auto& file : files) named[file.column_family_name].insert(file.file_number);
  return Fit{.is_known = true,
             .stamp = stamp,
             .now = stamp == after ? after : std::string(),
             .behind = FamiliesBehind(families_, shown, named)};
}

// Returns lost tables of families that are behind. RocksDB shows a family without a table that is
// lost as it was before, so a table that it does not show need not be lost itself. `in_place`:
// tables that are shown may be lost, too, because they were there when they were opened.
Result<std::vector<LostTable>> Database::FindLostOf(const FamilyTables& behind,
                                                    const FamilyTables& shown,
                                                    bool in_place) const {
  VARVE_ASSIGN_OR_RETURN(auto lost, internal::FindLostTables(path_, families_, NamesOf(shown)));
  if (!in_place) return lost;
  const auto is_explained = [&](const auto& family) {
    return std::any_of(lost.begin(), lost.end(),
                       [&](const LostTable& table) { return table.family == family.first; });
  };
  if (!std::all_of(behind.begin(), behind.end(), is_explained)) {
    FamilyTables sound = shown;
    for (const auto& [family, lacks] : behind) sound.erase(family);
    VARVE_ASSIGN_OR_RETURN(lost, internal::FindLostTables(path_, families_, NamesOf(sound)));
  }
  std::erase_if(lost, [&](const LostTable& table) { return !behind.contains(table.family); });
  return lost;
}

// `open` has read the manifest since that had the stamp `before`. Catches up until it shows one
// state from then on, in all families that do not lack a lost table. `in_place`: some families may
// be kept from it, and `seen` says which. Else it returns when it finds lost tables, or fails.
Result<Database::Seen> Database::Follow(const OpenRocksDb& open, std::string before,
                                        bool in_place) const {
  constexpr int kMaxAttempts = 50;
  constexpr int kLookEvery = 8;  // attempts
  const std::string what = "following the writer of the store in " + path_.string() + ": ";
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    if (attempt > 0) {
      VARVE_ASSIGN_OR_RETURN(before, AwaitManifestStamp(path_));
      VARVE_RETURN_IF_ERROR(open.Advance());
    }
    if (before_compare_for_test_) before_compare_for_test_();
    const FamilyTables shown = open.Tables();
    VARVE_ASSIGN_OR_RETURN(Fit fit, Compare(shown, before));
    if (!fit.is_known) continue;
    Seen seen{.stamp = std::move(fit.stamp), .lost = {}, .held = {}};
    if (fit.behind.empty()) return seen;
    // Else it may only have come to a table that the writer has removed meanwhile. If the writer
    // goes on and on, a look is worth its time nevertheless.
    const bool has_read_all = fit.now == before;
    if (!has_read_all && open.HasShownAll() && attempt % kLookEvery != kLookEvery - 1) continue;
    VARVE_ASSIGN_OR_RETURN(seen.lost, FindLostOf(fit.behind, shown, in_place));
    if (!in_place && !seen.lost.empty()) return seen;
    for (const LostTable& table : seen.lost) fit.behind.erase(table.family);
    if (fit.behind.empty()) return seen;
    if (!has_read_all || (!in_place && attempt == 0)) continue;
    VARVE_ASSIGN_OR_RETURN(const std::string now, AwaitManifestStamp(path_));
    if (now != before) continue;
    for (const auto& [family, lacks] : fit.behind) {
      seen.held[family] =
          what + "RocksDB shows an older state of family " + family +
          (lacks.empty() ? "" : ", without " + TableFileName(*lacks.begin()) + ", which is there") +
          ". Try again, or open the store again";
    }
    if (in_place) return seen;
    return Status::IOError(seen.held.begin()->second);
  }
  return Status::IOError(what + "the writer is too fast. Try again");
}

// Opens the newest state once more, and fails unless all of it is there: a table that is lost by
// now may still be open in the old one.
Result<std::pair<std::shared_ptr<const OpenRocksDb>, Database::Seen>> Database::OpenWhole(
    const std::string& stamp) const {
  VARVE_RETURN_IF_ERROR(CheckManifestLength(path_));
  VARVE_RETURN_IF_ERROR(CheckDescriptorsLeft(path_));
  VARVE_ASSIGN_OR_RETURN(auto opened, OpenSecondary());
  if (after_open_for_test_) after_open_for_test_();
  VARVE_ASSIGN_OR_RETURN(Seen seen, Follow(*opened, stamp, /*in_place=*/false));
  if (!seen.lost.empty()) return Status::Corruption(seen.lost.front().what);
  return std::pair(std::move(opened), std::move(seen));
}

// Replaces what is open by the newest state, opened anew. RocksDB follows to a new manifest, too.
// But then it keeps table files open that only the old one named, although they are deleted. After
// an error it changes nothing. It waits for 20 times as long as the last time took, or the readers
// of a busy writer would do nothing else. `at_once`: it does not wait if the manifest has changed
// since the last attempt.
// `stamp` is what the manifest had when the catch-up began.
Status Database::Renew(const std::string& stamp, bool at_once) const {
  constexpr int kPause = 20;
  const auto start = std::chrono::steady_clock::now();
  if (start < renew_after_ && (!at_once || stamp == renewed_at_)) {
    return renewed_.ok() ? Status::IOError("it was opened a moment ago") : renewed_;
  }
  renewed_at_ = stamp;
  auto opened = Guarded("opening the store anew", [&] { return OpenWhole(stamp); });
  renewed_ = opened.status();
  const auto end = std::chrono::steady_clock::now();
  renew_after_ = end + kPause * (end - start);
  if (!opened.ok()) return renewed_;
  std::shared_ptr<const OpenRocksDb> old = std::move(opened->first);  // closed without a lock
  const std::lock_guard catching_up(catch_up_mutex_);
  const CountsChange change(&ingest_events_);
  const std::lock_guard lock(use_mutex_);
  open_.swap(old);
  ForgetAround();  // after it: a scan that begins before may open it again
  manifest_opened_ = NameIn(stamp);
  ++num_renewals_;
  Note(std::move(opened->second));
  return Status::Ok();
}

// Keeps what a look has found. Call it under follow_mutex_.
void Database::Note(Seen seen) const {
  manifest_seen_ = std::move(seen.stamp);
  const std::lock_guard lock(lost_mutex_);
  stale_ = !seen.lost.empty() || !seen.held.empty();
  lost_ = std::move(seen.lost);
  held_ = std::move(seen.held);
  behind_ = Status::Ok();
}

// From here on no family gives an answer. Call it under follow_mutex_.
Status Database::FallBehind(const Status& why) const {
  manifest_seen_.clear();
  const std::lock_guard lock(lost_mutex_);
  behind_ = Status::Unavailable("out of memory");  // if there is none for more words
  stale_ = true;
  behind_ = why.WithContext("the store in " + path_.string() + " cannot be followed");
  return behind_;
}

// True when families that lack no lost table give answers.
bool Database::AnswersUnlessLost() const {
  const std::lock_guard lock(lost_mutex_);
  return behind_.ok() && held_.empty();
}

Status Database::CatchUp() const {
  if (for_writing_ || is_frozen_) return Status::Ok();
  const std::lock_guard follow(follow_mutex_);
  // RocksDB would look for the missing file again and again, without an end.
  VARVE_ASSIGN_OR_RETURN(const std::string stamp, AwaitManifestStamp(path_));
  if (despite_lost_) {  // what it shows is old in every family
    if (stamp != manifest_seen_) stale_ = true;
    return Status::Ok();
  }
  if ((NameIn(stamp) != manifest_opened_ || stale_) && Renew(stamp, !AnswersUnlessLost()).ok()) {
    return Status::Ok();
  }
  const Status status = FollowInPlace(stamp);
  if (AnswersUnlessLost()) return status;
  const Status renewed = Renew(stamp, /*at_once=*/true);
  if (renewed.ok() || status.ok()) return Status::Ok();
  return FallBehind(Status(
      status.code(), status.message() + ". It cannot be opened anew either: " + renewed.ToString() +
                         ". Try again, or open the store again"));
}

// Catches up as RocksDB does. When that fails, some families may show a newer state than others,
// and no read gets an answer.
Status Database::FollowInPlace(const std::string& stamp) const {
  const std::lock_guard lock(catch_up_mutex_);
  if (stamp == manifest_seen_) return Status::Ok();
  const CountsChange change(&ingest_events_);
  Result<Seen> seen = Guarded("catching up with the writer", [&]() -> Result<Seen> {
    VARVE_RETURN_IF_ERROR(open_->Advance());
    return Follow(*open_, stamp, /*in_place=*/true);
  });
  if (!seen.ok()) {
    FallBehind(seen.status()).IgnoreError();
    return seen.status();
  }
  Note(*std::move(seen));
  return Status::Ok();
}

// An answer from a family that cannot follow the writer would be out of date.
Status Database::CheckNotStale(Family family, const std::string& what) const {
  if (!stale_) return Status::Ok();
  if (despite_lost_) {
    const std::lock_guard lock(lost_mutex_);
    return Status::Corruption(what + ": " + lost_.front().what +
                              ", and the store has changed since it was opened; open it again");
  }
  {
    const std::lock_guard lock(lost_mutex_);
    if (!behind_.ok()) return behind_.WithContext(what);
  }
  if (const std::string lost = LostOf(family); !lost.empty()) {
    return Status::Corruption(what + ": " + lost);
  }
  const std::lock_guard lock(lost_mutex_);
  const auto held = held_.find(std::string(kFamilyNames[static_cast<int>(family)]));
  return held == held_.end() ? Status::Ok() : Status::IOError(what + ": " + held->second);
}

Status Database::CheckFilesOf(Family family) const {
  const std::string name(kFamilyNames[static_cast<int>(family)]);
  return CheckNotStale(family, "listing the files of family " + name);
}

}  // namespace varve::internal
