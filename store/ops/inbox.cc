// SPDX-License-Identifier: Apache-2.0
#include "store/ops/inbox.h"

#include <fcntl.h>
#include <flatbuffers/flatbuffers.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/folders.h"
#include "base/random_number.h"
#include "base/util.h"
#include "store/format/verified_buffer.h"
#include "store/schema/request_generated.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;
using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr std::string_view kRequest = ".request";
constexpr std::string_view kStarted = ".started";
constexpr std::string_view kApplied = ".applied";
constexpr std::string_view kAnswer = ".answer";
constexpr size_t kMaxFileBytes = size_t{64} << 20;  // a drop of a million steps
constexpr std::string_view kTemporary = ".tmp";     // of a process that was killed meanwhile
constexpr auto kLife = std::chrono::hours(1);

auto MakeIds(FlatBufferBuilder* builder, const std::vector<CheckpointId>& ids) {
  std::vector<Offset<fb::Checkpoint>> out;
  for (const CheckpointId& id : ids) {
    out.push_back(fb::CreateCheckpoint(*builder, builder->CreateString(id.run), id.step));
  }
  return builder->CreateVector(out);
}

std::vector<CheckpointId> ReadIds(const flatbuffers::Vector<Offset<fb::Checkpoint>>* in) {
  std::vector<CheckpointId> ids;
  if (in == nullptr) return ids;
  for (const fb::Checkpoint* id : *in) ids.push_back({id->run()->str(), id->step()});
  return ids;
}

std::string Finish(FlatBufferBuilder* builder, Offset<void> root) {
  builder->Finish(root);
  return {reinterpret_cast<const char*>(builder->GetBufferPointer()), builder->GetSize()};
}

// The parts of a request that its kind uses.
struct Parts {
  fb::RequestKind kind = fb::RequestKind::kSetTag;
  std::vector<CheckpointId> ids;
  std::string tag;
  std::map<std::string, double> metrics;
  bool reclaim = false;
};

Parts PartsOf(const Request& request) {
  Parts parts;
  if (const auto* set_tag = std::get_if<SetTagRequest>(&request)) {
    parts.kind = fb::RequestKind::kSetTag;
    parts.ids = {set_tag->id};
    parts.tag = set_tag->tag;
  } else if (const auto* remove = std::get_if<RemoveTagRequest>(&request)) {
    parts.kind = fb::RequestKind::kRemoveTag;
    parts.ids = {{remove->run, 0}};
    parts.tag = remove->tag;
  } else if (const auto* metrics = std::get_if<SetMetricsRequest>(&request)) {
    parts.kind = fb::RequestKind::kSetMetrics;
    parts.ids = {metrics->id};
    parts.metrics = metrics->metrics;
  } else {
    const auto& drop = std::get<DropRequest>(request);
    parts.kind = fb::RequestKind::kDrop;
    parts.ids = drop.ids;
    parts.reclaim = drop.reclaim;
  }
  return parts;
}

}  // namespace

std::string EncodeRequest(const InboxRequest& request) {
  const Parts parts = PartsOf(request.request);
  FlatBufferBuilder builder;
  std::vector<Offset<fb::NamedNumber>> metrics;
  for (const auto& [name, value] : parts.metrics) {
    metrics.push_back(fb::CreateNamedNumber(builder, builder.CreateString(name), value));
  }
  const auto ids = MakeIds(&builder, parts.ids);
  const auto tag = builder.CreateString(parts.tag);
  const auto all_metrics = builder.CreateVector(metrics);
  return Finish(&builder, fb::CreateRequest(builder, parts.kind, ids, tag, all_metrics,
                                            parts.reclaim, request.wants_answer)
                              .Union());
}

