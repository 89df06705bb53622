// SPDX-License-Identifier: Apache-2.0
//
// resume_import STORE STEP [--no-load-optim | --samples=N]: a trainer that knows nothing about
// formats. It resumes the newest step of main with all that it holds, and saves it as STEP:
// global_step is STEP, the first byte of each tensor has changed, and the rest is as it was
// restored. With the first flag it has no optimizer, and asks for none. With the second it has
// consumed N samples. It prints how many tensors it has.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "varve/varve.h"

namespace {

varve::Status Resume(const char* path, uint64_t step, bool has_optimizer,
                     std::optional<int64_t> samples) {
  VARVE_ASSIGN_OR_RETURN(auto checkpointer, varve::AsyncCheckpointer::Open(path, {}));
  VARVE_ASSIGN_OR_RETURN(const auto newest, checkpointer->store().LatestStep("main"));
  if (!newest.has_value()) return varve::Status::NotFound("the store is empty");
  varve::TrainingState state;
  std::vector<std::vector<std::byte>> memory;
  {
    VARVE_ASSIGN_OR_RETURN(const auto reader,
                           checkpointer->store().OpenCheckpoint("main", *newest));
    VARVE_ASSIGN_OR_RETURN(const auto tensors, reader->List());
    VARVE_ASSIGN_OR_RETURN(state.topology, reader->ReadTopology());
    for (const varve::TensorInfo& tensor : tensors) {
      if (!has_optimizer && tensor.role == varve::TensorRole::kOptimizer) continue;
      memory.emplace_back(tensor.logical_bytes);
      state.tensors.push_back(
          {{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .role = tensor.role},
           memory.back().data()});
    }
  }
  std::printf("%zu\n", state.tensors.size());
  const varve::LoadOptions options{.optimizer = has_optimizer};
  VARVE_RETURN_IF_ERROR(checkpointer->Restore("latest", options, &state).status());
  for (auto& bytes : memory) {
    if (!bytes.empty()) bytes[0] ^= std::byte{1};
  }
  state.trainer.global_step = static_cast<int64_t>(step);
  if (samples) state.trainer.consumed_samples = *samples;
  VARVE_RETURN_IF_ERROR(checkpointer->Save(step, state).status());
  return checkpointer->Close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  constexpr std::string_view kSamples = "--samples=";
  const std::string_view flag = argc > 3 ? argv[3] : "";
  std::optional<int64_t> samples;
  if (flag.starts_with(kSamples)) samples = std::atoll(argv[3] + kSamples.size());
  const varve::Status status =
      Resume(argv[1], std::strtoull(argv[2], nullptr, 10), flag != "--no-load-optim", samples);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
