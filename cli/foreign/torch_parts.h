// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a file of torch.save as bytes to import. Thread rule: one thread. What it returns
// may be read by any.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "cli/formats/small_reads.h"
#include "cli/formats/tensor_bytes.h"
#include "cli/formats/torch_file.h"
#include "cli/formats/torch_tree.h"
#include "varve/trainer_progress.h"

namespace varve::internal::cli {

// The item with all values of a state dict but its tensors, as varve.torch.save writes it.
inline constexpr char kTorchStateItem[] = "torch.state_dict";

// Returns a trainer state that shows these numbers and texts as torch.PATH.
TrainerProgress StateOfTorch(std::span<const formats::PlainValue> values);
// Returns the step that they say, or nullopt.
std::optional<uint64_t> StepOfTorch(std::span<const formats::PlainValue> values);

class TorchParts {
 public:
  explicit TorchParts(std::shared_ptr<const formats::TorchFile> file);

  // Returns the bytes of a tensor of the file's tree. They keep the file.
  std::shared_ptr<formats::TensorBytes> BytesOf(const formats::TorchTensor& tensor);

 private:
  // One for all tensors of a storage, whose checksum covers them together.
  std::shared_ptr<formats::CheckedPart> PartOf(const formats::ZipEntry& entry);

  const std::shared_ptr<const formats::TorchFile> file_;
  const std::shared_ptr<formats::SmallReads> reads_;
  std::map<const formats::ZipEntry*, std::shared_ptr<formats::CheckedPart>> parts_;
};

}  // namespace varve::internal::cli
