// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "python/src/bindings.h"
#include "varve/async_checkpointer.h"
#include "varve/remote.h"
#include "varve/store.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

// A class of plain values: attributes that can be read, a repr, and `_fields` as a named tuple has.
template <typename T>
class RecordClass {
 public:
  RecordClass(nb::module_& module, const char* name, const char* doc) : class_(module, name, doc) {}

  template <typename Member>
  RecordClass& Field(const char* name, Member T::*member, const char* doc = "") {
    class_.def_ro(name, member, doc);
    names_.emplace_back(name);
    return *this;
  }
  template <typename Getter>
  RecordClass& Property(const char* name, Getter getter, const char* doc = "") {
    class_.def_prop_ro(name, getter, doc);
    names_.emplace_back(name);
    return *this;
  }
  // What str() returns, where that is not the repr.
  template <typename Getter>
  RecordClass& Text(Getter getter) {
    class_.def("__str__", getter);
    return *this;
  }
  void Done() {
    nb::list fields;
    for (const std::string& name : names_) fields.append(nb::str(name.c_str()));
    class_.attr("_fields") = nb::tuple(fields);
    class_.def("__repr__", [](nb::handle self) {
      std::string text = nb::cast<std::string>(self.type().attr("__name__")) + "(";
      const char* separator = "";
      for (nb::handle field : self.attr("_fields")) {
        const nb::object value = nb::getattr(self, field);
        text += separator + nb::cast<std::string>(field) + "=" + nb::repr(value).c_str();
        separator = ", ";
      }
      return text + ")";
    });
  }

 private:
  nb::class_<T> class_;
  std::vector<std::string> names_;
};

template <typename Info>
nb::typed<nb::object, nb::any> UtcTime(const Info& info) {
  const auto microseconds =
      std::chrono::duration_cast<std::chrono::microseconds>(info.created.time_since_epoch());
  const nb::module_ datetime = nb::module_::import_("datetime");
  const nb::object epoch = datetime.attr("datetime")(
      1970, 1, 1, nb::arg("tzinfo") = datetime.attr("timezone").attr("utc"));
  return nb::object(
      epoch + datetime.attr("timedelta")(nb::arg("microseconds") = nb::int_(microseconds.count())));
}

void BindCheckpoints(nb::module_& module) {
  RecordClass<CheckpointId> id(module, "CheckpointId", "A step of a run, by name.");
  id.Field("run", &CheckpointId::run).Field("step", &CheckpointId::step).Done();

  RecordClass<CheckpointInfo> info(
      module, "CheckpointInfo", "What the store knows of a checkpoint without reading a tensor.");
  info.Property("run", [](const CheckpointInfo& i) { return i.id.run; })
      .Property("step", [](const CheckpointInfo& i) { return i.id.step; })
      .Property("created", UtcTime<CheckpointInfo>, "datetime.datetime in UTC, to the microsecond.")
      .Field("parent", &CheckpointInfo::parent, "The step it was saved against, or None.")
      .Field("num_tensors", &CheckpointInfo::num_tensors)
      .Field("logical_bytes", &CheckpointInfo::logical_bytes, "Raw bytes of all tensors.")
      .Field("new_bytes", &CheckpointInfo::new_bytes,
             "Raw bytes that were not in the store before.")
      .Field("stored_bytes", &CheckpointInfo::stored_bytes, "Encoded bytes of those.")
      .Field("metrics", &CheckpointInfo::metrics)
      .Field("tags", &CheckpointInfo::tags)
      .Done();

  RecordClass<RunInfo> run(module, "RunInfo", "A run of a store.");
  run.Field("name", &RunInfo::name)
      .Field("forked_from", &RunInfo::forked_from)
      .Field("num_steps", &RunInfo::num_steps)
      .Done();

  RecordClass<TensorInfo> tensor(module, "TensorInfo", "What the store knows of a tensor.");
  tensor.Property("name", [](const TensorInfo& t) { return t.name; })
      .Property("dtype", [](const TensorInfo& t) { return std::string(DTypeName(t.dtype)); })
      .Property("shape", [](const TensorInfo& t) { return t.shape; })
      .Property("role", [](const TensorInfo& t) { return std::string(TensorRoleName(t.role)); })
      .Property("derived_from", [](const TensorInfo& t) { return t.derived_from; })
      .Property("alias_of", [](const TensorInfo& t) { return t.alias_of; })
      .Field("logical_bytes", &TensorInfo::logical_bytes)
      .Field("num_chunks", &TensorInfo::num_chunks)
      .Field("num_shards", &TensorInfo::num_shards)
      .Property(
          "digest",
          [](const TensorInfo& t) {
            const Digest digest{t.content[0], t.content[1]};
            return digest == Digest{} ? std::optional<std::string>() : ToHex(digest);
          },
          "32 hexadecimal digits, or None where it is not known.")
      .Done();
}