Result<InboxRequest> DecodeRequest(std::string_view value) {
  const VerifiedBuffer<fb::Request> buffer(value);
  const auto* in = buffer.root();
  if (in == nullptr) return Status::Corruption("not a request");
  std::vector<CheckpointId> ids = ReadIds(in->ids());
  const std::string tag = in->tag() == nullptr ? "" : in->tag()->str();
  InboxRequest out;
  out.wants_answer = in->wants_answer();
  if (in->kind() == fb::RequestKind::kDrop) {
    out.request = DropRequest{std::move(ids), in->reclaim()};
    return out;
  }
  if (ids.size() != 1) {
    return Status::Corruption("a request names " + std::to_string(ids.size()) +
                              " checkpoints, expected 1");
  }
  switch (in->kind()) {
    case fb::RequestKind::kSetTag:
      out.request = SetTagRequest{ids[0], tag};
      return out;
    case fb::RequestKind::kRemoveTag:
      out.request = RemoveTagRequest{ids[0].run, tag};
      return out;
    case fb::RequestKind::kSetMetrics: {
      SetMetricsRequest metrics{ids[0], {}};
      if (in->metrics() != nullptr) {
        for (const fb::NamedNumber* m : *in->metrics())
          metrics.metrics[m->name()->str()] = m->value();
      }
      out.request = std::move(metrics);
      return out;
    }
    default:
      return Status::Corruption("a request of unknown kind " +
                                std::to_string(static_cast<int>(in->kind())));
  }
}

std::string EncodeAnswer(const InboxAnswer& answer) {
  FlatBufferBuilder builder;
  const auto message = builder.CreateString(answer.status.message());
  const auto dropped = MakeIds(&builder, answer.drop.dropped);
  const ReclaimReport& reclaim = answer.drop.reclaim;
  const auto warnings = builder.CreateVectorOfStrings(answer.drop.warnings);
  return Finish(&builder, fb::CreateAnswer(
                              builder, static_cast<uint8_t>(answer.status.code()), message, dropped,
                              reclaim.freed_bytes, reclaim.rewritten_bytes, reclaim.pending_bytes,
                              reclaim.disk_bytes_before, reclaim.disk_bytes_after, warnings)
                              .Union());
}

Result<InboxAnswer> DecodeAnswer(std::string_view value) {
  const VerifiedBuffer<fb::Answer> buffer(value);
  const auto* in = buffer.root();
  constexpr auto kLastCode = static_cast<uint8_t>(StatusCode::kAborted);
  if (in == nullptr || in->code() > kLastCode) return Status::Corruption("not an answer");
  InboxAnswer out;
  if (in->code() != 0) {
    out.status = Status(static_cast<StatusCode>(in->code()),
                        in->message() == nullptr ? "" : in->message()->str());
  }
  out.drop.dropped = ReadIds(in->dropped());
  out.drop.reclaim = {.freed_bytes = in->freed_bytes(),
                      .rewritten_bytes = in->rewritten_bytes(),
                      .pending_bytes = in->pending_bytes(),
                      .disk_bytes_before = in->disk_bytes_before(),
                      .disk_bytes_after = in->disk_bytes_after()};
  if (in->warnings() != nullptr) {
    for (const flatbuffers::String* warning : *in->warnings()) {
      out.drop.warnings.push_back(warning->str());
    }
  }
  return out;
}

namespace {

// Another user may be allowed to make files in the folder, for example by the rights of a group,
// and shall not change the store with the rights of its writer.
bool MaySend(uid_t user, const struct stat& store) {
  return user == 0 || user == ::geteuid() || user == store.st_uid;
}

// The writer's user, who owns db/CURRENT, may answer, too.
bool MayAnswer(uid_t user, const fs::path& store) {
  struct stat owned {};
  if (::stat(store.c_str(), &owned) == 0 && MaySend(user, owned)) return true;
  return ::stat((store / "db" / "CURRENT").c_str(), &owned) == 0 && user == owned.st_uid;
}

Status CheckSender(int fd, const fs::path& request, const fs::path& store) {
  struct stat sent {};
  struct stat owned {};
  if (::fstat(fd, &sent) != 0) return ErrnoStatus("look at", request, errno);
  if (::stat(store.c_str(), &owned) != 0) return ErrnoStatus("look at", store, errno);
  if (MaySend(sent.st_uid, owned)) return Status::Ok();
  return Status::FailedPrecondition(
      request.string() + " is a request of user " + std::to_string(sent.st_uid) +
      ", expected one of user " + std::to_string(owned.st_uid) +
      ", who owns the store, of the writer's user or of root. It was not applied: let one of them "
      "run the command");
}

// A file that another user has put there is not the writer's, which leaves it to Prepare.
bool IsFromSender(const fs::path& file, const struct stat& store) {
  struct stat info {};
  return ::lstat(file.c_str(), &info) == 0 && MaySend(info.st_uid, store);
}

}  // namespace

