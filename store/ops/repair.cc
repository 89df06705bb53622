// SPDX-License-Identifier: Apache-2.0
//
// A repair reads the damaged store through views of hard links, saves what it can read in a new
// store, and exchanges the two folders. All that it makes lies in PATH~repair, until the end:
//   view0   all tables, with the copy of a manifest that is lost or damaged, and with a copy of
//           each table that is too long, cut to its length. Made if there is one of these. Then
//           this, not the damaged store, is what the other views are made of
//   view~   as view0, to find out whether FORMAT or its copy is that of another store
//   view1   the tables that open. Reads that need a damaged block of them fail
//   view2   only tables without damage. Made when a table of records has a damaged block: then one
//           block that cannot be read may keep a scan from records that lie elsewhere
//   store   the new store, and after the exchange the damaged one
//   ready   the id of the new store. Written and synced before the exchange
// The exchange is one rename, after which the store is repaired. Then PATH~repair/store gets its
// last name. If a repair is killed, the next one finds by `ready` which of the two lies there: the
// new store may be removed, the damaged one never is.
#include "store/ops/repair.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/folders.h"
#include "base/guarded.h"
#include "base/stop.h"
#include "base/util.h"
#include "objects/url.h"
#include "store/db/database_lock.h"
#include "store/db/manifest_note.h"
#include "store/db/salvage_view.h"
#include "store/db/sealed_manifest.h"
#include "store/db/spare_files.h"
#include "store/db/store_impl.h"
#include "store/format/group_file.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReadyName = "ready", kFormatView = "view~";
constexpr size_t kDescriptorsToRemove = 4;  // one a level of PATH~repair/view1/db, and one to spare
constexpr size_t kBytesToRemove = size_t{1} << 20;

Status Failed(std::string_view what, const fs::path& path, const std::error_code& error) {
  return Status::IOError("cannot " + std::string(what) + " " + path.string() + ": " +
                         error.message());
}

// What this user may not read is not known to be damaged.
Status CheckMayRead(const fs::path& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd.is_open() || (errno != EACCES && errno != EPERM)) return Status::Ok();
  return Status::IOError("cannot open " + path.string() + ": " + std::strerror(errno) +
                         "; so nobody knows whether it is damaged. Run the repair as the owner of "
                         "the store, or give this user the permission to read all files of it");
}

// Looks at all that a repair reads, so that what follows never takes such an error for damage.
Status CheckMayReadAll(const fs::path& store) {
  for (const fs::path& path :
       {store, store / kFormatFileName, store / kManifestNoteName, store / "BACKUP"}) {
    VARVE_RETURN_IF_ERROR(CheckMayRead(path));
  }
  for (const fs::path& folder : {DbPath(store), SpareFolder(store), SealFolder(store)}) {
    VARVE_RETURN_IF_ERROR(CheckMayRead(folder));
    std::error_code error;  // then reading says why
    for (const fs::directory_entry& entry : EntriesOf(folder, &error)) {
      VARVE_RETURN_IF_ERROR(CheckMayRead(entry.path()));
    }
  }
  return Status::Ok();
}

// Reads what names of runs a table of meta has before and behind its damaged blocks.
Status AddNameHints(const fs::path& file, std::map<RunId, std::string>* names) {
  std::unique_ptr<rocksdb::SstFileReader> reader;
  const Status opened = FromRocksDb(OpenTable(file, &reader), "opening " + file.string());
  if (!opened.ok()) return IsShortage(opened) ? opened : Status::Ok();
  const std::unique_ptr<rocksdb::Iterator> it(reader->NewIterator(rocksdb::ReadOptions()));
  const auto add = [&] {
    const auto name = keys::ParseRun({it->key().data(), it->key().size()});
    const auto record = DecodeRunRecord({it->value().data(), it->value().size()});
    if (name.has_value() && record.ok()) names->emplace(record->id, *name);
  };
  for (it->SeekToFirst(); it->Valid(); it->Next()) add();
  for (it->SeekToLast(); it->Valid(); it->Prev()) add();
  return Status::Ok();
}

