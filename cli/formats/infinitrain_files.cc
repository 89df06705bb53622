// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/infinitrain_files.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/util.h"
#include "cli/formats/infinitrain_ckpt.h"

namespace varve::internal::formats {
namespace {

namespace fs = std::filesystem;

// All entries of a folder by name.
Result<std::set<fs::path>> ListFolder(const fs::path& folder) {
  std::error_code error;
  std::set<fs::path> entries;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    entries.insert(entry->path().filename());
  }
  if (error) return Status::IOError(folder.string() + ": " + error.message());
  return entries;
}

// A parallel run makes a folder for each rank. The files do not say which of their tensors are
// parts of one and which are copies, so they are not put together here.
Status NoModel(const fs::path& folder, const std::set<fs::path>& entries) {
  const auto is_rank = [](const fs::path& name) { return name.string().starts_with("rank_"); };
  const auto rank = std::find_if(entries.begin(), entries.end(), is_rank);
  const std::string found = folder.string() + ": there is no " + std::string(kModelCkpt);
  if (rank == entries.end()) return Status::NotFound(found);
  return Status::NotFound(found + " but a folder for each rank, which must be imported one by one" +
                          ", as " + (folder / *rank).string());
}

}  // namespace

Result<InfiniTrainFiles> InfiniTrainFiles::Open(std::span<const fs::path> paths) {
  InfiniTrainFiles files;
  for (const fs::path& path : paths) {
    std::error_code ignored;
    const bool is_folder = fs::is_directory(path, ignored);
    VARVE_RETURN_IF_ERROR(is_folder ? files.AddFolder(path) : files.AddFile(path));
  }
  std::unordered_map<std::string_view, const CkptLayout*> file_of;
  for (const CkptLayout& layout : files.layout_) {
    for (const std::string& tensor : layout.tensors) {
      const auto [entry, is_new] = file_of.emplace(tensor, &layout);
      if (is_new) continue;
      return Status::InvalidArgument("tensor \"" + tensor + "\" is in two files: " +
                                     entry->second->file + " and " + layout.file);
    }
  }
  return files;
}

Status InfiniTrainFiles::AddFolder(const fs::path& folder) {
  VARVE_ASSIGN_OR_RETURN(std::set<fs::path> entries, ListFolder(folder));
  if (!entries.contains(kModelCkpt)) return NoModel(folder, entries);
  for (const std::string_view name : {kModelCkpt, kOptimizerCkpt, kTrainerStateJson}) {
    if (entries.erase(name) > 0) VARVE_RETURN_IF_ERROR(AddFile(folder / name));
  }
  for (const fs::path& name : entries) others_.push_back(folder / name);
  return Status::Ok();
}

Status InfiniTrainFiles::AddFile(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool is_ckpt = name == kModelCkpt || name == kOptimizerCkpt;
  if (!is_ckpt && name != kTrainerStateJson) {
    return Status::InvalidArgument(
        path.string() +
        ": expected a folder checkpoint_step_NNNNNN, or a file model.ckpt, "
        "optimizer.ckpt or trainer_state.json");
  }
  VARVE_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  const Status status = is_ckpt ? AddCkpt(path, file) : AddState(path, file.get());
  // The file's own errors name it.
  return status.code() == StatusCode::kInvalidArgument ? status.WithContext(path.string()) : status;
}

Status InfiniTrainFiles::AddCkpt(const fs::path& path, const std::shared_ptr<InputFile>& file) {
  CkptLayout layout{.file = path.filename().string(), .tensors = {}};
  for (const CkptLayout& other : layout_) {
    if (other.file == layout.file) return Status::InvalidArgument("another file has that name");
  }
  VARVE_ASSIGN_OR_RETURN(std::vector<FileTensor> tensors,
                         ParseCkpt(file->bytes(), FetcherOf(file.get())));
  for (FileTensor& tensor : tensors) {
    layout.tensors.push_back(tensor.name);
    tensor.file = file;
    if (layout.file == kOptimizerCkpt) tensor.role = TensorRole::kOptimizer;
    tensors_.push_back(std::move(tensor));
  }
  layout_.push_back(std::move(layout));
  return Status::Ok();
}

Status InfiniTrainFiles::AddState(const fs::path& path, InputFile* file) {
  if (state_text_) return Status::InvalidArgument("another file has that name");
  VARVE_RETURN_IF_ERROR(file->Fetch(file->bytes()));
  state_text_ = AsString(file->bytes());
  state_path_ = path;
  return Status::Ok();
}

}  // namespace varve::internal::formats