Status Inbox::Prepare() const {
  VARVE_RETURN_IF_ERROR(CheckIsNoLink(folder_));
  std::error_code error;
  fs::create_directory(folder_, error);
  if (error) return Status::IOError("cannot make " + folder_.string() + ": " + error.message());
  struct stat store {};
  if (::stat(folder_.parent_path().c_str(), &store) != 0) {
    return ErrnoStatus("look at", folder_.parent_path(), errno);
  }
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : EntriesOf(folder_, &error)) {
    std::error_code ignored;  // the process that asked may take it just now
    const fs::path suffix = entry.path().extension();
    const bool is_ignored =
        (suffix == kStarted || suffix == kApplied) && !IsFromSender(entry.path(), store);
    const bool is_left = is_ignored || suffix == kAnswer || suffix == kTemporary;
    if (is_left && now - entry.last_write_time(ignored) > kLife) {
      fs::remove(entry.path(), ignored);
    }
  }
  return Status::Ok();
}

Result<std::string> Inbox::Put(const InboxRequest& request) const {
  VARVE_RETURN_IF_ERROR(Prepare());
  // Whoever made the folder may have failed to sync its name.
  VARVE_RETURN_IF_ERROR(SyncFolder(folder_.parent_path()));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  // The clock may have been set back. What waits already goes first.
  VARVE_ASSIGN_OR_RETURN(const std::vector<Waiting> waiting, List());
  const uint64_t last =
      waiting.empty() ? 0 : std::strtoull(waiting.back().name.c_str(), nullptr, 10);
  char name[64];
  std::snprintf(name, sizeof(name), "%020llu-%08x",
                static_cast<unsigned long long>(std::max(static_cast<uint64_t>(us), last + 1)),
                static_cast<uint32_t>(RandomNumber()));
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(File(name, kRequest), EncodeRequest(request)));
  return std::string(name);
}

Result<std::optional<InboxAnswer>> Inbox::TakeAnswer(const std::string& name) const {
  const fs::path path = File(name, kAnswer);
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  // Nobody but another user makes a link.
  const bool is_none = !fd.is_open() && (errno == ENOENT || errno == ELOOP);
  if (is_none) return std::optional<InboxAnswer>();
  if (!fd.is_open()) return ErrnoStatus("open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("look at", path, errno);
  if (!MayAnswer(info.st_uid, folder_.parent_path())) return std::optional<InboxAnswer>();
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, ReadAtMost(fd.get(), kMaxFileBytes, path));
  Result<InboxAnswer> answer = DecodeAnswer(bytes);
  if (!answer.ok()) return answer.status().WithContext(path.string());
  std::error_code error;
  fs::remove(path, error);
  return std::optional<InboxAnswer>(*std::move(answer));
}

bool Inbox::Has(const std::string& name) const {
  const auto is_there = [&](std::string_view suffix) {
    std::error_code error;  // if nobody knows, it may be there
    return fs::exists(File(name, suffix), error) || error;
  };
  return is_there(kRequest) || is_there(kStarted) || is_there(kApplied);
}

