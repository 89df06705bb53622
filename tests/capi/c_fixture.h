// SPDX-License-Identifier: Apache-2.0
//
// A folder for a store, and short ways to call varve/c.h. One thread at a time.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/temp_folder.h"
#include "varve/c.h"

namespace varve::internal::testing {

#define EXPECT_OK(call) EXPECT_EQ(call, VARVE_OK) << varve_last_error()
#define ASSERT_OK(call) ASSERT_EQ(call, VARVE_OK) << varve_last_error()
// The call fails so, and the message has this text.
#define EXPECT_FAILS(call, status, text) \
  EXPECT_EQ(call, status);               \
  EXPECT_THAT(std::string(varve_last_error()), ::testing::HasSubstr(text))

class CTest : public ::testing::Test {
 protected:
  // Every test ends with a full check of its store, if it has made one.
  void TearDown() override {
    varve_store_close(store_);
    varve_store* store = nullptr;
    const varve_status status = varve_store_open(path().c_str(), VARVE_OPEN_READ, nullptr, &store);
    if (status == VARVE_NOT_FOUND) return;
    ASSERT_OK(status);
    EXPECT_OK(varve_store_check(store, 1, nullptr));
    varve_store_close(store);
  }
  std::string path() const { return (folder_.path() / "store").string(); }
  void Open(uint32_t mode = VARVE_OPEN_CREATE) {
    varve_store_close(store_);
    ASSERT_OK(varve_store_open(path().c_str(), mode, nullptr, &store_));
  }

  // A dense FP32 tensor of one axis.
  static varve_tensor Floats(const char* name, std::vector<float>* values, const int64_t* shape) {
    varve_tensor tensor = {};
    tensor.struct_size = sizeof(tensor);
    tensor.name = name;
    tensor.dtype = VARVE_F32;
    tensor.num_axes = 1;
    tensor.shape = shape;
    tensor.data = values->data();
    return tensor;
  }
  // Saves tensor "w" with these values.
  void Save(uint64_t step, std::vector<float> values) {
    const auto size = static_cast<int64_t>(values.size());
    const varve_tensor tensor = Floats("w", &values, &size);
    varve_writer* writer = nullptr;
    ASSERT_OK(varve_writer_open(store_, step, nullptr, &writer));
    ASSERT_OK(varve_writer_put_tensor(writer, &tensor));
    ASSERT_OK(varve_writer_commit(writer, nullptr));
    varve_writer_close(writer);
  }

  TempFolder folder_;
  varve_store* store_ = nullptr;
};

template <typename T>
T Struct() {
  T made = {};
  made.struct_size = sizeof(T);
  return made;
}

}  // namespace varve::internal::testing