// Says whether it is this user or the file system that gives no files away.
bool MayNotGive(int error) {
  return error == EPERM || error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

// Gives a file or folder an owner, a group and a mode. False: this user may not give it away.
Result<bool> TakeOver(const struct stat& owner, mode_t mode, const fs::path& to) {
  struct stat info {};
  if (::lstat(to.c_str(), &info) != 0) return ErrnoStatus("look at", to, errno);
  constexpr auto kSameUser = static_cast<uid_t>(-1);
  const auto give = [&](uid_t user) {
    return ::lchown(to.c_str(), user, owner.st_gid) == 0 ? 0 : errno;
  };
  const bool is_same = info.st_uid == owner.st_uid && info.st_gid == owner.st_gid;
  int error = is_same ? 0 : give(owner.st_uid);
  bool is_given = error == 0;
  if (MayNotGive(error)) {
    error = give(kSameUser);
    is_given = error == 0 && info.st_uid == owner.st_uid;
  }
  if (error != 0 && !MayNotGive(error)) return ErrnoStatus("set the owner of", to, error);
  // A change of the owner takes bits of the mode away, so this comes last.
  if (::chmod(to.c_str(), mode) != 0) return ErrnoStatus("set the mode of", to, errno);
  return is_given;
}

class Repair {
 public:
  Repair(fs::path path, const RepairOptions& options, const OpenUrl& open_url)
      : path_(std::move(path)),
        work_(path_.string() + "~repair"),
        options_(options),
        open_url_(open_url) {}

  Result<RepairReport> Run();

 private:
  Status Work();
  Status ReadFormat();
  Status ChooseFormat(const FoundManifest& manifest);
  Result<size_t> CountStepsThatFit(const FormatFile& format) const;
  Status MakeSealer();
  Status RemoveWhatIsNoFile();
  Status MakeWork() const;
  Status FinishEarlier();
  Status FindDamage();
  Status LookForNewerState(const FoundManifest& manifest);
  Status CutLongTables(const FoundManifest& manifest);
  Status CheckKey() const;
  Result<SalvageSource> OpenView(const char* name, bool with_readable) const;
  Result<SalvageSource> OpenBackup();
  Result<bool> IsBackupLater() const;
  Result<std::vector<SalvageSource>> OpenViews();
  Status MakeNewStore(Salvage* salvage);
  Status TakeOverOwners(const fs::path& folder);
  Status Exchange();
  Status MoveAside();
  Status RemoveWork() const;
  void NameFilesOfStore();

  const fs::path path_;  // of the damaged store, canonical
  const fs::path work_;
  const RepairOptions& options_;
  const OpenUrl& open_url_;
  FormatFile format_;
  std::optional<FormatFile> other_format_;  // in spare/, until it is known which of them is right
  std::shared_ptr<const Sealer> sealer_;    // null: the store is not sealed
  fs::path source_;                         // the damaged store, or view0
  std::vector<DamagedTable> damaged_;
  bool is_backup_of_this_store_ = false;
  bool newest_may_be_missing_ = false;  // the manifest may have lost its end
  std::string new_store_id_;
  RepairReport report_;
};

Result<RepairReport> Repair::Run() {
  const auto started = std::chrono::steady_clock::now();
  if (IsGroupRoot(path_)) {
    return Status::FailedPrecondition(path_.string() +
                                      " is the root of a group, which repair does not mend: copy "
                                      "the steps that can be read into a plain store (varve copy)");
  }
  if (const fs::path root = RootOfMember(path_); !root.empty()) {
    return Status::FailedPrecondition(path_.string() + " is a member of the group in " +
                                      root.string() +
                                      ", which repair does not mend: copy the steps of the group "
                                      "that can be read into a plain store (varve copy)");
  }
  VARVE_RETURN_IF_ERROR(CheckMayReadAll(path_));
  VARVE_RETURN_IF_ERROR(ReadFormat());
  if (!other_format_.has_value()) VARVE_RETURN_IF_ERROR(MakeSealer());
  VARVE_RETURN_IF_ERROR(RemoveWhatIsNoFile());
  const auto lock = DatabaseLock::Take(path_);
  if (!lock.ok()) return lock.status();
  VARVE_RETURN_IF_ERROR(FinishEarlier());
  // A repair that runs out of memory or descriptors still removes what it has made.
  VARVE_ASSIGN_OR_RETURN(auto reserved, ReserveDescriptors(kDescriptorsToRemove));
  auto memory = std::make_unique<std::byte[]>(kBytesToRemove);
  Status status = Guarded("repairing a store", [&] { return Work(); });
  reserved.clear();
  memory.reset();
  const Status removed = RemoveWork();
  if (status.ok()) status = removed;
  if (!status.ok()) return status;
  NameFilesOfStore();
  report_.elapsed = std::chrono::steady_clock::now() - started;
  return report_;
}

Status Repair::MakeSealer() {
  VARVE_ASSIGN_OR_RETURN(sealer_, StoreImpl::MakeSealer(path_, {.key = options_.key}, format_,
                                                        /*for_writing=*/true));
  return Status::Ok();
}

// Reads FORMAT, or its copy if it is lost or damaged.
Status Repair::ReadFormat() {
  const auto format = ReadFormatFile(path_, /*for_writing=*/true);
  const auto spare = ReadFormatFile(SpareFolder(path_), /*for_writing=*/true);
  if (format.ok()) {
    format_ = *format;
    if (spare.ok() && *spare != *format) other_format_ = *spare;
    return Status::Ok();
  }
  if (format.status().code() != StatusCode::kCorruption) return format.status();
  if (!spare.ok()) return format.status();
  report_.damage.push_back(format.status().message());
  format_ = *spare;
  return Status::Ok();
}

// FORMAT and its copy differ, so one of them is that of another store. A step has the root digest
// of its record only with the seed of its own store.
Status Repair::ChooseFormat(const FoundManifest& manifest) {
  if (!other_format_.has_value()) return Status::Ok();
  VARVE_RETURN_IF_ERROR(MakeWork());
  VARVE_RETURN_IF_ERROR(MakeViewOfManifest(path_, format_, manifest, work_ / kFormatView));
  VARVE_ASSIGN_OR_RETURN(const size_t fit, CountStepsThatFit(format_));
  VARVE_ASSIGN_OR_RETURN(const size_t fit_other, CountStepsThatFit(*other_format_));
  const fs::path file = path_ / kFormatFileName, copy = SpareFolder(path_) / kFormatFileName;
  const std::string counts = std::to_string(fit) + " steps have the root digest that they must " +
                             "have by " + file.string() + ", and " + std::to_string(fit_other) +
                             " by its copy " + copy.string();
  if (fit == fit_other) {
    return Status::FailedPrecondition(
        "one of two files is that of another store, and no step says "
        "which: " +
        counts + ". Remove the wrong one");
  }
  const bool is_copy_right = fit_other > fit;
  const std::string what =
      (is_copy_right ? file : copy).string() + " is that of another store: " + counts;
  if (is_copy_right) format_ = *other_format_;
  report_.damage.push_back(what);
  report_.warnings.push_back(what + ". The repair goes by " +
                             (is_copy_right ? copy : file).string());
  return MakeSealer();
}

// 0 if the store cannot be read by that FORMAT.
Result<size_t> Repair::CountStepsThatFit(const FormatFile& format) const {
  VARVE_RETURN_IF_ERROR(WriteFormatFile(work_ / kFormatView, format));
  const auto store = StoreImpl::OpenPath(work_ / kFormatView, {}, /*for_writing=*/false);
  if (IsShortage(store.status())) return store.status();
  if (!store.ok()) return 0;
  std::set<StepKey> steps;
  VARVE_RETURN_IF_ERROR(AddSteps(*(*store)->database(), Family::kSteps, &steps));
  const StepVerifier verifier(store->get());
  size_t fit = 0;
  for (const StepKey& step : steps) {
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    const Status checked = verifier.CheckRecords(step, "");
    if (IsShortage(checked)) return checked;
    if (checked.ok()) ++fit;
  }
  return fit;
}

// RocksDB makes these files anew if they are missing. Varve writes nothing to its logs.
Status Repair::RemoveWhatIsNoFile() {
  std::vector<fs::path> paths = {DbPath(path_) / "IDENTITY", DbPath(path_) / "LOCK"};
  std::error_code ignored;  // then opening the database says why
  for (fs::directory_iterator it(DbPath(path_), ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    if (it->path().extension() == ".log") paths.push_back(it->path());
  }
  for (const fs::path& path : paths) {
    const Status status = CheckIsFile(path);
    if (status.ok()) continue;
    report_.damage.push_back(status.message());
    if (options_.dry_run) continue;
    std::error_code error;
    fs::remove(path, error);
    // What somebody has put in a folder is not ours to remove.
    if (error == std::errc::directory_not_empty) {
      fs::rename(path, path.string() + "~damaged", error);
    }
    if (error) return Failed("remove", path, error);
  }
  return Status::Ok();
}

Status Repair::MakeWork() const {
  VARVE_RETURN_IF_ERROR(CheckIsNoLink(work_));
  // A second try of one repair finds its own folder.
  if (::mkdir(work_.c_str(), S_IRWXU) == 0 || errno == EEXIST) return Status::Ok();
  return ErrnoStatus("make", work_, errno);
}

Status Repair::Work() {
  VARVE_RETURN_IF_ERROR(FindDamage());
  if (report_.damage.empty()) return Status::Ok();
  VARVE_RETURN_IF_ERROR(MakeWork());
  VARVE_ASSIGN_OR_RETURN(auto views, OpenViews());
  VARVE_ASSIGN_OR_RETURN(SalvageSource backup, OpenBackup());
  std::map<RunId, std::string> hints;
  for (const DamagedTable& table : damaged_) {
    if (table.family == kFamilyNames[static_cast<int>(Family::kMeta)] && !table.is_untrusted) {
      VARVE_RETURN_IF_ERROR(AddNameHints(DbPath(source_) / table.file, &hints));
    }
  }
  Salvage salvage(std::move(views), std::move(backup), is_backup_of_this_store_, damaged_,
                  std::move(hints), options_, &report_);
  if (newest_may_be_missing_) {
    VARVE_ASSIGN_OR_RETURN(const bool is_later, IsBackupLater());
    salvage.TakeNewerStepsOfBackup(is_later);
  }
  VARVE_RETURN_IF_ERROR(salvage.Find());
  if (options_.dry_run) return salvage.VerifyAll();
  VARVE_RETURN_IF_ERROR(MakeNewStore(&salvage));
  return Exchange();
}

// An earlier repair may have been killed. If that was after its exchange, the damaged store still
// lacks its last name.
Status Repair::FinishEarlier() {
  constexpr size_t kMaxBytes = 256;
  std::error_code error;
  const auto ready = ReadSmallFile(work_ / kReadyName, kMaxBytes);
  if (ready.status().code() == StatusCode::kNotFound) return Status::Ok();
  if (!ready.ok()) return ready.status();
  const bool has_store = fs::exists(work_ / "store", error);
  if (error) return Failed("look at", work_ / "store", error);
  if (!has_store) return RemoveWork();
  const auto there = ReadFormatFile(work_ / "store", /*for_writing=*/false);
  if (there.ok() && ToHex(there->store_id) == *ready) return RemoveWork();
  VARVE_RETURN_IF_ERROR(MoveAside());
  return RemoveWork();
}

Status Repair::FindDamage() {
  VARVE_RETURN_IF_ERROR(RemoveWork());
  VARVE_ASSIGN_OR_RETURN(const FoundManifest manifest, FindManifest(path_));
  VARVE_RETURN_IF_ERROR(ChooseFormat(manifest));
  for (const std::string& what : manifest.damage) report_.damage.push_back(what);
  source_ = path_;
  if (!manifest.damage.empty()) {
    source_ = work_ / "view0";
    VARVE_RETURN_IF_ERROR(MakeWork());
    VARVE_RETURN_IF_ERROR(MakeViewOfManifest(path_, format_, manifest, source_));
    VARVE_RETURN_IF_ERROR(LookForNewerState(manifest));
  }
  bool has_seal = sealer_ == nullptr;
  if (sealer_ != nullptr && manifest.damage.empty()) {
    const Status sealed = ReadSealedState(path_, *sealer_).status();
    if (sealed.code() == StatusCode::kFailedPrecondition) return sealed;
    has_seal = sealed.ok();
    if (!sealed.ok()) {
      report_.damage.push_back(sealed.message());
      VARVE_RETURN_IF_ERROR(LookForNewerState(manifest));
    }
  }
  if (!has_seal) {
    report_.warnings.push_back(
        "no seal says which steps the store had: somebody without the key may have taken steps, "
        "drops and tags out. Compare the steps that are kept with those that the trainer reported "
        "as saved");
  }
  VARVE_RETURN_IF_ERROR(CutLongTables(manifest));
  VARVE_ASSIGN_OR_RETURN(damaged_, FindDamagedTables(source_, sealer_.get(), options_.progress));
  if (!has_seal) VARVE_RETURN_IF_ERROR(CheckKey());
  for (const DamagedTable& table : damaged_) report_.damage.push_back(table.what);
  if (!report_.damage.empty()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const auto store,
                         StoreImpl::OpenPath(path_, {.key = options_.key}, /*for_writing=*/false));
  CheckOptions check{.read_data = true};
  check.progress = options_.progress;
  VARVE_ASSIGN_OR_RETURN(CheckReport found, store->Check(check));
  report_.damage = std::move(found.errors);
  return Status::Ok();
}

// A manifest that is not whole reads like an earlier one, so the newest steps would be gone without
// a word.
Status Repair::LookForNewerState(const FoundManifest& manifest) {
  constexpr size_t kMaxNamed = 3;
  VARVE_ASSIGN_OR_RETURN(const std::set<std::string> named, FindTableNames(source_));
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> unnamed, FindUnnamedTables(path_, named));
  std::string why = manifest.doubt;
  if (!unnamed.empty()) {
    why += (why.empty() ? "" : "; and ") + std::to_string(unnamed.size()) +
           " table files of db/ are not named in it, as after a crash, or when its end is lost: ";
    for (size_t i = 0; i < std::min(unnamed.size(), kMaxNamed); ++i) {
      why += (i > 0 ? ", " : "") + unnamed[i];
    }
    if (unnamed.size() > kMaxNamed) why += " and more";
  }
  if (why.empty()) return Status::Ok();
  newest_may_be_missing_ = true;
  report_.warnings.push_back(
      "the newest steps, drops and tags may be missing: " + why +
      ". Compare the steps that are kept with those that the trainer reported as saved, and " +
      (options_.from.empty() ? "take what is missing from a backup (--from), or save it again"
                             : "save again what is missing, or keep the damaged store"));
  return Status::Ok();
}

// Bytes behind the end of a table file harm nothing. The file is verified without them.
Status Repair::CutLongTables(const FoundManifest& manifest) {
  VARVE_ASSIGN_OR_RETURN(const auto tables, FindLongTables(source_));
  if (!tables.empty() && source_ == path_) {
    source_ = work_ / "view0";
    VARVE_RETURN_IF_ERROR(MakeWork());
    VARVE_RETURN_IF_ERROR(MakeViewOfManifest(path_, format_, manifest, source_));
  }
  for (const LongTable& table : tables) {
    VARVE_RETURN_IF_ERROR(CutLongTable(table, path_, source_));
    report_.damage.push_back(table.what);
  }
  return Status::Ok();
}

// With another key no table has its tag, and the new store would be empty.
Status Repair::CheckKey() const {
  if (damaged_.empty()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const std::set<std::string> names, FindTableNames(source_));
  if (damaged_.size() < names.size()) return Status::Ok();
  return Status::FailedPrecondition(
      "no seal of " + path_.string() + " fits, and no table file has its tag with this key: " +
      damaged_[0].what + ". The key may be that of another store. Nothing was changed");
}

// Opens a view without the damaged tables, or with those that are readable in part. Tables of meta
// are never readable in part: it is read as a whole.
Result<SalvageSource> Repair::OpenView(const char* name, bool with_readable) const {
  const std::string meta(kFamilyNames[static_cast<int>(Family::kMeta)]);
  const std::string chunks(kFamilyNames[static_cast<int>(Family::kChunks)]);
  SalvageSource source;
  for (const DamagedTable& table : damaged_) {
    const bool may_stay = with_readable ? table.family != meta : table.family == chunks;
    if (!table.is_readable || !may_stay) source.left_out.push_back(table);
  }
  VARVE_RETURN_IF_ERROR(MakeSalvageView(source_, format_, source.left_out, work_ / name));
  VARVE_ASSIGN_OR_RETURN(source.store,
                         StoreImpl::OpenPath(work_ / name, {}, /*for_writing=*/false));
  source.verifier = std::make_unique<StepVerifier>(source.store.get());
  return source;
}

Result<std::vector<SalvageSource>> Repair::OpenViews() {
  std::vector<SalvageSource> views;
  VARVE_ASSIGN_OR_RETURN(SalvageSource first, OpenView("view1", /*with_readable=*/true));
  views.push_back(std::move(first));
  VARVE_ASSIGN_OR_RETURN(SalvageSource second, OpenView("view2", /*with_readable=*/false));
  if (second.left_out.size() > views[0].left_out.size()) views.push_back(std::move(second));
  return views;
}

Result<SalvageSource> Repair::OpenBackup() {
  SalvageSource source;
  if (options_.from.empty()) return source;
  if (LooksLikeUrl(options_.from)) {
    VARVE_ASSIGN_OR_RETURN(source, open_url_(options_.from));
  } else {
    VARVE_RETURN_IF_ERROR(CheckMayReadAll(options_.from));
    VARVE_ASSIGN_OR_RETURN(source.store,
                           StoreImpl::OpenPath(options_.from, {}, /*for_writing=*/false));
  }
  const FormatFile& format = source.store->format();
  if (format.digest_seed != format_.digest_seed) {
    return Status::FailedPrecondition(options_.from + " is no backup of " + path_.string() +
                                      ": its digests have another seed");
  }
  is_backup_of_this_store_ = format.store_id == format_.store_id;
  source.verifier = std::make_unique<StepVerifier>(source.store.get());
  return source;
}

// True when the backup holds a later state than what the damaged store still shows. Tables are
// numbered as they are made, and a copy keeps their numbers. A writer that opens the copy gives it
// numbers of its own, and a SYNCED. A snapshot does not say whether it is of such a copy.
Result<bool> Repair::IsBackupLater() const {
  std::error_code ignored;
  const fs::path from = options_.from;
  const bool is_as_copied = !LooksLikeUrl(options_.from) && fs::exists(from / "BACKUP", ignored) &&
                            !fs::exists(from / "SYNCED", ignored);
  if (!is_backup_of_this_store_ || !is_as_copied) return false;
  VARVE_ASSIGN_OR_RETURN(const std::set<std::string> here, FindTableNames(source_));
  VARVE_ASSIGN_OR_RETURN(const std::set<std::string> there, FindTableNames(from));
  const auto newest = [](const std::set<std::string>& names) {
    std::pair<size_t, std::string> last;  // numbers have no needless zeros beyond six digits
    for (const std::string& name : names) last = std::max(last, {name.size(), name});
    return last;
  };
  return newest(there) > newest(here);
}

Status Repair::MakeNewStore(Salvage* salvage) {
  const fs::path folder = work_ / "store";
  {
    const CreateOptions options{.digest_seed = format_.digest_seed, .store = {.key = options_.key}};
    // Whatever could open the damaged store can open the new one.
    VARVE_ASSIGN_OR_RETURN(const auto store,
                           StoreImpl::CreatePath(folder, options, format_.incompatible));
    VARVE_RETURN_IF_ERROR(salvage->SaveAll(store.get()));
  }
  VARVE_ASSIGN_OR_RETURN(const auto store,
                         StoreImpl::OpenPath(folder, {.key = options_.key}, /*for_writing=*/false));
  CheckOptions options{.read_data = true};
  options.progress = options_.progress;
  VARVE_ASSIGN_OR_RETURN(const CheckReport check, store->Check(options));
  if (!check.ok()) {
    return Status::Corruption("the new store is damaged, and " + path_.string() +
                              " stays as it was: " + check.errors[0]);
  }
  VARVE_RETURN_IF_ERROR(TakeOverOwners(folder));
  VARVE_ASSIGN_OR_RETURN(const FormatFile format, ReadFormatFile(folder, /*for_writing=*/false));
  new_store_id_ = ToHex(format.store_id);
  return Status::Ok();
}

// Whoever could use the files of the damaged store can use those of the new one, and nobody else.
// What has no namesake there gets the owner and the group of its folder, and no permission that a
// file of that folder lacks.
Status Repair::TakeOverOwners(const fs::path& folder) {
  bool is_all_given = true;
  std::vector<fs::path> names = {""};
  for (size_t i = 0; i < names.size(); ++i) {
    const fs::path name = names[i];
    struct stat old {};
    const bool has_old = ::stat((path_ / name).c_str(), &old) == 0;
    const fs::path from = has_old ? path_ / name : path_;
    if (!has_old && ::stat(path_.c_str(), &old) != 0) return ErrnoStatus("look at", path_, errno);
    mode_t shared = 0666;
    std::error_code error;
    for (const fs::directory_entry& entry : EntriesOf(from, &error)) {
      struct stat file {};
      if (::lstat(entry.path().c_str(), &file) == 0 && S_ISREG(file.st_mode))
        shared &= file.st_mode;
    }
    if (error) shared = 0;
    const auto entries = EntriesOf(folder / name, &error);
    if (error) return Failed("list", folder / name, error);
    for (const fs::directory_entry& entry : entries) {
      struct stat file {};
      if (entry.is_directory(error)) {
        names.push_back(name / entry.path().filename());
        continue;
      }
      const fs::path namesake = path_ / name / entry.path().filename();
      const bool has_namesake = namesake.extension() != ".sst" &&
                                ::lstat(namesake.c_str(), &file) == 0 && S_ISREG(file.st_mode);
      const mode_t mode = has_namesake ? file.st_mode & 0777 : shared | S_IRUSR | S_IWUSR;
      VARVE_ASSIGN_OR_RETURN(const bool is_given,
                             TakeOver(has_namesake ? file : old, mode, entry.path()));
      is_all_given = is_all_given && is_given;
    }
    VARVE_ASSIGN_OR_RETURN(const bool is_given, TakeOver(old, old.st_mode & 07777, folder / name));
    is_all_given = is_all_given && is_given;
  }
  if (!is_all_given) {
    report_.warnings.push_back(
        "the repaired store does not belong to the user and the group of "
        "the damaged one, because this user may not give files away");
  }
  return Status::Ok();
}

Status Repair::Exchange() {
  VARVE_RETURN_IF_ERROR(StopFlag().Check());
  const fs::path folder = work_ / "store";
  VARVE_RETURN_IF_ERROR(SyncFolder(folder));
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(work_ / kReadyName, new_store_id_));
  VARVE_RETURN_IF_ERROR(SyncFolder(path_.parent_path()));
  if (::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
    const Status status = ErrnoStatus("exchange " + folder.string() + " with", path_, errno);
    return Status::FailedPrecondition(
        status.message() + "; the store stays as it was. Copy it to a file system that can " +
        "exchange two folders, and repair it there");
  }
  VARVE_RETURN_IF_ERROR(SyncFolder(path_.parent_path()));
  VARVE_RETURN_IF_ERROR(SyncFolder(work_));
  return MoveAside();
}

