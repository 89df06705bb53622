// SPDX-License-Identifier: Apache-2.0
//
// store_bench [--folder FOLDER] [--state FILE] [--quick] [--pairs N] [--benchmark_...]: all
// benchmarks of the store. scripts/bench runs them and makes the table. README.md explains the
// numbers.
#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>

#include "bench/subjects.h"

namespace varve::internal::bench {
namespace {

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);  // takes the flags that are its own
  CLI::App app("Benchmarks of the store");
  std::string folder = "bench-stores";
  std::string state_file;
  bool quick = false;
  int pairs = 0;
  app.add_option("--folder", folder, "Where stores and files are made; removed at the end");
  app.add_option("--state", state_file, "A safetensors file with training state");
  app.add_flag("--quick", quick, "Small sizes: a smoke test");
  app.add_option("--pairs", pairs, "How often each is measured");
  CLI11_PARSE(app, argc, argv);

  Params params = quick ? QuickParams() : Params();
  params.folder = folder;
  params.state_file = state_file;
  if (pairs > 0) params.pairs = pairs;
  RegisterDigest(params);
  RegisterSave(params);
  RegisterRestore(params);
  RegisterQuery(params);
  RegisterDrop(params);
  RegisterOpen(params);
  RegisterMemory(params);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace varve::internal::bench

int main(int argc, char** argv) { return varve::internal::bench::Main(argc, argv); }
