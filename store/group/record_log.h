// SPDX-License-Identifier: Apache-2.0
//
// The ordered log of a group: small files with the numbers 1, 2, ..., each made once and never
// changed; and named files beside them. Few calls, so that an object store can serve as well as a
// folder. GroupLog gives them a meaning. Thread rule: any thread and any process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/create_once.h"
#include "varve/result.h"

namespace varve {

class RecordLog {
 public:
  RecordLog() = default;
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;
  virtual ~RecordLog() = default;

  // Makes record `number` unless there is one. An error: it is certain that this call made none.
  virtual Result<CreateOutcome> Create(uint64_t number, std::string_view bytes) = 0;
  // nullopt: there is no such record. Leaves the stamp of what it has read.
  virtual Result<std::optional<std::string>> Read(uint64_t number,
                                                  std::string* stamp = nullptr) const = 0;
  // What tells this record from every other that ever has its number: one look. Empty: there is no
  // such record.
  virtual Result<std::string> Stamp(uint64_t number) const = 0;
  // What has been read so far is durable.
  virtual Status Sync() const = 0;
  // The numbers from `from` on, rising. What it names is durable.
  virtual Result<std::vector<uint64_t>> List(uint64_t from) const = 0;
  // Removes a record; ok when there is none.
  virtual Status Remove(uint64_t number) = 0;

  // --- named files, in the folders `slots` and `states`: `name` is FOLDER/NAME ---

  // Replaces a file as a whole. Durable when it returns, if `durable`.
  virtual Status Put(std::string_view name, std::string_view bytes, bool durable) = 0;
  // nullopt: there is none; or, with a `stamp`, it is still the one that got this stamp. The stamp
  // of what was looked at is left there.
  virtual Result<std::optional<std::string>> Get(std::string_view name,
                                                 std::string* stamp = nullptr) const = 0;
  // The names, without the folder's, of what is in a folder.
  virtual Result<std::vector<std::string>> Names(std::string_view folder) const = 0;
  // Removes a file; ok when there is none.
  virtual Status Erase(std::string_view name) = 0;

  // Removes what Creates and Puts left that were cut short. One that is under way may fail for it.
  virtual Status RemoveDebris() = 0;
};

}  // namespace varve
