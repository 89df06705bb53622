// SPDX-License-Identifier: Apache-2.0
//
// What a caller can do wrong gives an error: null, closed and wrong handles, structs of other
// versions, calls at the same time.
#include <atomic>
#include <thread>

#include "tests/capi/c_fixture.h"

namespace varve::internal::testing {
namespace {

class CMisuseTest : public CTest {};

// Calls every function that takes a handle.
void ExpectAllFail(const void* handle, const char* text) {
  // A handle is a number, so one can stand for each kind.
  auto* const any = const_cast<void*>(handle);
  auto* const store = static_cast<varve_store*>(any);
  auto* const list = static_cast<varve_list*>(any);
  auto* const writer = static_cast<varve_writer*>(any);
  auto* const reader = static_cast<varve_reader*>(any);
  auto* const state = static_cast<varve_state*>(any);
  auto* const flags = static_cast<varve_flags*>(any);
  auto* const hooks = static_cast<varve_hooks*>(any);
  size_t size = 0;
  int number = 0;
  const char* name = nullptr;
  char byte = 0;
  const uint64_t step = 1;
  auto stats = Struct<varve_store_stats>();
  auto run = Struct<varve_run_info>();
  auto info = Struct<varve_step_info>();
  auto tensor_info = Struct<varve_tensor_info>();
  auto progress = Struct<varve_progress>();
  auto tensor = Struct<varve_tensor>();
  auto item = Struct<varve_item>();
  auto load = Struct<varve_load_report>();
  varve_list* new_list = nullptr;
  varve_writer* new_writer = nullptr;
  varve_reader* new_reader = nullptr;
  varve_hooks* new_hooks = nullptr;
  tensor.name = item.name = "x";
  const varve_status statuses[] = {
      varve_store_set_metric(store, "main", 1, "x", 1),
      varve_store_set_tag(store, "main", 1, "x"),
      varve_store_remove_tag(store, "main", "x"),
      varve_store_drop(store, "main", &step, 1, 0, nullptr),
      varve_store_reclaim(store, 0, nullptr),
      varve_store_check(store, 0, nullptr),
      varve_store_get_stats(store, &stats),
      varve_list_runs(store, &new_list),
      varve_list_steps(store, "main", &new_list),
      varve_list_size(list, &size),
      varve_list_run(list, 0, &run),
      varve_list_step(list, 0, &info),
      varve_writer_open(store, 1, nullptr, &new_writer),
      varve_writer_put_tensor(writer, &tensor),
      varve_writer_put_item(writer, "x", "y", 1),
      varve_writer_set_progress(writer, &progress),
      varve_writer_set_metric(writer, "x", 1),
      varve_writer_add_tag(writer, "x"),
      varve_writer_commit(writer, nullptr),
      varve_reader_open(store, "1", &new_reader),
      varve_reader_info(reader, &info),
      varve_reader_num_tensors(reader, &size),
      varve_reader_tensor(reader, 0, &tensor_info),
      varve_reader_find(reader, "x", &tensor_info),
      varve_reader_read(reader, "x", &byte, 1),
      varve_reader_read_slice(reader, "x", nullptr, nullptr, 0, &byte, 1),
      varve_reader_num_items(reader, &size),
      varve_reader_item_name(reader, 0, &name),
      varve_reader_read_item(reader, "x", &byte, 1, &size),
      varve_reader_progress(reader, &progress),
      varve_state_add_tensor(state, &tensor),
      varve_state_add_item(state, &item),
      varve_state_set_progress(state, &progress),
      varve_state_get_progress(state, &progress),
      varve_state_set_metric(state, "x", 1),
      varve_state_add_tag(state, "x"),
      varve_flags_set(flags, "--save", "x"),
      varve_flags_take(flags, &number, nullptr),
      varve_hooks_start(flags, state, nullptr, &new_hooks),
      varve_hooks_loaded(hooks, &load),
      varve_hooks_before_optimizer_step(hooks),
      varve_hooks_will_save(hooks, 1, 0, &number),
      varve_hooks_after_step(hooks, 1, 0, &number),
      varve_hooks_stop_reason(hooks, nullptr, nullptr),
      varve_hooks_set_metric(hooks, 1, "x", 1),
      varve_hooks_set_tag(hooks, 1, "x"),
      varve_hooks_finish(hooks),
  };
  size_t call = 0;
  for (const varve_status status : statuses) {
    EXPECT_EQ(status, VARVE_INVALID_ARGUMENT) << "call " << call;
    ++call;
  }
  EXPECT_THAT(varve_last_error(), ::testing::HasSubstr(text));
  varve_store_close(store);
  varve_list_close(list);
  varve_writer_close(writer);
  varve_reader_close(reader);
  varve_state_close(state);
  varve_flags_close(flags);
  varve_hooks_close(hooks);
}

TEST_F(CMisuseTest, NullHandlesAreRefused) { ExpectAllFail(nullptr, "the hooks is NULL"); }

TEST_F(CMisuseTest, ClosedAndInventedHandlesAreRefused) {
  Open();
  const void* const closed = store_;
  varve_store_close(store_);
  store_ = nullptr;
  Open();  // gets another handle
  EXPECT_NE(store_, closed);
  ExpectAllFail(closed, "was closed");
  int invented = 0;
  ExpectAllFail(&invented, "no handle of varve");
  ExpectAllFail(reinterpret_cast<const void*>(UINTPTR_MAX), "no handle of varve");
  size_t size = 0;
  varve_list* list = nullptr;
  EXPECT_OK(varve_list_runs(store_, &list)) << "the open store is not touched";
  EXPECT_OK(varve_list_size(list, &size));
  varve_list_close(list);
}

TEST_F(CMisuseTest, AHandleOfAnotherKindIsRefusedAndNotClosed) {
  varve_state* state = nullptr;
  ASSERT_OK(varve_state_create(&state));
  auto* const as_store = reinterpret_cast<varve_store*>(state);
  EXPECT_FAILS(varve_store_check(as_store, 0, nullptr), VARVE_INVALID_ARGUMENT,
               "varve_store_check: the handle is of kind state, expected store");
  varve_store_close(as_store);
  EXPECT_OK(varve_state_set_metric(state, "loss", 1));
  varve_state_close(state);
  EXPECT_EQ(varve_state_set_metric(state, "loss", 1), VARVE_INVALID_ARGUMENT);
}

TEST_F(CMisuseTest, NullArgumentsAreNamed) {
  Open();
  Save(1, {1});
  varve_reader* reader = nullptr;
  varve_writer* writer = nullptr;
  varve_state* state = nullptr;
  varve_flags* flags = nullptr;
  ASSERT_OK(varve_reader_open(store_, "1", &reader));
  ASSERT_OK(varve_writer_open(store_, 2, nullptr, &writer));
  ASSERT_OK(varve_state_create(&state));
  ASSERT_OK(varve_flags_create(&flags));
  size_t size = 0;
  int number = 0;
  float one = 0;
  const auto refused = [](varve_status status, const char* text) {
    EXPECT_EQ(status, VARVE_INVALID_ARGUMENT) << text;
    EXPECT_THAT(std::string(varve_last_error()), ::testing::HasSubstr(text));
  };
  refused(varve_store_open(nullptr, 0, nullptr, &store_), "path is NULL");
  Open(VARVE_OPEN_READ);
  refused(varve_store_open("x", 0, nullptr, nullptr), "store is NULL");
  refused(varve_store_get_stats(store_, nullptr), "varve_store_stats is NULL");
  refused(varve_store_set_metric(store_, nullptr, 1, "x", 1), "run is NULL");
  refused(varve_store_set_metric(store_, "main", 1, nullptr, 1), "name is NULL");
  refused(varve_store_set_tag(store_, "main", 1, nullptr), "tag is NULL");
  refused(varve_store_drop(store_, "main", nullptr, 1, 0, nullptr), "steps is NULL");
  refused(varve_list_runs(store_, nullptr), "list is NULL");
  refused(varve_list_steps(store_, nullptr, nullptr), "list is NULL");
  refused(varve_reader_open(store_, nullptr, nullptr), "reader is NULL");
  refused(varve_reader_read(reader, nullptr, &one, 4), "name is NULL");
  refused(varve_reader_read(reader, "w", nullptr, 4), "out is NULL");
  refused(varve_reader_find(reader, "w", nullptr), "varve_tensor_info is NULL");
  refused(varve_reader_read_slice(reader, "w", nullptr, nullptr, 1, &one, 4), "begins is NULL");
  refused(varve_reader_read_item(reader, "w", nullptr, 4, &size), "out is NULL");
  refused(varve_writer_put_tensor(writer, nullptr), "varve_tensor is NULL");
  refused(varve_writer_put_item(writer, "x", nullptr, 1), "bytes is NULL");
  auto tensor = Struct<varve_tensor>();
  refused(varve_writer_put_tensor(writer, &tensor), "name of the tensor is NULL");
  tensor.name = "w";
  tensor.num_axes = 1;
  refused(varve_writer_put_tensor(writer, &tensor), "tensor w: shape is NULL");
  const int64_t shape = 1;
  tensor.shape = &shape;
  EXPECT_EQ(varve_writer_put_tensor(writer, &tensor), VARVE_INVALID_ARGUMENT);  // no data
  tensor.data = &one;
  tensor.dtype = 20;
  refused(varve_writer_put_tensor(writer, &tensor), "tensor w: dtype is 20, expected at most 19");
  tensor.dtype = VARVE_F32;
  tensor.role = 4;
  refused(varve_writer_put_tensor(writer, &tensor), "role is 4");
  tensor.role = 0;
  tensor.num_axes = SIZE_MAX;
  refused(varve_writer_put_tensor(writer, &tensor), "num_axes is");
  auto item = Struct<varve_item>();
  item.name = "x";
  item.capacity = 1;
  refused(varve_state_add_item(state, &item), "data of the item is NULL");
  refused(varve_state_add_tag(state, "1"), "varve_state_add_tag");
  refused(varve_flags_set(flags, "--none", "x"), "there is no flag \"--none\"");
  refused(varve_flags_set(flags, nullptr, "x"), "name is NULL");
  refused(varve_flags_take(flags, &number, nullptr), "must not be null");
  refused(varve_hooks_start(flags, state, nullptr, nullptr), "hooks is NULL");
  refused(varve_state_create(nullptr), "state is NULL");
  varve_reader_close(reader);
  varve_writer_close(writer);
  varve_state_close(state);
  varve_flags_close(flags);
}

TEST_F(CMisuseTest, StructsOfOtherVersions) {
  Open();
  auto stats = Struct<varve_store_stats>();
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(stats) - 1, SIZE_MAX}) {
    stats.struct_size = size;
    EXPECT_FAILS(varve_store_get_stats(store_, &stats), VARVE_INVALID_ARGUMENT,
                 "set it to sizeof the struct");
  }
  // A program that was compiled with a header of the future.
  struct Future {
    varve_store_stats known;
    uint64_t added;
  } future = {};
  future.known.struct_size = sizeof(future);
  future.added = 7;
  ASSERT_OK(varve_store_get_stats(store_, &future.known));
  EXPECT_EQ(future.known.struct_size, sizeof(future));
  EXPECT_EQ(future.added, 0u);
  struct FutureProgress {
    varve_progress known;
    uint64_t added;
  } progress = {};
  progress.known.struct_size = sizeof(progress);
  varve_state* state = nullptr;
  ASSERT_OK(varve_state_create(&state));
  EXPECT_OK(varve_state_set_progress(state, &progress.known));
  progress.added = 1;
  EXPECT_FAILS(varve_state_set_progress(state, &progress.known), VARVE_INVALID_ARGUMENT,
               "a field that this version of varve does not know");
  varve_state_close(state);
}

