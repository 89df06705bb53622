// SPDX-License-Identifier: Apache-2.0
//
// What a power cut leaves of a folder. A Disk carries out the operations of a record
// (disk_record.h) and knows what is synced: the bytes of a file as of its last sync, the names in a
// folder as of its last sync. All else may be lost, and need not be. A name that goes from one
// folder to another is in exactly one of them. One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/disk_record.h"

namespace varve::internal::testing {

enum class PowerCut {
  kAllLost,    // everything after the last sync is lost, names in folders as well
  kTorn,       // the names are there. Of the file that was written last, half of what was not
               // synced is there, and the block behind it is garbage. Other bytes are lost
  kOnlyNames,  // the names and sizes are there, and zeros in place of bytes that were not synced
  kRandom,     // some names, up to a moment, and of each file one of these
  kNothing,    // nothing is lost, as when the process is killed
};
inline constexpr int kNumPowerCuts = 5;
std::string_view ToString(PowerCut cut);

class Disk {
 public:
  Disk();
  void Apply(const DiskOp& op);
  // Makes the folder `to` with what a cut leaves.
  void Make(PowerCut cut, uint64_t seed, const std::filesystem::path& to) const;

 private:
  using Names = std::map<std::string, int>;
  struct Node {
    bool is_folder = false;
    std::string now, synced;
    size_t kept = 0;        // the fewest bytes that it has had since its last sync
    bool is_dirty = false;  // written since its last sync
    Names names, synced_names;
  };

  Node& At(int number);
  void Sync(int number);
  static void ApplyNames(const DiskOp& op, std::vector<Names*>& names);
  std::string BytesOf(int number, PowerCut cut, uint64_t seed) const;
  std::string Torn(const Node& node, uint64_t seed) const;
  std::vector<Names> NamesAfter(size_t num_unsynced) const;

  std::vector<Node> nodes_;
  std::vector<DiskOp> unsynced_names_;  // in order
  int last_written_ = -1;
};

}  // namespace varve::internal::testing