void BindSaves(nb::module_& module) {
  RecordClass<CodecUse> codec(module, "CodecUse", "Bytes of chunks by how they are predicted.");
  codec.Field("codec", &CodecUse::codec)
      .Field("num_chunks", &CodecUse::num_chunks)
      .Field("raw_bytes", &CodecUse::raw_bytes)
      .Field("stored_bytes", &CodecUse::stored_bytes)
      .Done();
  RecordClass<CoderUse> coder(module, "CoderUse", "The same bytes by the coder of each plane.");
  coder.Field("coder", &CoderUse::coder)
      .Field("num_planes", &CoderUse::num_planes)
      .Field("raw_bytes", &CoderUse::raw_bytes)
      .Field("stored_bytes", &CoderUse::stored_bytes)
      .Done();
  RecordClass<SaveReport> save(module, "SaveReport", "What a save stored, and what it cost.");
  save.Property("run", [](const SaveReport& r) { return r.id.run; })
      .Property("step", [](const SaveReport& r) { return r.id.step; })
      .Field("num_tensors", &SaveReport::num_tensors)
      .Field("logical_bytes", &SaveReport::logical_bytes, "Raw bytes of all tensors.")
      .Field("new_bytes", &SaveReport::new_bytes, "Raw bytes that were not in the store before.")
      .Field("stored_bytes", &SaveReport::stored_bytes, "Encoded bytes of those.")
      .Property("seconds", [](const SaveReport& r) { return r.elapsed.count(); })
      .Field("by_codec", &SaveReport::by_codec)
      .Field("by_coder", &SaveReport::by_coder)
      .Field("warnings", &SaveReport::warnings)
      .Done();
}

template <typename Stats>
std::optional<std::string> ErrorOf(const Stats& stats) {
  return stats.status.ok() ? std::optional<std::string>() : stats.status.message();
}

void BindStats(nb::module_& module) {
  RecordClass<SaveStats> stats(module, "SaveStats",
                               "What a save in the background did, and what it cost, in seconds.");
  stats.Field("step", &SaveStats::step)
      .Property("error", ErrorOf<SaveStats>, "None when the save is durable.")
      .Field("skipped", &SaveStats::skipped)
      .Field("num_tensors", &SaveStats::num_tensors)
      .Field("logical_bytes", &SaveStats::logical_bytes)
      .Field("changed_bytes", &SaveStats::changed_bytes)
      .Field("staged_bytes", &SaveStats::staged_bytes)
      .Field("new_bytes", &SaveStats::new_bytes)
      .Field("stored_bytes", &SaveStats::stored_bytes)
      .Field("dropped_steps", &SaveStats::dropped_steps)
      .Field("stall_seconds", &SaveStats::stall_seconds, "What the training waited.")
      .Field("durable_seconds", &SaveStats::durable_seconds)
      .Field("warnings", &SaveStats::warnings)
      .Done();
}

