// SPDX-License-Identifier: Apache-2.0
//
// The table of fuzz targets under libFuzzer. $VARVE_FUZZ_TARGET names the target. With
// $VARVE_FUZZ_SEEDS the program writes the seeds of the target to that folder and ends; with
// VARVE_FUZZ_LIST=1 it prints a line of each target and ends: the name, and the seconds that an
// input may take of the processor.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/fuzz/targets.h"

namespace {

using varve::internal::fuzz::AllTargets;
using varve::internal::fuzz::FuzzTarget;
using varve::internal::fuzz::ProcessorSeconds;

void (*run)(std::span<const std::byte>) = nullptr;
double most_seconds = 0;  // libFuzzer ends what never ends (run_fuzzers.py)

const char* Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const std::vector<FuzzTarget> all = AllTargets();
  const std::string wanted = Environment("VARVE_FUZZ_TARGET"),
                    seeds = Environment("VARVE_FUZZ_SEEDS");
  for (const FuzzTarget& target : all) {
    if (*Environment("VARVE_FUZZ_LIST") != '\0') {
      std::printf("%s %.0f\n", std::string(target.name).c_str(), target.most_seconds());
    }
    if (target.name != wanted) continue;
    run = target.run;
    most_seconds = target.most_seconds();
    for (size_t i = 0; !seeds.empty() && i < target.seeds.size(); ++i) {
      std::ofstream(seeds + "/seed" + std::to_string(i), std::ios::binary) << target.seeds[i];
    }
  }
  if (*Environment("VARVE_FUZZ_LIST") != '\0' || !seeds.empty()) std::exit(0);
  if (run != nullptr) return 0;
  std::fprintf(stderr, "VARVE_FUZZ_TARGET names no target: \"%s\"\n", wanted.c_str());
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const double start = ProcessorSeconds();
  run(std::as_bytes(std::span(data, size)));
  const double seconds = ProcessorSeconds() - start;
  if (seconds < most_seconds) return 0;
  std::fprintf(stderr, "this input took %.1f s of the processor, expected less than %.0f s\n",
               seconds, most_seconds);
  std::abort();
}
