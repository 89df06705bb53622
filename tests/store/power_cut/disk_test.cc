// SPDX-License-Identifier: Apache-2.0
//
// The model of a disk from which power cuts are made (tests/support/power_cut.h).
#include <fstream>
#include <sstream>

#include "tests/store/internals.h"
#include "tests/support/power_cut.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Kind = DiskOp::Kind;

TEST(DiskTest, WhatIsNotSyncedIsLostOrTorn) {
  const TempFolder folder;
  const fs::path image = folder.path() / "image";
  const auto op = [](Kind kind, int number, int at_folder, std::string name, std::string bytes = "",
                     uint64_t at = 0) {
    DiskOp made;
    made.kind = kind;
    made.number = number;
    made.folder = at_folder;
    made.name = std::move(name);
    made.bytes = std::move(bytes);
    made.at = at;
    return made;
  };
  const auto read = [&](const Disk& disk, PowerCut cut, const std::string& name) {
    fs::remove_all(image);
    disk.Make(cut, 1, image);
    if (!fs::exists(image / name)) return std::string("none");
    std::ostringstream text;
    text << std::ifstream(image / name).rdbuf();
    return text.str();
  };
  Disk disk;
  disk.Apply(op(Kind::kFile, 1, 0, "a"));
  disk.Apply(op(Kind::kWrite, 1, 0, "", "0123"));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "none");
  EXPECT_EQ(read(disk, PowerCut::kOnlyNames, "a"), std::string(4, '\0'));
  EXPECT_EQ(read(disk, PowerCut::kNothing, "a"), "0123");
  EXPECT_EQ(read(disk, PowerCut::kTorn, "a").substr(0, 2), "01");
  disk.Apply(op(Kind::kSync, 1, 0, ""));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "none");  // its name is not synced
  disk.Apply(op(Kind::kSync, 0, 0, ""));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "0123");
  disk.Apply(op(Kind::kWrite, 1, 0, "", "4567", 4));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "0123");
  EXPECT_EQ(read(disk, PowerCut::kTorn, "a").substr(0, 6), "012345");
  EXPECT_NE(read(disk, PowerCut::kTorn, "a"), "01234567");
  // A file that goes to a folder which is not synced is in one of the two.
  disk.Apply(op(Kind::kFolder, 2, 0, "to"));
  DiskOp rename = op(Kind::kRename, 1, 0, "a");
  rename.to_folder = 2;
  rename.to_name = "b";
  disk.Apply(rename);
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "0123");
  disk.Apply(op(Kind::kSync, 2, 0, ""));
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "a"), "none");
  EXPECT_EQ(read(disk, PowerCut::kAllLost, "to/b"), "0123");
}

}  // namespace
}  // namespace varve::internal::testing
