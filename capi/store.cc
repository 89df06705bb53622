// SPDX-License-Identifier: Apache-2.0
//
// Stores, and what is neither a handle nor an error.
#include <utility>

#include "capi/arguments.h"
#include "capi/last_error.h"
#include "capi/objects.h"

namespace varve::internal::capi {

namespace {

static_assert(static_cast<int>(Compression::kAuto) == VARVE_COMPRESSION_AUTO);
static_assert(static_cast<int>(Compression::kNone) == VARVE_COMPRESSION_NONE);
static_assert(static_cast<int>(Compression::kFast) == VARVE_COMPRESSION_FAST);
static_assert(static_cast<int>(Compression::kMax) == VARVE_COMPRESSION_MAX);

static_assert(static_cast<int>(Entropy::kAuto) == VARVE_ENTROPY_AUTO);
static_assert(static_cast<int>(Entropy::kZstd) == VARVE_ENTROPY_ZSTD);
static_assert(static_cast<int>(Entropy::kRans) == VARVE_ENTROPY_RANS);

Result<StoreOptions> ReadStoreOptions(const varve_store_options* options) {
  varve_store_options given;
  VARVE_RETURN_IF_ERROR(ReadOptions("varve_store_options", options, &given));
  VARVE_RETURN_IF_ERROR(CheckConstant("compression", given.compression, VARVE_COMPRESSION_MAX));
  VARVE_RETURN_IF_ERROR(CheckConstant("num_threads", given.num_threads, INT32_MAX));
  VARVE_RETURN_IF_ERROR(CheckConstant("entropy", given.entropy, VARVE_ENTROPY_RANS));
  StoreOptions read;
  read.entropy = static_cast<Entropy>(given.entropy);
  read.compression = static_cast<Compression>(given.compression);
  read.num_threads = static_cast<int>(given.num_threads);
  if (given.pipeline_budget_bytes > 0) read.pipeline_budget_bytes = given.pipeline_budget_bytes;
  return read;
}

Result<std::unique_ptr<Store>> OpenStore(const char* path, uint32_t mode,
                                         const StoreOptions& options) {
  switch (mode) {
    case VARVE_OPEN_READ:
      return Store::OpenForReading(path, options);
    case VARVE_OPEN_WRITE:
      return Store::Open(path, options);
    case VARVE_OPEN_CREATE:
      return Store::OpenOrCreate(path, {.digest_seed = {}, .store = options});
    case VARVE_CREATE_NEW:
      return Store::Create(path, {.digest_seed = {}, .store = options});
    default:
      return CheckConstant("mode", mode, VARVE_CREATE_NEW);
  }
}

varve_reclaim_report View(const ReclaimReport& report) {
  return {.struct_size = sizeof(varve_reclaim_report),
          .freed_bytes = report.freed_bytes,
          .rewritten_bytes = report.rewritten_bytes,
          .pending_bytes = report.pending_bytes,
          .disk_bytes_before = report.disk_bytes_before,
          .disk_bytes_after = report.disk_bytes_after};
}

void Print(const char* function, std::span<const std::string> warnings) {
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "%s: %s\n", function, warning.c_str());
  }
}

Status StatusOfCheck(const CheckReport& report) {
  constexpr size_t kShown = 20;
  if (report.ok()) return Status::Ok();
  std::string message = "the check found " + std::to_string(report.errors.size()) + " errors:";
  for (size_t i = 0; i < std::min(kShown, report.errors.size()); ++i) {
    message += "\n" + report.errors[i];
  }
  if (report.errors.size() > kShown) message += "\n...";
  return Status::Corruption(std::move(message));
}

// Runs `change` on a step of a store.
template <typename Change>
Status ChangeStep(varve_store* store, const char* run, uint64_t step, const char* what,
                  const char* name, const Change& change) {
  VARVE_ASSIGN_OR_RETURN(const auto object, Get<StoreObject>(store));
  VARVE_RETURN_IF_ERROR(RequirePointer("run", run));
  VARVE_RETURN_IF_ERROR(RequirePointer(what, name));
  return change(object->store.get(), CheckpointId{run, step});
}

}  // namespace

}  // namespace varve::internal::capi

using namespace varve::internal::capi;  // of this file alone, which defines functions of C
using varve::CheckpointId;
using varve::Status;

const char* varve_version(void) { return VARVE_VERSION_STRING; }

uint32_t varve_dtype_bits(uint32_t dtype) {
  if (dtype >= varve::kNumDTypes) return 0;
  return static_cast<uint32_t>(varve::DTypeBits(static_cast<varve::DType>(dtype)));
}

const char* varve_dtype_name(uint32_t dtype) {
  if (dtype >= varve::kNumDTypes) return "?";
  return varve::DTypeName(static_cast<varve::DType>(dtype)).data();
}

