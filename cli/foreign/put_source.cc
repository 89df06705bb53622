// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/put_source.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes_of.h"
#include "base/digest.h"
#include "cli/formats/small_reads.h"
#include "cli/formats/tensor_bytes.h"
#include "store/save/chunk_source.h"

namespace varve::internal::cli {
namespace {

using formats::FileTensor;
using formats::SmallReads;
using formats::TensorBytes;

// A damaged file is found when it is read, long after the user's arguments were.
Status AsReadError(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ? Status::IOError(status.message()) : status;
}

// The chunks of a tensor in a file, read when the save gets to them.
class FileChunks : public ChunkSource {
 public:
  // `num_bytes` is that of the dense tensor.
  FileChunks(DType dtype, uint64_t num_bytes, std::shared_ptr<TensorBytes> bytes)
      : bytes_(std::move(bytes)),
        num_bytes_(num_bytes),
        chunk_bytes_(BytesOf(dtype, ElementsPerChunk(dtype))) {}

  std::optional<Digest> KnownDigest(uint64_t) const override { return std::nullopt; }
  Result<std::span<const std::byte>> Read(uint64_t i, std::vector<std::byte>* buffer) override {
    const uint64_t offset = i * chunk_bytes_;
    buffer->resize(std::min<uint64_t>(chunk_bytes_, num_bytes_ - offset));
    VARVE_RETURN_IF_ERROR(AsReadError(bytes_->Read(offset, *buffer)));
    return std::span<const std::byte>(*buffer);
  }
  Status Learn(uint64_t, const Digest&) override { return Status::Ok(); }
  void Done(uint64_t i) override {
    if ((i + 1) * chunk_bytes_ >= num_bytes_) bytes_->Release();
  }

 private:
  const std::shared_ptr<TensorBytes> bytes_;
  const uint64_t num_bytes_;
  const uint64_t chunk_bytes_;
};

// What was read must be valid, and of one state of the files, whenever it was read.
struct Sources {
  Status Check() const {
    for (const auto& [opened, file] : files) VARVE_RETURN_IF_ERROR(file->CheckUnchanged());
    for (const auto& tensor : bytes) VARVE_RETURN_IF_ERROR(AsReadError(tensor->Finish()));
    return Status::Ok();
  }

  std::map<const formats::InputFile*, std::shared_ptr<SmallReads>> files;
  std::vector<std::shared_ptr<TensorBytes>> bytes;
};

// The session shares what describes the tensors.
Status PutTensors(const std::shared_ptr<const ImportSource>& source, SaveSession* session) {
  Sources sources;
  for (const FileTensor& tensor : source->tensors) {
    const std::shared_ptr<const TensorSpec> spec(source, &tensor);
    std::shared_ptr<TensorBytes> bytes = tensor.bytes;
    if (bytes == nullptr) {
      auto& file = sources.files[tensor.file.get()];
      if (file == nullptr) file = std::make_shared<SmallReads>(tensor.file);
      bytes = std::make_shared<formats::FileBytes>(file, tensor.data);
    } else {
      sources.bytes.push_back(bytes);
    }
    VARVE_ASSIGN_OR_RETURN(const uint64_t num_bytes, NumBytes(tensor.dtype, tensor.shape));
    VARVE_RETURN_IF_ERROR(session->PutSource(
        spec, tensor.shard,
        std::make_unique<FileChunks>(tensor.dtype, num_bytes, std::move(bytes))));
  }
  session->SetCondition([sources = std::move(sources)] { return sources.Check(); });
  return Status::Ok();
}

}  // namespace

Status PutSource(const std::shared_ptr<const ImportSource>& source, SaveSession* session) {
  VARVE_RETURN_IF_ERROR(PutTensors(source, session));
  if (source->state) VARVE_RETURN_IF_ERROR(session->SetTrainerProgress(*source->state));
  if (source->topology) VARVE_RETURN_IF_ERROR(session->SetTopology(*source->topology));
  for (const auto& [name, value] : source->items) {
    const std::span<const char> bytes(value);
    VARVE_RETURN_IF_ERROR(session->PutBytes(name, std::as_bytes(bytes)));
  }
  return Status::Ok();
}

}  // namespace varve::internal::cli