void BindRemoteReports(nb::module_& module) {
  RecordClass<PushStats> stats(module, "PushStats",
                               "What a push in the background did, and what it cost, in seconds.");
  stats.Field("step", &PushStats::step, "The highest step that was due.")
      .Property("error", ErrorOf<PushStats>, "None when the step is in the object store.")
      .Field("failures", &PushStats::failures, "Pushes that failed, one after the other.")
      .Field("snapshot", &PushStats::snapshot)
      .Field("sent_bytes", &PushStats::sent_bytes)
      .Field("seconds", &PushStats::seconds)
      .Field("delay_seconds", &PushStats::delay_seconds,
             "How late it was: from when its first step became due until it ended.")
      .Field("warning", &PushStats::warning)
      .Text([](const PushStats& s) { return ToString(s); })
      .Done();
  RecordClass<PushReport> push(module, "PushReport", "What a push sent.");
  push.Field("snapshot", &PushReport::snapshot, "The snapshot that has it all. 0: there is none.")
      .Field("is_new", &PushReport::is_new, "This push made the snapshot.")
      .Field("total_files", &PushReport::total_files)
      .Field("total_bytes", &PushReport::total_bytes)
      .Field("sent_files", &PushReport::sent_files)
      .Field("sent_bytes", &PushReport::sent_bytes)
      .Field("resumed_files", &PushReport::resumed_files,
             "Those that an interrupted push had sent already.")
      .Property("seconds", [](const PushReport& r) { return r.elapsed.count(); })
      .Done();
  RecordClass<PullReport> pull(module, "PullReport", "What a pull fetched.");
  pull.Field("snapshot", &PullReport::snapshot)
      .Field("num_steps", &PullReport::num_steps, "0 in a dry run.")
      .Field("total_files", &PullReport::total_files)
      .Field("total_bytes", &PullReport::total_bytes)
      .Field("fetched_files", &PullReport::fetched_files)
      .Field("fetched_bytes", &PullReport::fetched_bytes)
      .Property("seconds", [](const PullReport& r) { return r.elapsed.count(); })
      .Done();
  RecordClass<SnapshotInfo> snapshot(module, "SnapshotInfo", "A snapshot in an object store.");
  snapshot.Field("number", &SnapshotInfo::number)
      .Property("created", UtcTime<SnapshotInfo>,
                "datetime.datetime in UTC, by the clock of the host that pushed it.")
      .Field("total_bytes", &SnapshotInfo::total_bytes)
      .Done();
  RecordClass<RemoteReclaimReport> reclaim(module, "RemoteReclaimReport",
                                           "What a reclaim of an object store removed.");
  reclaim.Field("dropped", &RemoteReclaimReport::dropped, "Numbers of snapshots.")
      .Field("kept", &RemoteReclaimReport::kept)
      .Field("removed_blobs", &RemoteReclaimReport::removed_blobs)
      .Field("removed_bytes", &RemoteReclaimReport::removed_bytes)
      .Field("pending_blobs", &RemoteReclaimReport::pending_blobs,
             "Those of pushes that are under way, or may be.")
      .Done();
}

void BindHistory(nb::module_& module) {
  RecordClass<TensorChange> change(module, "TensorChange", "A step at which a tensor changed.");
  change.Field("step", &TensorChange::step)
      .Field("num_chunks", &TensorChange::num_chunks)
      .Field("changed_chunks", &TensorChange::changed_chunks)
      .Field("changed_bytes", &TensorChange::changed_bytes, "Raw bytes of those.")
      .Field("stored_bytes", &TensorChange::stored_bytes, "Encoded bytes stored for them.")
      .Done();
  RecordClass<ValueDiff> values(module, "ValueDiff", "How the elements of a tensor differ.");
  values.Field("num_elements", &ValueDiff::num_elements)
      .Field("changed_elements", &ValueDiff::changed_elements)
      .Field("max_abs", &ValueDiff::max_abs, "max |b - a|")
      .Field("relative_norm", &ValueDiff::relative_norm, "||b - a|| / ||a||")
      .Field("new_nans", &ValueDiff::new_nans, "Elements that are NaN in b and not in a.")
      .Done();
  RecordClass<TensorDiff> tensor(module, "TensorDiff", "A tensor that differs between two steps.");
  tensor.Field("name", &TensorDiff::name)
      .Field("shard", &TensorDiff::shard)
      .Field("reshaped", &TensorDiff::reshaped,
             "Another dtype or shape, or a shard that only one step has.")
      .Field("num_chunks", &TensorDiff::num_chunks)
      .Field("changed_chunks", &TensorDiff::changed_chunks)
      .Field("changed_bytes", &TensorDiff::changed_bytes)
      .Field("values", &TensorDiff::values, "ValueDiff when it was asked for and can be had.")
      .Done();
  RecordClass<CheckpointDiff> diff(module, "CheckpointDiff",
                                   "What differs between two checkpoints.");
  diff.Field("added", &CheckpointDiff::added)
      .Field("removed", &CheckpointDiff::removed)
      .Field("changed", &CheckpointDiff::changed)
      .Field("unchanged", &CheckpointDiff::unchanged)
      .Done();
}