// The views are gone when the report is read, and their files have the same names in the store.
void Repair::NameFilesOfStore() {
  const std::string start = (work_ / "view").string();  // and one character
  const auto mend = [&](std::string* text) {
    for (size_t at = 0; (at = text->find(start, at)) != std::string::npos;
         at += path_.string().size()) {
      text->replace(at, start.size() + 1, path_.string());
    }
  };
  const auto mend_all = [&](std::vector<std::string>* texts) {
    for (std::string& text : *texts) mend(&text);
  };
  mend_all(&report_.damage);
  mend_all(&report_.warnings);
  for (auto& step : report_.kept) mend_all(&step.doubts);
  for (auto& step : report_.lost) mend(&step.reason);
  for (auto& step : report_.partial) {
    mend_all(&step.other_losses);
    mend_all(&step.doubts);
  }
}

// Gives the damaged store its last name.
Status Repair::MoveAside() {
  constexpr int kMaxNames = 10000;
  for (int k = 1; k < kMaxNames; ++k) {
    const fs::path to = path_.string() + "~damaged" + (k > 1 ? std::to_string(k) : "");
    const fs::path from = work_ / "store";
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
      report_.damaged_store = to;
      return SyncFolder(path_.parent_path());
    }
    if (errno != EEXIST) return ErrnoStatus("rename", from, errno);
  }
  return Status::AlreadyExists("there are " + std::to_string(kMaxNames) + " folders " +
                               path_.string() + "~damaged; remove those that nobody needs");
}

