// SPDX-License-Identifier: Apache-2.0
//
// The power fails at every operation on the disk. Everything that is not synced is lost, or parts
// of it are, or the last block is torn. What is then on the disk is opened and judged.
//
// A workload runs once and is recorded (workload.h). Each cut is made of the record
// (tests/support/power_cut.h). Mistakes in the order of writing are planted in the record: it then
// is that of a program that leaves out a sync, or does it too late. The same driver must find each
// of them.
//
// With VARVE_FULL_SIZE=1 the power fails after each operation, in each way. Otherwise it does after
// each acknowledgement and after some operations between. One thread at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/store/power_cut/workload.h"

namespace varve::internal::testing {

// How far the workload had come: so many of its operations had returned, and perhaps one more had
// begun.
struct Moment {
  size_t num_done = 0;
  bool has_begun = false;
  uint64_t seed = 0;
};

// Returns what is wrong with what a cut has left. Empty = nothing.
using Judge = std::function<std::string(const std::filesystem::path& folder, const Moment& moment)>;

using Plant = std::function<Ops(Ops)>;
using Chosen = std::function<bool(const DiskOp& op)>;

// Whether the file or folder was made under a path that holds `part`, or under exactly `path`.
Chosen Path(const std::string& part);
Chosen Folder(const std::string& path);

// The program does not sync these.
Plant WithoutSyncs(Chosen chosen);
// The program syncs these last of all that an operation does, right before it returns.
Plant LateSyncs(const Chosen& chosen);
// The program makes the mistake only in operations of this name, or not in them.
Plant Only(const Recorded& recorded, const std::string& name, const Plant& plant);
Plant Except(const Recorded& recorded, const std::string& name, const Plant& plant);

class PowerCutTest : public ::testing::Test {
 protected:
  // Records what a workload does to an empty disk.
  template <typename Workload, typename... Args>
  void Record(const Args&... args) {
    const std::filesystem::path disk = folder_.path() / "disk";
    std::filesystem::remove_all(disk);
    std::filesystem::create_directory(disk);
    recorded_ = Workload(disk, args...).Run(folder_.path() / "image");
  }

  // `stride` leaves out operations between acknowledgements, unless at full size.
  void ExpectNoFaults(const Recorded& recorded, const Judge& judge, uint64_t stride);
  // A mistake is found when a cut leaves what the judge rejects.
  void ExpectFound(const Recorded& recorded, const Judge& judge, const std::string& mistake,
                   const Plant& plant);
  // The mistake does no harm: no cut leaves what the judge rejects.
  void ExpectHarmless(const Recorded& recorded, const Judge& judge, const std::string& mistake,
                      const Plant& plant);

  TempFolder folder_;
  Recorded recorded_;

 private:
  struct Verdict {
    uint64_t cuts = 0;
    uint64_t operations = 0;  // after which there is a cut
    std::vector<std::string> faults;
  };

  Verdict Drive(const Recorded& recorded, const Ops& ops, const Judge& judge, size_t first,
                uint64_t stride, bool at_syncs, size_t max_faults);
  Verdict DrivePlanted(const Recorded& recorded, const Judge& judge, const std::string& mistake,
                       const Plant& plant);
};

}  // namespace varve::internal::testing