Result<std::vector<Inbox::Waiting>> Inbox::List() const {
  VARVE_RETURN_IF_ERROR(CheckIsNoLink(folder_));
  const fs::path store_folder = folder_.parent_path();
  struct stat store {};
  if (::stat(store_folder.c_str(), &store) != 0) return ErrnoStatus("look at", store_folder, errno);
  std::error_code error;
  const auto entries = EntriesOf(folder_, &error);
  std::vector<Waiting> waiting;
  if (error == std::errc::no_such_file_or_directory) return waiting;
  if (error) return ErrnoStatus("list", folder_, error.value());
  for (const fs::directory_entry& entry : entries) {
    const std::string suffix = entry.path().extension();
    std::error_code vanished;
    if (suffix != kRequest && suffix != kStarted && suffix != kApplied) continue;
    // The request beside it would be removed.
    if (suffix != kRequest && !IsFromSender(entry.path(), store)) continue;
    if (!entry.is_regular_file(vanished)) continue;  // opening a pipe would wait for ever
    waiting.push_back({entry.path().stem(), suffix == kRequest   ? Stage::kWaits
                                            : suffix == kStarted ? Stage::kStarted
                                                                 : Stage::kApplied});
  }
  // A power cut may leave two files of one request. What it has come to goes first.
  std::sort(waiting.begin(), waiting.end(), [](const Waiting& a, const Waiting& b) {
    return a.name != b.name ? a.name < b.name : a.stage > b.stage;
  });
  const auto is_same = [](const Waiting& a, const Waiting& b) { return a.name == b.name; };
  waiting.erase(std::unique(waiting.begin(), waiting.end(), is_same), waiting.end());
  return waiting;
}

Result<InboxRequest> Inbox::Start(const Waiting& waiting) const {
  const fs::path started = File(waiting.name, kStarted);
  const bool is_new = waiting.stage == Stage::kWaits;
  const fs::path file = is_new ? File(waiting.name, kRequest) : started;
  const FileDescriptor fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.is_open()) return ErrnoStatus("open", file, errno);
  VARVE_RETURN_IF_ERROR(CheckSender(fd.get(), file, folder_.parent_path()));
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, ReadAtMost(fd.get(), kMaxFileBytes, file));
  VARVE_ASSIGN_OR_RETURN(InboxRequest request, DecodeRequest(bytes));
  std::error_code error;
  if (is_new) fs::rename(file, started, error);
  if (error) return Status::IOError("cannot take " + file.string() + ": " + error.message());
  // If it came back as one that waits, a drop that was done would fail. Whoever started it before
  // may not have come to this.
  const Status synced = SyncFolder(folder_);
  if (synced.ok()) return request;
  // Nothing was applied, so it must not look as if something was.
  if (is_new) fs::rename(started, file, error);
  return synced;
}

Status Inbox::Finish(const std::string& name, const InboxAnswer& answer, bool wants_answer) const {
  Status status;
  if (wants_answer || !answer.status.ok()) {
    status = WriteFileAtomically(File(name, kApplied), EncodeAnswer(answer));
  }
  const Status shown = ShowAnswer(name);
  return status.ok() ? shown : status;
}

Status Inbox::ShowAnswer(const std::string& name) const {
  std::error_code error;
  for (const std::string_view stage : {kRequest, kStarted}) {
    fs::remove(File(name, stage), error);
    if (!error) continue;
    return Status::IOError("cannot remove " + File(name, stage).string() + ": " + error.message());
  }
  // Or a power cut would bring it back, and it would be applied once more: to a step that was saved
  // since under the number that it drops, for one.
  VARVE_RETURN_IF_ERROR(SyncFolder(folder_));
  const fs::path applied = File(name, kApplied);
  struct stat store {};
  if (::stat(folder_.parent_path().c_str(), &store) != 0) {
    return ErrnoStatus("look at", folder_.parent_path(), errno);
  }
  // Another user's is no answer.
  if (!IsFromSender(applied, store)) return Status::Ok();
  std::error_code ignored;  // an answer lives for an hour from now on
  fs::last_write_time(applied, fs::file_time_type::clock::now(), ignored);
  fs::rename(applied, File(name, kAnswer), error);
  if (!error || error == std::errc::no_such_file_or_directory) return Status::Ok();
  return Status::IOError("cannot show " + applied.string() + ": " + error.message());
}

}  // namespace varve::internal