TEST_F(CMisuseTest, ConstantsOutOfRange) {
  EXPECT_FAILS(varve_store_open(path().c_str(), 4, nullptr, &store_), VARVE_INVALID_ARGUMENT,
               "mode is 4");
  auto options = Struct<varve_store_options>();
  options.compression = 4;
  EXPECT_FAILS(varve_store_open(path().c_str(), VARVE_OPEN_CREATE, &options, &store_),
               VARVE_INVALID_ARGUMENT, "compression is 4");
  options.compression = VARVE_COMPRESSION_AUTO;
  options.entropy = 3;
  EXPECT_FAILS(varve_store_open(path().c_str(), VARVE_OPEN_CREATE, &options, &store_),
               VARVE_INVALID_ARGUMENT, "entropy is 3");
  Open();
  auto save = Struct<varve_save_options>();
  save.on_existing = 3;
  varve_writer* writer = nullptr;
  EXPECT_FAILS(varve_writer_open(store_, 1, &save, &writer), VARVE_INVALID_ARGUMENT,
               "on_existing is 3");
}

TEST_F(CMisuseTest, ErrorsBelongToTheirThread) {
  EXPECT_EQ(varve_state_create(nullptr), VARVE_INVALID_ARGUMENT);
  const std::string mine = varve_last_error();
  std::thread([] {
    EXPECT_STREQ(varve_last_error(), "");
    EXPECT_EQ(varve_flags_create(nullptr), VARVE_INVALID_ARGUMENT);
  }).join();
  EXPECT_EQ(varve_last_error(), mine);
  varve_state* state = nullptr;
  ASSERT_OK(varve_state_create(&state));
  EXPECT_EQ(varve_last_error(), mine) << "a call that is ok leaves it";
  varve_state_close(state);
}

// No call may crash, whatever the others do. A call gets VARVE_OK, or says that another is at work,
// or that the handle was closed.
TEST_F(CMisuseTest, CallsAtTheSameTimeAndACloseMeanwhile) {
  for (int round = 0; round < 20; ++round) {
    varve_state* state = nullptr;
    ASSERT_OK(varve_state_create(&state));
    std::atomic<int> others{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const std::string name = "metric" + std::to_string(i);
        for (int n = 0; n < 200; ++n) {
          const varve_status status = varve_state_set_metric(state, name.c_str(), n);
          const bool is_expected = status == VARVE_OK || status == VARVE_FAILED_PRECONDITION ||
                                   status == VARVE_INVALID_ARGUMENT;
          if (!is_expected) ++others;
        }
      });
    }
    varve_state_close(state);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(others, 0);
  }
}

}  // namespace
}  // namespace varve::internal::testing