// Removes PATH~repair, unless the damaged store lies in it. After an exchange it does, until it has
// its last name. `ready` names the store that was made. Without it there was no exchange.
Status Repair::RemoveWork() const {
  constexpr size_t kMaxBytes = 256;
  std::error_code error;
  const bool has_work = fs::exists(work_, error);
  if (error) return Failed("look at", work_, error);
  if (!has_work) return Status::Ok();
  for (const fs::directory_entry& entry : EntriesOf(work_, &error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("view") || name == "store" || name.starts_with(kReadyName)) continue;
    return Status::FailedPrecondition(work_.string() + " holds " + name +
                                      ", which no repair has made; move the folder away");
  }
  if (error) return Failed("list", work_, error);
  const auto ready = ReadSmallFile(work_ / kReadyName, kMaxBytes);
  const bool is_ready = ready.status().code() != StatusCode::kNotFound;
  if (is_ready && !ready.ok()) return ready.status();
  const bool has_store = fs::exists(work_ / "store", error);
  if (error) return Failed("look at", work_ / "store", error);
  const auto there = ReadFormatFile(work_ / "store", /*for_writing=*/false);
  const bool is_new_store = there.ok() && (is_ready ? ToHex(there->store_id) == *ready
                                                    : there->store_id != format_.store_id);
  const bool is_unfinished = !there.ok() && !is_ready;
  if (has_store && !is_new_store && !is_unfinished) {
    return Status::FailedPrecondition("the damaged store lies in " + (work_ / "store").string() +
                                      ". Move it away");
  }
  if (is_ready) {  // first: it says what the folder holds, and a part of a store is none
    fs::remove(work_ / kReadyName, error);
    if (error) return Failed("remove", work_ / kReadyName, error);
    VARVE_RETURN_IF_ERROR(SyncFolder(work_));
  }
  fs::remove_all(work_, error);
  return error ? Failed("remove", work_, error) : Status::Ok();
}

}  // namespace

Result<RepairReport> RepairWith(const fs::path& path, const RepairOptions& options,
                                const OpenUrl& open_url) {
  return Guarded("repairing a store", [&]() -> Result<RepairReport> {
    std::error_code error;
    const fs::path canonical = fs::canonical(path, error);
    if (error == std::errc::permission_denied) return Failed("look at", path, error);
    if (error) return Status::NotFound("no store in " + path.string());
    return Repair(canonical, options, open_url).Run();
  });
}

}  // namespace varve::internal