varve_status varve_store_open(const char* path, uint32_t mode, const varve_store_options* options,
                              varve_store** store) {
  return Call("varve_store_open", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("store", store));
    *store = nullptr;
    VARVE_RETURN_IF_ERROR(RequirePointer("path", path));
    VARVE_ASSIGN_OR_RETURN(const varve::StoreOptions read, ReadStoreOptions(options));
    auto object = std::make_shared<StoreObject>();
    VARVE_ASSIGN_OR_RETURN(object->store, OpenStore(path, mode, read));
    Give(std::move(object), store);
    return Status::Ok();
  });
}

void varve_store_close(varve_store* store) {
  CallQuietly("varve_store_close", [&] { Close<StoreObject>(store); });
}

varve_status varve_store_set_metric(varve_store* store, const char* run, uint64_t step,
                                    const char* name, double value) {
  return Call("varve_store_set_metric", [&] {
    return ChangeStep(store, run, step, "name", name,
                      [&](varve::Store* opened, const CheckpointId& id) {
                        return opened->SetMetrics(id, {{name, value}});
                      });
  });
}

varve_status varve_store_set_tag(varve_store* store, const char* run, uint64_t step,
                                 const char* tag) {
  return Call("varve_store_set_tag", [&] {
    return ChangeStep(
        store, run, step, "tag", tag,
        [&](varve::Store* opened, const CheckpointId& id) { return opened->SetTag(id, tag); });
  });
}

varve_status varve_store_remove_tag(varve_store* store, const char* run, const char* tag) {
  return Call("varve_store_remove_tag", [&] {
    return ChangeStep(store, run, 0, "tag", tag, [&](varve::Store* opened, const CheckpointId& id) {
      return opened->RemoveTag(id.run, tag);
    });
  });
}

varve_status varve_store_drop(varve_store* store, const char* run, const uint64_t* steps,
                              size_t num_steps, int reclaims, varve_reclaim_report* report) {
  return Call("varve_store_drop", [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<StoreObject>(store));
    VARVE_RETURN_IF_ERROR(RequirePointer("run", run));
    if (num_steps > 0) VARVE_RETURN_IF_ERROR(RequirePointer("steps", steps));
    VARVE_RETURN_IF_ERROR(CheckOptional("varve_reclaim_report", report));
    std::vector<CheckpointId> ids;
    for (size_t i = 0; i < num_steps; ++i) ids.push_back({run, steps[i]});
    VARVE_ASSIGN_OR_RETURN(const varve::DropReport done,
                           object->store->Drop(ids, {.reclaim = reclaims != 0}));
    Print("varve_store_drop", done.warnings);
    WriteOptional(View(done.reclaim), report);
    return Status::Ok();
  });
}

varve_status varve_store_reclaim(varve_store* store, int all, varve_reclaim_report* report) {
  return Call("varve_store_reclaim", [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<StoreObject>(store));
    VARVE_RETURN_IF_ERROR(CheckOptional("varve_reclaim_report", report));
    VARVE_ASSIGN_OR_RETURN(const varve::ReclaimReport done,
                           object->store->Reclaim({.all = all != 0}));
    Print("varve_store_reclaim", done.warnings);
    WriteOptional(View(done), report);
    return Status::Ok();
  });
}

varve_status varve_store_check(varve_store* store, int reads_data, varve_check_report* report) {
  return Call("varve_store_check", [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<StoreObject>(store));
    VARVE_RETURN_IF_ERROR(CheckOptional("varve_check_report", report));
    varve::CheckOptions options;
    options.read_data = reads_data != 0;
    VARVE_ASSIGN_OR_RETURN(const varve::CheckReport found, object->store->Check(options));
    WriteOptional(varve_check_report{.struct_size = sizeof(varve_check_report),
                                     .num_errors = found.errors.size(),
                                     .num_steps = found.num_steps,
                                     .num_tensors = found.num_tensors,
                                     .num_chunks = found.num_chunks,
                                     .bytes_read = found.bytes_read},
                  report);
    return StatusOfCheck(found);
  });
}

varve_status varve_store_get_stats(varve_store* store, varve_store_stats* stats) {
  return Call("varve_store_get_stats", [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<StoreObject>(store));
    VARVE_RETURN_IF_ERROR(CheckStruct("varve_store_stats", stats));
    VARVE_ASSIGN_OR_RETURN(const varve::StoreStats found, object->store->Stats());
    Print("varve_store_get_stats", found.warnings);
    WriteStruct(varve_store_stats{.struct_size = sizeof(varve_store_stats),
                                  .num_runs = found.num_runs,
                                  .num_steps = found.num_steps,
                                  .num_chunks = found.num_chunks,
                                  .logical_bytes = found.logical_bytes,
                                  .unique_bytes = found.unique_bytes,
                                  .stored_bytes = found.stored_bytes,
                                  .pending_bytes = found.pending_bytes,
                                  .disk_bytes = found.disk_bytes},
                stats);
    return Status::Ok();
  });
}
