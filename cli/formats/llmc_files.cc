// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/llmc_files.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cli/formats/byte_reader.h"

namespace varve::internal::formats {
namespace {

bool IsState(std::span<const std::byte> file) {
  return file.size() >= 4 && LoadU32(file) == kLlmcStateMagic;
}

Status FetchHeader(InputFile* file) {
  return file->Fetch(file->bytes().first(std::min<size_t>(kLlmcHeaderBytes, file->bytes().size())));
}

// Says where the states of `a` and `b` contradict each other. Ok when they may be of one
// checkpoint.
Status CheckTogether(const LlmcState& a, const LlmcState& b) {
  if (a.header.rank == b.header.rank) {
    return ErrorAt(12, "another state file has rank " + std::to_string(a.header.rank) + ", too");
  }
  if (a.header.num_processes != b.header.num_processes) {
    return ErrorAt(8, "the number of processes is " + std::to_string(b.header.num_processes) +
                          "; another state file has " + std::to_string(a.header.num_processes));
  }
  if (a.header.step == b.header.step) return Status::Ok();
  return ErrorAt(40, "the step is " + std::to_string(b.header.step) + "; another state file has " +
                         std::to_string(a.header.step));
}

}  // namespace

Result<LlmcFiles> LlmcFiles::Open(std::span<const std::filesystem::path> paths) {
  LlmcFiles files;
  for (const std::filesystem::path& path : paths) {
    VARVE_ASSIGN_OR_RETURN(auto file, InputFile::Open(path));
    VARVE_RETURN_IF_ERROR(FetchHeader(file.get()));
    files.files_.push_back(std::move(file));
  }
  // The model is read first, because without it the end of a state is unknown.
  for (const bool is_state : {false, true}) {
    for (size_t i = 0; i < paths.size(); ++i) {
      const std::shared_ptr<InputFile>& file = files.files_[i];
      if (IsState(file->bytes()) != is_state) continue;
      const Status status = is_state ? files.AddState(file) : files.AddModel(file);
      if (status.code() == StatusCode::kInvalidArgument) {
        return status.WithContext(paths[i].string());
      }
      VARVE_RETURN_IF_ERROR(status);  // the file's own errors name it
    }
  }
  std::sort(files.states_.begin(), files.states_.end(), [](const State& a, const State& b) {
    return a.parsed.header.rank < b.parsed.header.rank;
  });
  return files;
}

Status LlmcFiles::AddModel(const std::shared_ptr<InputFile>& file) {
  if (!model_header_.empty()) return Status::InvalidArgument("it is a second model file");
  VARVE_ASSIGN_OR_RETURN(model_, ParseLlmcModel(file->bytes()));
  for (FileTensor& tensor : model_.tensors) {
    tensor.file = file;
    tensor.role = TensorRole::kParameter;
  }
  model_header_ = file->bytes().first(kLlmcHeaderBytes);
  return Status::Ok();
}

Status LlmcFiles::AddState(const std::shared_ptr<InputFile>& file) {
  if (model_header_.empty()) {
    return Status::InvalidArgument(
        "a state file does not say how many parameters it is for; name its model file, too");
  }
  State state{.parsed = {}, .header = {}};
  VARVE_ASSIGN_OR_RETURN(
      state.parsed, ParseLlmcState(file->bytes(), model_.num_parameters, FetcherOf(file.get())));
  for (FileTensor& tensor : state.parsed.tensors) {
    tensor.file = file;
    tensor.role = TensorRole::kOptimizer;
  }
  state.header = file->bytes().first(kLlmcHeaderBytes);
  for (const State& other : states_) {
    VARVE_RETURN_IF_ERROR(CheckTogether(other.parsed, state.parsed));
  }
  states_.push_back(std::move(state));
  return Status::Ok();
}

}  // namespace varve::internal::formats
