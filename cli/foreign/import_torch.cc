// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cli/foreign/import_source.h"
#include "cli/foreign/strided_bytes.h"
#include "cli/foreign/torch_parts.h"
#include "cli/formats/shard_set.h"
#include "cli/formats/small_reads.h"
#include "cli/formats/zip_entry_reader.h"

namespace varve::internal::cli {
namespace {

using formats::NamedTorchTensor;
using formats::PlainValue;
using formats::TorchFile;

constexpr char kStatePrefix[] = "torch.";
constexpr std::string_view kUsualNames[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};

// Reads a part of a deflated entry, which has to be read from its start.
Status ReadDeflated(const TorchFile& file, const formats::ZipEntry& entry, uint64_t begin,
                    std::span<std::byte> out) {
  formats::ZipEntryReader reader(file.file(), entry, file.NameOf(entry));
  VARVE_RETURN_IF_ERROR(reader.Skip(begin));
  VARVE_RETURN_IF_ERROR(reader.Read(out));
  VARVE_RETURN_IF_ERROR(reader.Skip(reader.left()));
  return reader.Finish();
}

Result<formats::FileTensor> ToImport(const NamedTorchTensor& tensor, TorchParts* parts) {
  formats::FileTensor added;
  added.name = tensor.name;
  added.dtype = tensor.type->dtype;
  VARVE_ASSIGN_OR_RETURN(added.shape, tensor.type->ShapeOf(tensor.shape));
  added.alias_of = tensor.alias_of;
  if (IsOptimizerState(tensor.name)) added.role = TensorRole::kOptimizer;
  added.bytes = parts->BytesOf(tensor);
  return added;
}

}  // namespace

TrainerProgress StateOfTorch(std::span<const PlainValue> values) {
  TrainerProgress state;
  for (const PlainValue& plain : values) {
    std::visit([&](const auto& value) { state.extra[kStatePrefix + plain.path] = value; },
               plain.value);
    const auto* count = std::get_if<int64_t>(&plain.value);
    if (plain.path == "epoch" && count != nullptr && *count >= 0) state.epoch = *count;
  }
  return state;
}

// Lightning writes global_step, other trainers step.
std::optional<uint64_t> StepOfTorch(std::span<const PlainValue> values) {
  for (const char* const key : {"global_step", "step"}) {
    for (const PlainValue& plain : values) {
      const auto* count = std::get_if<int64_t>(&plain.value);
      if (plain.path == key && count != nullptr && *count >= 0) {
        return static_cast<uint64_t>(*count);
      }
    }
  }
  return std::nullopt;
}

TorchParts::TorchParts(std::shared_ptr<const TorchFile> file)
    : file_(std::move(file)), reads_(std::make_shared<formats::SmallReads>(file_->file())) {}

std::shared_ptr<formats::CheckedPart> TorchParts::PartOf(const formats::ZipEntry& entry) {
  auto& part = parts_[&entry];
  if (part == nullptr) {
    const auto crc = entry.has_crc ? std::optional(entry.crc) : std::nullopt;
    part = std::make_shared<formats::CheckedPart>(reads_, entry.data, crc, file_->NameOf(entry));
  }
  return part;
}

std::shared_ptr<formats::TensorBytes> TorchParts::BytesOf(const formats::TorchTensor& tensor) {
  const formats::ZipEntry& entry = file_->StorageOf(tensor);
  const uint64_t begin = tensor.begin;
  const auto make = [&tensor](ReadSpan read, formats::MadeBytes::Check check) {
    return MakeStridedBytes(tensor.shape, tensor.strides,
                            static_cast<size_t>(tensor.type->element_bytes), tensor.num_bytes,
                            std::move(read), std::move(check));
  };
  if (entry.is_deflated) {
    return make([file = file_, &entry, begin](
                    std::span<std::byte> out) { return ReadDeflated(*file, entry, begin, out); },
                [reads = reads_] { return reads->CheckUnchanged(); });
  }
  const auto part = PartOf(entry);
  if (tensor.IsContiguous()) return std::make_shared<formats::CheckedBytes>(part, begin);
  return make([part, begin](std::span<std::byte> out) { return part->Read(begin, out); },
              [part] { return part->Finish(); });
}

Result<ImportSource> ReadTorch(std::span<const std::filesystem::path> paths) {
  std::vector<std::pair<std::filesystem::path, std::shared_ptr<const TorchFile>>> files;
  formats::ShardSet shards(kUsualNames);
  VARVE_RETURN_IF_ERROR(shards.Read(paths, [&](const std::filesystem::path& path) -> Status {
    VARVE_ASSIGN_OR_RETURN(auto file, TorchFile::Open(path));
    for (const NamedTorchTensor& tensor : file->tree().tensors) {
      VARVE_RETURN_IF_ERROR(shards.AddTensor(tensor.name));
    }
    files.emplace_back(path, std::move(file));
    return Status::Ok();
  }));
  ImportSource source;
  for (const auto& [path, file] : files) {
    if (!file->has_checksums()) {
      source.notes.push_back(path.string() +
                             " has no checksums: a byte that has changed is not found");
    }
    if (files.size() > 1 && file->tree().has_plain) {
      return Status::InvalidArgument(path.string() +
                                     ": it holds values that are no tensors, for which there is no "
                                     "place beside those of other files: import it alone");
    }
    TorchParts parts(file);
    for (const NamedTorchTensor& tensor : file->tree().tensors) {
      Result<formats::FileTensor> added = ToImport(tensor, &parts);
      if (!added.ok()) return added.status().WithContext(path.string());
      source.tensors.push_back(*std::move(added));
    }
  }
  if (files.size() != 1) return source;
  const formats::TorchTree& tree = files.front().second->tree();
  source.items[kTorchStateItem] = tree.json;
  source.state = StateOfTorch(tree.plain);
  source.step = StepOfTorch(tree.plain);
  return source;
}

}  // namespace varve::internal::cli
