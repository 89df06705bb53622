// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>
#include <utility>

#include "base/bytes_of.h"
#include "cli/foreign/import_source.h"
#include "cli/foreign/strided_bytes.h"
#include "cli/formats/npz_files.h"
#include "cli/formats/small_reads.h"
#include "cli/formats/zip_entry_reader.h"

namespace varve::internal::cli {
namespace {

using formats::FileTensor;
using formats::NpzArray;
using formats::SmallReads;

// Reads the data of a deflated entry, which has to be read from its start.
Status ReadDeflated(const NpzArray& array, std::span<std::byte> out) {
  formats::ZipEntryReader reader(array.file, *array.entry, array.what);
  VARVE_RETURN_IF_ERROR(reader.Skip(array.data_begin));
  VARVE_RETURN_IF_ERROR(reader.Read(out));
  return reader.Finish();
}

std::shared_ptr<formats::TensorBytes> BytesOfArray(const NpzArray& array,
                                                   const std::shared_ptr<SmallReads>& file) {
  std::vector<int64_t> strides;
  if (array.is_fortran && array.shape.size() > 1) strides = FortranStrides(array.shape);
  const auto make = [&](ReadSpan read, formats::MadeBytes::Check check) {
    return MakeStridedBytes(array.shape, strides, BytesOf(array.dtype, 1), array.num_bytes,
                            std::move(read), std::move(check));
  };
  if (array.entry && array.entry->is_deflated) {
    return make([array](std::span<std::byte> out) { return ReadDeflated(array, out); },
                [file] { return file->CheckUnchanged(); });
  }
  if (array.entry) {
    const auto part = std::make_shared<formats::CheckedPart>(file, array.entry->data,
                                                             array.entry->crc, array.what);
    const auto begin = array.data_begin;
    if (strides.empty()) return std::make_shared<formats::CheckedBytes>(part, begin);
    return make([part, begin](std::span<std::byte> out) { return part->Read(begin, out); },
                [part] { return part->Finish(); });
  }
  const auto data = array.file->bytes().subspan(array.data_begin);
  if (strides.empty()) return std::make_shared<formats::FileBytes>(file, data);
  return make([file, data](std::span<std::byte> out) { return file->Read(data, out.data()); },
              [file] { return file->CheckUnchanged(); });
}

}  // namespace

Result<ImportSource> ReadNpz(std::span<const std::filesystem::path> paths) {
  VARVE_ASSIGN_OR_RETURN(const formats::NpzFiles files, formats::NpzFiles::Open(paths));
  ImportSource source;
  std::map<const formats::InputFile*, std::shared_ptr<SmallReads>> readers;
  for (const NpzArray& array : files.arrays()) {
    FileTensor tensor;
    tensor.name = array.name;
    tensor.dtype = array.dtype;
    tensor.shape = array.shape;
    if (IsOptimizerState(array.name)) tensor.role = TensorRole::kOptimizer;
    auto& reader = readers[array.file.get()];
    if (reader == nullptr) reader = std::make_shared<SmallReads>(array.file);
    tensor.bytes = BytesOfArray(array, reader);
    source.tensors.push_back(std::move(tensor));
  }
  return source;
}

}  // namespace varve::internal::cli
