// SPDX-License-Identifier: Apache-2.0
#include "varve/seal.h"

#include "base/guarded.h"
#include "base/util.h"
#include "store/db/database_lock.h"
#include "store/db/manifest_note.h"
#include "store/db/sealed_manifest.h"
#include "store/db/sealer.h"
#include "store/format/format_file.h"
#include "store/ops/check_seal.h"

namespace varve {
using namespace internal;

namespace {

namespace fs = std::filesystem;

Status CutManifest(const fs::path& path) {
  VARVE_ASSIGN_OR_RETURN(const SealedState state, ReadUnsealedState(path));
  return CutTornEnd(state.manifest).status();
}

Result<SealReport> SealAnew(const fs::path& path, const std::string& key) {
  VARVE_ASSIGN_OR_RETURN(const FormatFile format, ReadFormatFile(path, /*for_writing=*/true));
  if (!format.is_sealed()) {
    return Status::FailedPrecondition(
        path.string() +
        " was not made with a key, so its table files have no tags. "
        "Copy it into a store that is made with the key (varve copy)");
  }
  VARVE_ASSIGN_OR_RETURN(const auto sealer, Sealer::Make(key, format));
  VARVE_ASSIGN_OR_RETURN(const auto lock, DatabaseLock::Take(path));
  VARVE_RETURN_IF_ERROR(CheckManifestLength(path));
  const Result<SealedState> sealed = PrepareSealedState(path, *sealer);
  if (sealed.status().code() == StatusCode::kFailedPrecondition) return sealed.status();
  if (!sealed.ok()) VARVE_RETURN_IF_ERROR(CutManifest(path));
  VARVE_ASSIGN_OR_RETURN(const SealFacts facts, VerifyTags(path, *sealer));
  if (!facts.errors.empty()) {
    return Status::Corruption(path.string() + " was not sealed: " + facts.errors.front());
  }
  if (!sealed.ok()) VARVE_RETURN_IF_ERROR(SealManifest(facts.state, *sealer));
  VARVE_RETURN_IF_ERROR(ReadSealedState(path, *sealer).status());
  return SealReport{.num_files = facts.num_files};
}

}  // namespace

Result<std::string> ReadKeyFile(const fs::path& path) {
  VARVE_ASSIGN_OR_RETURN(std::string key, ReadSmallFileOrPipe(path, kMaxKeyBytes + 1));
  const Status status = CheckKeySize(key);
  return status.ok() ? Result<std::string>(std::move(key))
                     : Status::InvalidArgument(path.string() + ": " + status.message());
}

Result<SealReport> SealStore(const fs::path& path, const std::string& key) {
  return Guarded("sealing a store", [&] { return SealAnew(path, key); });
}

}  // namespace varve
