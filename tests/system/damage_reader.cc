// SPDX-License-Identifier: Apache-2.0
//
// damage_reader STORE PLAN RUN@STEP...: opens a store for reading, reads each of these steps,
// whether it is listed or not, and prints one line for each: `RUN@STEP CONTENT FACTS`, or
// `RUN@STEP error: CODE: MESSAGE`. FACTS are what no content number says: time, metrics and tags.
// The bytes of all tensors and items have been compared with those of the content, and the items
// have been listed. PLAN says what the steps hold (ParsePlan). Exits 1 when the store does not
// open, with `error: CODE: MESSAGE`.
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

#include "tests/support/step_content.h"

namespace varve::internal::testing {
namespace {

std::string ErrorText(const Status& status) {
  return "error: " + std::string(StatusCodeName(status.code())) + ": " + status.message();
}

Result<std::string> Describe(const Store& store, const ContentPlan& plan, const std::string& run,
                             uint64_t step) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(run, step));
  VARVE_RETURN_IF_ERROR(VerifyContent(*reader, plan));
  VARVE_RETURN_IF_ERROR(reader->ListBytes().status());
  VARVE_ASSIGN_OR_RETURN(const uint64_t content, ReadContentNumber(*reader));
  std::ostringstream text;
  const CheckpointInfo& info = reader->info();
  text << content << " " << info.created.time_since_epoch().count();
  for (const auto& [name, value] : info.metrics) text << " " << name << "=" << value;
  for (const std::string& tag : info.tags) text << " " << tag;
  return text.str();
}

int Main(int argc, char** argv) {
  if (argc < 3) return 2;
  const ContentPlan plan = ParsePlan(argv[2]);
  const auto store = Store::OpenForReading(argv[1]);
  if (!store.ok()) {
    std::cout << ErrorText(store.status()) << "\n";
    return 1;
  }
  for (int i = 3; i < argc; ++i) {
    const std::string name = argv[i];
    const size_t at = name.find('@');
    if (at == std::string::npos) return 2;
    const uint64_t step = std::strtoull(name.c_str() + at + 1, nullptr, 10);
    const auto text = Describe(**store, plan, name.substr(0, at), step);
    std::cout << name << " " << (text.ok() ? *text : ErrorText(text.status())) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) { return varve::internal::testing::Main(argc, argv); }