void BindSpace(nb::module_& module) {
  RecordClass<ReclaimReport> reclaim(module, "ReclaimReport", "What a reclaim gave back.");
  reclaim.Field("freed_bytes", &ReclaimReport::freed_bytes)
      .Field("rewritten_bytes", &ReclaimReport::rewritten_bytes)
      .Field("pending_bytes", &ReclaimReport::pending_bytes)
      .Field("disk_bytes_before", &ReclaimReport::disk_bytes_before)
      .Field("disk_bytes_after", &ReclaimReport::disk_bytes_after)
      .Field("warnings", &ReclaimReport::warnings,
             "Messages about damaged records. Only a group has any.")
      .Done();
  RecordClass<DropReport> drop(module, "DropReport", "What a drop did.");
  drop.Field("dropped", &DropReport::dropped)
      .Field("reclaim", &DropReport::reclaim)
      .Field("warnings", &DropReport::warnings)
      .Done();
  RecordClass<DropForecast> forecast(module, "DropForecast", "What a drop would give back.");
  forecast.Field("freed_now", &DropForecast::freed_now)
      .Field("freed_later", &DropForecast::freed_later)
      .Field("warnings", &DropForecast::warnings)
      .Done();
  RecordClass<RetentionDecision> decision(module, "RetentionDecision",
                                          "Whether a policy keeps a step, and why.");
  decision.Property("run", [](const RetentionDecision& d) { return d.id.run; })
      .Property("step", [](const RetentionDecision& d) { return d.id.step; })
      .Field("keep", &RetentionDecision::keep)
      .Field("reasons", &RetentionDecision::reasons)
      .Done();
  RecordClass<RewindReport> rewind(module, "RewindReport", "Where a rewind moved the later steps.");
  rewind.Field("fork", &RewindReport::fork, "The run that holds them. Empty: there were none.")
      .Field("moved", &RewindReport::moved)
      .Done();
}

void BindWhole(nb::module_& module) {
  RecordClass<CheckReport> check(module, "CheckReport", "What a check of the store found.");
  check.Property("ok", &CheckReport::ok, "True: no error.")
      .Field("errors", &CheckReport::errors)
      .Field("warnings", &CheckReport::warnings,
             "Messages about SYNCED, BACKUP and copies in spare/ that are missing, damaged or out "
             "of date. These files help to find and to repair damage.")
      .Field("damaged_steps", &CheckReport::damaged_steps,
             "The steps that cannot be read whole. With `read_data` all of them, else only those "
             "of which something is missing.")
      .Field("num_steps", &CheckReport::num_steps)
      .Field("num_tensors", &CheckReport::num_tensors)
      .Field("num_chunks", &CheckReport::num_chunks)
      .Field("bytes_read", &CheckReport::bytes_read)
      .Field("is_sealed", &CheckReport::is_sealed)
      .Field("num_sealed_files", &CheckReport::num_sealed_files)
      .Done();
  RecordClass<StoreStats> stats(module, "StoreStats", "Sizes of a store, in bytes.");
  stats.Field("format_version", &StoreStats::format_version)
      .Field("num_runs", &StoreStats::num_runs)
      .Field("num_steps", &StoreStats::num_steps)
      .Field("num_chunks", &StoreStats::num_chunks)
      .Field("logical_bytes", &StoreStats::logical_bytes)
      .Field("unique_bytes", &StoreStats::unique_bytes)
      .Field("stored_bytes", &StoreStats::stored_bytes)
      .Field("pending_bytes", &StoreStats::pending_bytes)
      .Field("disk_bytes", &StoreStats::disk_bytes)
      .Field("num_files", &StoreStats::num_files)
      .Field("by_codec", &StoreStats::by_codec)
      .Field("by_coder", &StoreStats::by_coder)
      .Field("warnings", &StoreStats::warnings)
      .Done();
  RecordClass<BackupReport> backup(module, "BackupReport", "What a backup copied.");
  backup.Field("num_steps", &BackupReport::num_steps)
      .Field("copied_files", &BackupReport::copied_files)
      .Field("copied_bytes", &BackupReport::copied_bytes)
      .Field("total_bytes", &BackupReport::total_bytes)
      .Property("seconds", [](const BackupReport& r) { return r.elapsed.count(); })
      .Done();
}

}  // namespace

void BindRecords(nb::module_& module) {
  BindCheckpoints(module);
  BindSaves(module);
  BindStats(module);
  BindRemoteReports(module);
  BindHistory(module);
  BindSpace(module);
  BindWhole(module);
}

}  // namespace varve::python
