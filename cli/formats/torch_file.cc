// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/torch_file.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/util.h"
#include "cli/formats/pickle.h"
#include "cli/formats/tensor_bytes.h"
#include "cli/formats/zip_entry_reader.h"

namespace varve::internal::formats {
namespace {

constexpr std::string_view kPickle = "data.pkl";
constexpr std::string_view kByteOrder = "byteorder";
constexpr std::string_view kData = "data/";
constexpr std::string_view kScript = "constants.pkl";
constexpr uint64_t kMaxByteOrderBytes = 16;

Status OnlyOwn(const Status& status, const std::string& what) {
  // The errors of files name them.
  return status.code() == StatusCode::kInvalidArgument ? status.WithContext(what) : status;
}

}  // namespace

std::string_view TorchLegacyHint(std::span<const std::byte> start) {
  if (start.size() < 2 || std::to_integer<int>(start[0]) != 0x80) return {};
  const int protocol = std::to_integer<int>(start[1]);
  if (protocol < 2 || protocol > 5) return {};
  return "this is a pickle as torch.save made before PyTorch 1.6, which varve does not read: "
         "write it anew with torch.save(torch.load(FILE, weights_only=True), NEW)";
}

Result<std::shared_ptr<const TorchFile>> TorchFile::Open(const std::filesystem::path& path) {
  VARVE_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  return OpenPart(file, file->bytes(), path.string());
}

Result<std::shared_ptr<const TorchFile>> TorchFile::OpenPart(std::shared_ptr<InputFile> file,
                                                             std::span<const std::byte> archive,
                                                             std::string what) {
  const std::shared_ptr<TorchFile> opened(new TorchFile(std::move(file), std::move(what)));
  VARVE_RETURN_IF_ERROR(opened->Read(archive));
  return std::shared_ptr<const TorchFile>(opened);
}

std::string TorchFile::NameOf(const ZipEntry& entry) const {
  return what_ + ": entry \"" + entry.name + "\"";
}

Status TorchFile::Read(std::span<const std::byte> archive) {
  const auto start = archive.first(std::min<size_t>(4, archive.size()));
  VARVE_RETURN_IF_ERROR(file_->Fetch(start));
  if (const std::string_view hint = TorchLegacyHint(start); !hint.empty()) {
    return Status::InvalidArgument(what_ + ": " + std::string(hint));
  }
  if (!LooksLikeZip(start)) {
    return Status::InvalidArgument(what_ +
                                   ": this is no file of torch.save, which is a zip archive "
                                   "and starts with PK");
  }
  Result<std::vector<ZipEntry>> entries = ParseZip(archive, FetcherOf(file_.get()));
  if (!entries.ok()) return OnlyOwn(entries.status(), what_);
  ZipEntry pickle_entry;
  VARVE_RETURN_IF_ERROR(Sort(*std::move(entries), &pickle_entry));
  VARVE_ASSIGN_OR_RETURN(pickle_bytes_,
                         ReadZipEntry(file_, pickle_entry, NameOf(pickle_entry), kMaxPickleBytes));
  const Result<Pickle> pickle = ParsePickle(pickle_bytes_, IsTorchGlobal);
  if (!pickle.ok()) return pickle.status().WithContext(NameOf(pickle_entry));
  Result<TorchTree> tree = ReadTorchTree(*pickle, pickle->root);
  if (!tree.ok()) return tree.status().WithContext(NameOf(pickle_entry));
  tree_ = *std::move(tree);
  VARVE_RETURN_IF_ERROR(CheckStorages().WithContext(what_));
  uint64_t tensor_bytes = 0;
  for (const NamedTorchTensor& tensor : tree_.tensors) {
    tensor_bytes += std::min(tensor.num_bytes, std::numeric_limits<uint64_t>::max() - tensor_bytes);
  }
  return CheckGrowth(tensor_bytes, archive.size()).WithContext(what_);
}

// Finds the pickle and the storages. All entries are in one folder, whose name does not matter.
Status TorchFile::Sort(std::vector<ZipEntry> entries, ZipEntry* pickle) {
  const auto is_pickle = [](const ZipEntry& entry) {
    return entry.name.ends_with("/" + std::string(kPickle));
  };
  const auto found = std::find_if(entries.begin(), entries.end(), is_pickle);
  if (found == entries.end()) {
    return Status::InvalidArgument(what_ +
                                   ": the archive has no entry data.pkl, so that it is none "
                                   "of torch.save");
  }
  ForgiveMissingChecksums(&entries, *found);
  const std::string folder = found->name.substr(0, found->name.size() - kPickle.size());
  for (ZipEntry& entry : entries) {
    if (!entry.name.starts_with(folder)) {
      return Status::InvalidArgument(NameOf(entry) + ": it is outside of the folder " + folder);
    }
    const std::string_view name = std::string_view(entry.name).substr(folder.size());
    if (name == kPickle) {
      *pickle = entry;
    } else if (name == kByteOrder) {
      VARVE_RETURN_IF_ERROR(CheckByteOrder(entry));
    } else if (name == kScript) {
      return Status::InvalidArgument(what_ +
                                     ": this is a TorchScript program, whose code varve does "
                                     "not read: save its state_dict() with torch.save");
    } else if (name.starts_with(kData)) {
      const std::string key(name.substr(kData.size()));
      storages_.emplace(key, std::move(entry));
    }
  }
  return Status::Ok();
}

// torch can be told to write no checksums. All are zero then. The checksum of a pickle is never
// zero by chance.
void TorchFile::ForgiveMissingChecksums(std::vector<ZipEntry>* entries, const ZipEntry& pickle) {
  has_checksums_ = pickle.crc != 0;
  if (has_checksums_) return;
  for (ZipEntry& entry : *entries) entry.has_crc = entry.crc != 0;
}

Status TorchFile::CheckByteOrder(const ZipEntry& entry) const {
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::byte> order,
                         ReadZipEntry(file_, entry, NameOf(entry), kMaxByteOrderBytes));
  if (AsString(order) == "little") return Status::Ok();
  return Status::InvalidArgument(
      NameOf(entry) + ": the byte order is \"" + std::string(AsString(order)) +
      "\", expected \"little\": write the file anew on a little-endian machine, where torch.load "
      "reads it");
}

Status TorchFile::CheckStorages() const {
  for (const NamedTorchTensor& tensor : tree_.tensors) {
    const auto found = storages_.find(tensor.storage);
    const std::string name = "tensor \"" + tensor.name + "\"";
    if (found == storages_.end()) {
      return Status::InvalidArgument(name + ": the archive lacks its storage data/" +
                                     std::string(tensor.storage));
    }
    if (found->second.size != tensor.storage_bytes) {
      return Status::InvalidArgument(name + ": its storage data/" + found->first + " has " +
                                     std::to_string(found->second.size) + " bytes, expected " +
                                     std::to_string(tensor.storage_bytes));
    }
  }
  return Status::Ok();
}

}  // namespace varve::internal::formats
