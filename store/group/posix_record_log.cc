// SPDX-License-Identifier: Apache-2.0
#include "store/group/posix_record_log.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <system_error>

#include "store/group/create_once.h"
#include "store/util.h"

namespace varve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDigits = 20;
constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 30;

std::string NameOf(uint64_t number) {
  char name[kDigits + 1];
  std::snprintf(name, sizeof(name), "%020llu", static_cast<unsigned long long>(number));
  return name;
}

// nullopt: not the name of a record.
std::optional<uint64_t> ParseName(const std::string& name) {
  uint64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, number);
  if (name.size() != kDigits || error != std::errc() || stop != end) return std::nullopt;
  return number;
}

class PosixRecordLog : public RecordLog {
 public:
  explicit PosixRecordLog(fs::path folder) : folder_(std::move(folder)) {}

  Result<CreateOutcome> Create(uint64_t number, std::string_view bytes) override {
    const fs::path path = folder_ / NameOf(number);
    if (bytes.size() <= kMaxRecordBytes) return CreateOnce(path, bytes);
    return Status::InvalidArgument(path.string() + ": a record of " + std::to_string(bytes.size()) +
                                   " bytes, expected at most " + std::to_string(kMaxRecordBytes));
  }

  Result<std::optional<std::string>> Read(uint64_t number) const override {
    const fs::path path = folder_ / NameOf(number);
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error == std::errc::no_such_file_or_directory) return std::optional<std::string>();
    if (error) return ErrnoStatus("look at", path, error.value());
    if (bytes > kMaxRecordBytes) {
      return Status::Corruption(path.string() + ": a record of " + std::to_string(bytes) +
                                " bytes, expected at most " + std::to_string(kMaxRecordBytes));
    }
    Result<std::string> record = ReadSmallFile(path, bytes);
    if (record.ok()) return std::optional<std::string>(*std::move(record));
    if (record.status().code() != StatusCode::kNotFound) return record.status();
    return std::optional<std::string>();
  }

  Result<std::vector<uint64_t>> List(uint64_t from) const override {
    std::vector<uint64_t> numbers;
    std::error_code error;
    for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
      const auto number = ParseName(it->path().filename());
      if (number.has_value() && *number >= from) numbers.push_back(*number);
    }
    if (error) return Status::IOError("cannot list " + folder_.string() + ": " + error.message());
    // Whoever made them may not have come to syncing their names yet.
    if (!numbers.empty()) VARVE_RETURN_IF_ERROR(SyncFolder(folder_));
    std::sort(numbers.begin(), numbers.end());
    return numbers;
  }

  Status Remove(uint64_t number) override { return RemoveFile(folder_ / NameOf(number)); }

  Status RemoveDebris() override {
    std::error_code error;
    for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
      if (!it->path().filename().string().starts_with(kTemporaryPrefix)) continue;
      VARVE_RETURN_IF_ERROR(RemoveFile(it->path()));
    }
    if (!error) return Status::Ok();
    return Status::IOError("cannot list " + folder_.string() + ": " + error.message());
  }

 private:
  static Status RemoveFile(const fs::path& path) {
    std::error_code error;
    fs::remove(path, error);
    if (!error) return Status::Ok();
    return Status::IOError("cannot remove " + path.string() + ": " + error.message());
  }

  const fs::path folder_;
};

}  // namespace

std::unique_ptr<RecordLog> MakePosixRecordLog(fs::path folder) {
  return std::make_unique<PosixRecordLog>(std::move(folder));
}

}  // namespace varve
