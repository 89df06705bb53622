// SPDX-License-Identifier: Apache-2.0
//
// The dense row-major bytes of a tensor of a file, however the file keeps them: as they are, under
// a checksum, compressed, strided, or in parts of several files. Any thread may call them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/formats/input_file.h"
#include "cli/formats/small_reads.h"
#include "varve/result.h"

namespace varve::internal::formats {

class TensorBytes {
 public:
  TensorBytes() = default;
  TensorBytes(const TensorBytes&) = delete;
  TensorBytes& operator=(const TensorBytes&) = delete;
  virtual ~TensorBytes() = default;

  // Fills `out` with the bytes from `offset` on. Errors name the file.
  virtual Status Read(uint64_t offset, std::span<std::byte> out) = 0;
  // The tensor is not needed for a while. Its memory goes. It may still be read.
  virtual void Release() {}
  // Says whether all that was read was valid, and of one state of the files. Ask it when all is
  // read.
  virtual Status Finish() = 0;
};

// Bytes that lie in a file as they are.
class FileBytes : public TensorBytes {
 public:
  FileBytes(std::shared_ptr<SmallReads> file, std::span<const std::byte> data)
      : file_(std::move(file)), data_(data) {}

  Status Read(uint64_t offset, std::span<std::byte> out) override {
    return file_->Read(data_.subspan(offset, out.size()), out.data());
  }
  Status Finish() override { return file_->CheckUnchanged(); }

 private:
  const std::shared_ptr<SmallReads> file_;
  const std::span<const std::byte> data_;
};

// A part of a file with a CRC-32 of its own, such as a stored entry of a zip archive. It notes the
// checksum of each piece that is read, so that no byte is read twice for it. Any thread.
class CheckedPart {
 public:
  // `what` names file and part in the error. Without a checksum nothing is checked.
  CheckedPart(std::shared_ptr<SmallReads> file, std::span<const std::byte> data,
              std::optional<uint32_t> crc, std::string what)
      : file_(std::move(file)), data_(data), crc_(crc), what_(std::move(what)) {}

  // Fills `out` with the bytes from `offset` on.
  Status Read(uint64_t offset, std::span<std::byte> out);
  // Reads what was not read before. kIOError: the file has changed. kInvalidArgument: the checksum
  // is another one. The answer is kept.
  Status Finish();

  uint64_t size() const { return data_.size(); }

 private:
  struct Piece {
    uint64_t size = 0;
    uint32_t crc = 0;
  };
  Status Check();

  const std::shared_ptr<SmallReads> file_;
  const std::span<const std::byte> data_;
  const std::optional<uint32_t> crc_;
  const std::string what_;
  std::mutex mutex_;
  std::map<uint64_t, Piece> pieces_;  // by offset. Guarded by mutex_
  bool is_checked_ = false;           // guarded by mutex_
};

// A tensor that is a range of a checked part.
class CheckedBytes : public TensorBytes {
 public:
  CheckedBytes(std::shared_ptr<CheckedPart> part, uint64_t begin)
      : part_(std::move(part)), begin_(begin) {}

  Status Read(uint64_t offset, std::span<std::byte> out) override {
    return part_->Read(begin_ + offset, out);
  }
  Status Finish() override { return part_->Finish(); }

 private:
  const std::shared_ptr<CheckedPart> part_;
  const uint64_t begin_;
};

// A tensor that is made as a whole in memory when its first byte is read, and let go by Release.
class MadeBytes : public TensorBytes {
 public:
  using Make = std::function<Status(std::span<std::byte> all)>;
  using Check = std::function<Status()>;

  // `make` fills all `size` bytes. `check` is Finish.
  MadeBytes(uint64_t size, Make make, Check check)
      : size_(size), make_(std::move(make)), check_(std::move(check)) {}

  Status Read(uint64_t offset, std::span<std::byte> out) override;
  void Release() override;
  Status Finish() override { return check_(); }

 private:
  const uint64_t size_;
  const Make make_;
  const Check check_;
  std::mutex mutex_;
  std::vector<std::byte> all_;  // guarded by mutex_
  bool is_made_ = false;        // guarded by mutex_
};

// kInvalidArgument: the tensors of a file need far more bytes than the file has. Views of one
// storage, strides of zero and compression can say so in few bytes, and an import would not end.
Status CheckGrowth(uint64_t tensor_bytes, uint64_t file_bytes);

// The CRC-32 of zip archives, of `bytes` that follow those of which it is `crc` (0: of none).
uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes);
// The CRC-32 of bytes and of `second_bytes` more that follow them, from those of both.
uint32_t JoinCrc32(uint32_t first, uint32_t second, uint64_t second_bytes);

}  // namespace varve::internal::formats
