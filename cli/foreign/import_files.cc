// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/import_files.h"

#include <memory>
#include <utility>

#include "cli/foreign/import_source.h"
#include "cli/foreign/put_source.h"
#include "store/save/save_session.h"

namespace varve::internal::cli {

Result<SaveReport> ImportFiles(Store* store, ImportRequest request,
                               std::vector<std::string>* notes) {
  VARVE_ASSIGN_OR_RETURN(ImportSource read, ReadFiles(request.format, request.files, request.step));
  const auto source = std::make_shared<ImportSource>(std::move(read));
  const std::optional<uint64_t> step = request.step ? request.step : source->step;
  if (!step) return Status::InvalidArgument("the step is missing: the files do not say it");
  source->SetStep(*step);
  *notes = source->notes;
  // Files may come from someone who knows how to build two chunks of one digest.
  request.save.verify_sharing = true;
  VARVE_ASSIGN_OR_RETURN(const auto session, SaveSession::Begin(store, *step, request.save));
  VARVE_RETURN_IF_ERROR(PutSource(source, session.get()));
  for (const std::string& tag : request.tags) VARVE_RETURN_IF_ERROR(session->AddTag(tag));
  return session->Commit();
}

}  // namespace varve::internal::cli
