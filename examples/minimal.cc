// SPDX-License-Identifier: Apache-2.0
//
// The smallest use of varve: saves a tensor and reads a row of it. Makes the store `ckpt` where it
// is started. README.md shows the middle part. tests/readme_test.py keeps the two equal.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include "varve/varve.h"

varve::Status SaveAndRead(const std::vector<float>& weights, std::vector<float>* row) {
  VARVE_ASSIGN_OR_RETURN(auto store, varve::Store::OpenOrCreate("ckpt"));
  VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(/*step=*/100));
  const int64_t shape[] = {64, 128};
  VARVE_RETURN_IF_ERROR(writer->Put({.name = "wte", .shape = shape, .data = weights.data()}));
  VARVE_RETURN_IF_ERROR(writer->SetMetric("loss", 2.5));
  VARVE_RETURN_IF_ERROR(writer->Commit().status());  // durable, and visible to readers

  VARVE_ASSIGN_OR_RETURN(auto reader, store->OpenCheckpoint("main", 100));
  const varve::Range slice[] = {{7, 8}, {0, 128}};  // reads only the chunks that overlap it
  return reader->ReadSlice("wte", slice, std::as_writable_bytes(std::span(*row)));
}

int main() {
  std::vector<float> weights(size_t{64} * 128);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i);
  std::vector<float> row(128);
  const varve::Status status = SaveAndRead(weights, &row);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("row 7 begins with %g\n", static_cast<double>(row[0]));  // 896
  return 0;
}
