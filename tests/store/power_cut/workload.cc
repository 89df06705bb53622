// SPDX-License-Identifier: Apache-2.0
#include "tests/store/power_cut/workload.h"

#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/power_cut.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> FilesBelow(const fs::path& root) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    std::ostringstream text;
    if (entry.is_regular_file()) text << std::ifstream(entry.path()).rdbuf();
    all[fs::relative(entry.path(), root)] = text.str();
  }
  return all;
}

// The record is complete: what it says is there now is what is there.
void ExpectComplete(const Recorded& recorded, const fs::path& root, const fs::path& image) {
  Disk disk;
  for (const DiskOp& op : recorded.ops) disk.Apply(op);
  disk.Make(PowerCut::kNothing, 0, image);
  const auto there = FilesBelow(root), said = FilesBelow(image);
  for (const auto& [name, bytes] : there) {
    ASSERT_TRUE(said.contains(name)) << name;
    EXPECT_TRUE(said.at(name) == bytes) << name;
  }
  EXPECT_EQ(said.size(), there.size());
  fs::remove_all(image);
}

}  // namespace

void Recorder::Run(const std::string& name, const std::function<Status()>& operation,
                   const std::function<void()>& change) {
  const uint64_t number = recorded_.names.size();
  recorded_.names.push_back(name);
  record_.Mark(2 * number);
  const Status status = operation();
  ASSERT_TRUE(status.ok()) << name << ": " << status.ToString();
  record_.Mark(2 * number + 1);
  change();
  recorded_.states.push_back(now);
  recorded_.copies.push_back(backup);
}

Recorded Recorder::Finish(const fs::path& image) {
  recorded_.first = record_.first();
  recorded_.ops = record_.Finish();
  ExpectComplete(recorded_, root_, image);
  return std::move(recorded_);
}

}  // namespace varve::internal::testing
