// SPDX-License-Identifier: Apache-2.0
//
// Stores in C: open, save, read, list, drop, reclaim, check.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/capi/c_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;

class CStoreTest : public CTest {
 protected:
  // Values that are no function of each other, so that their chunks take space.
  static std::vector<float> Noise(size_t size, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    return values;
  }
};

TEST_F(CStoreTest, ModesOfOpening) {
  varve_store* store = nullptr;
  EXPECT_FAILS(varve_store_open(path().c_str(), VARVE_OPEN_READ, nullptr, &store), VARVE_NOT_FOUND,
               "not found");
  EXPECT_EQ(store, nullptr);
  EXPECT_EQ(varve_store_open(path().c_str(), VARVE_OPEN_WRITE, nullptr, &store), VARVE_NOT_FOUND);
  Open(VARVE_CREATE_NEW);
  EXPECT_EQ(varve_store_open(path().c_str(), VARVE_OPEN_WRITE, nullptr, &store), VARVE_LOCKED);
  EXPECT_EQ(varve_store_open(path().c_str(), VARVE_CREATE_NEW, nullptr, &store),
            VARVE_ALREADY_EXISTS);
  ASSERT_OK(varve_store_open(path().c_str(), VARVE_OPEN_READ, nullptr, &store));
  varve_writer* writer = nullptr;
  EXPECT_EQ(varve_writer_open(store, 1, nullptr, &writer), VARVE_FAILED_PRECONDITION);
  varve_store_close(store);
  Open(VARVE_OPEN_WRITE);
  Open(VARVE_OPEN_CREATE);
  auto options = Struct<varve_store_options>();
  options.compression = VARVE_COMPRESSION_FAST;
  options.num_threads = 1;
  varve_store_close(store_);
  EXPECT_OK(varve_store_open(path().c_str(), VARVE_OPEN_WRITE, &options, &store_));
}

TEST_F(CStoreTest, AStepComesBackWhole) {
  Open();
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const int64_t shape[] = {2, 3};
  const int64_t strides[] = {1, 2};  // so the rows are 1 3 5 and 2 4 6
  varve_tensor tensor = Floats("w", &values, shape);
  tensor.num_axes = 2;
  tensor.role = VARVE_PARAMETER;
  varve_writer* writer = nullptr;
  auto options = Struct<varve_save_options>();
  options.run = "mine";
  ASSERT_OK(varve_writer_open(store_, 7, &options, &writer));
  ASSERT_OK(varve_writer_put_tensor(writer, &tensor));
  tensor.name = "turned";
  tensor.strides = strides;
  ASSERT_OK(varve_writer_put_tensor(writer, &tensor));
  float single = 9;
  auto scalar = Struct<varve_tensor>();
  scalar.name = "one";
  scalar.dtype = VARVE_F32;
  scalar.data = &single;
  ASSERT_OK(varve_writer_put_tensor(writer, &scalar));
  ASSERT_OK(varve_writer_put_item(writer, "loader", "abc", 3));
  ASSERT_OK(varve_writer_put_item(writer, "empty", nullptr, 0));
  ASSERT_OK(varve_writer_set_metric(writer, "loss", 0.5));
  ASSERT_OK(varve_writer_add_tag(writer, "good"));
  auto progress = Struct<varve_progress>();
  progress.global_step = 7;
  progress.best_metric = 0.25;
  ASSERT_OK(varve_writer_set_progress(writer, &progress));
  auto report = Struct<varve_save_report>();
  ASSERT_OK(varve_writer_commit(writer, &report));
  EXPECT_EQ(report.num_tensors, 3u);
  EXPECT_EQ(report.logical_bytes, 52u);
  EXPECT_EQ(varve_writer_commit(writer, nullptr), VARVE_FAILED_PRECONDITION);
  varve_writer_close(writer);

  varve_reader* reader = nullptr;
  ASSERT_OK(varve_reader_open(store_, "mine@good", &reader));
  auto step = Struct<varve_step_info>();
  ASSERT_OK(varve_reader_info(reader, &step));
  EXPECT_STREQ(step.run, "mine");
  EXPECT_EQ(step.step, 7u);
  EXPECT_GT(step.created_us, 0);
  ASSERT_EQ(step.num_metrics, 1u);
  EXPECT_STREQ(step.metrics[0].name, "loss");
  EXPECT_EQ(step.metrics[0].value, 0.5);
  ASSERT_EQ(step.num_tags, 1u);
  EXPECT_STREQ(step.tags[0], "good");

  size_t count = 0;
  ASSERT_OK(varve_reader_num_tensors(reader, &count));
  std::vector<std::string> names;
  auto info = Struct<varve_tensor_info>();
  for (size_t i = 0; i < count; ++i) {
    ASSERT_OK(varve_reader_tensor(reader, i, &info));
    names.emplace_back(info.name);
  }
  EXPECT_THAT(names, ElementsAre("one", "turned", "w"));
  EXPECT_FAILS(varve_reader_tensor(reader, count, &info), VARVE_INVALID_ARGUMENT, "index is 3");
  ASSERT_OK(varve_reader_find(reader, "w", &info));
  EXPECT_EQ(info.dtype, static_cast<uint32_t>(VARVE_F32));
  EXPECT_EQ(info.role, static_cast<uint32_t>(VARVE_PARAMETER));
  EXPECT_EQ(std::vector<int64_t>(info.shape, info.shape + info.num_axes),
            (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(info.num_bytes, 24u);
  EXPECT_EQ(info.derived_from, nullptr);
  EXPECT_FAILS(varve_reader_find(reader, "v", &info), VARVE_NOT_FOUND, "v");

  std::vector<float> out(6);
  ASSERT_OK(varve_reader_read(reader, "turned", out.data(), 24));
  EXPECT_THAT(out, ElementsAre(1, 3, 5, 2, 4, 6));
  EXPECT_EQ(varve_reader_read(reader, "w", out.data(), 20), VARVE_INVALID_ARGUMENT);
  const int64_t begins[] = {1, 0}, ends[] = {2, 2};
  ASSERT_OK(varve_reader_read_slice(reader, "w", begins, ends, 2, out.data(), 8));
  EXPECT_EQ(out[0], 4);
  EXPECT_EQ(out[1], 5);
  EXPECT_FAILS(varve_reader_read_slice(reader, "w", begins, ends, 1, out.data(), 8),
               VARVE_INVALID_ARGUMENT, "num_axes is 1");
  const int64_t outside[] = {3, 4};
  EXPECT_EQ(varve_reader_read_slice(reader, "w", begins, outside, 2, out.data(), 32),
            VARVE_INVALID_ARGUMENT);
  ASSERT_OK(varve_reader_read_slice(reader, "one", nullptr, nullptr, 0, out.data(), 4));
  EXPECT_EQ(out[0], 9);

  ASSERT_OK(varve_reader_num_items(reader, &count));
  ASSERT_EQ(count, 2u);
  const char* name = nullptr;
  ASSERT_OK(varve_reader_item_name(reader, 1, &name));
  EXPECT_STREQ(name, "loader");
  char bytes[8] = {};
  size_t size = 99;
  EXPECT_FAILS(varve_reader_read_item(reader, "loader", nullptr, 0, &size), VARVE_INVALID_ARGUMENT,
               "has 3 bytes, and capacity is 0");
  EXPECT_EQ(size, 3u);
  ASSERT_OK(varve_reader_read_item(reader, "loader", bytes, sizeof(bytes), &size));
  EXPECT_STREQ(bytes, "abc");
  ASSERT_OK(varve_reader_read_item(reader, "empty", nullptr, 0, &size));
  EXPECT_EQ(varve_reader_read_item(reader, "none", bytes, 8, &size), VARVE_NOT_FOUND);
  progress = Struct<varve_progress>();
  ASSERT_OK(varve_reader_progress(reader, &progress));
  EXPECT_EQ(progress.global_step, 7);
  EXPECT_EQ(progress.best_metric, 0.25);
  varve_reader_close(reader);
}

TEST_F(CStoreTest, RunsAndStepsAreListed) {
  Open();
  Save(10, {1, 2});
  Save(20, {1, 3});
  ASSERT_OK(varve_store_set_metric(store_, "main", 20, "loss", 1.5));
  ASSERT_OK(varve_store_set_tag(store_, "main", 10, "first"));
  varve_list *steps = nullptr, *runs = nullptr;
  ASSERT_OK(varve_list_steps(store_, "main", &steps));
  ASSERT_OK(varve_store_remove_tag(store_, "main", "first"));
  size_t size = 0;
  ASSERT_OK(varve_list_size(steps, &size));
  ASSERT_EQ(size, 2u);
  auto info = Struct<varve_step_info>();
  ASSERT_OK(varve_list_step(steps, 0, &info));
  EXPECT_EQ(info.step, 10u);
  ASSERT_EQ(info.num_tags, 1u) << "the list is as it was made";
  EXPECT_STREQ(info.tags[0], "first");
  ASSERT_OK(varve_list_step(steps, 1, &info));
  EXPECT_EQ(info.step, 20u);
  EXPECT_EQ(info.metrics[0].value, 1.5);
  ASSERT_OK(varve_list_runs(store_, &runs));
  auto run = Struct<varve_run_info>();
  ASSERT_OK(varve_list_run(runs, 0, &run));
  EXPECT_STREQ(run.name, "main");
  EXPECT_EQ(run.num_steps, 2u);
  EXPECT_EQ(run.forked_from_run, nullptr);
  EXPECT_FAILS(varve_list_run(steps, 0, &run), VARVE_INVALID_ARGUMENT, "holds steps");
  EXPECT_FAILS(varve_list_step(runs, 0, &info), VARVE_INVALID_ARGUMENT, "holds runs");
  EXPECT_FAILS(varve_list_run(runs, 1, &run), VARVE_INVALID_ARGUMENT, "the list has 1 entries");
  EXPECT_EQ(varve_list_steps(store_, "other", &runs), VARVE_NOT_FOUND);
  EXPECT_EQ(runs, nullptr);
  varve_list_close(steps);
}

TEST_F(CStoreTest, DropReclaimCheckAndStats) {
  Open();
  Save(10, Noise(1000, 1));
  Save(20, Noise(1000, 2));
  const uint64_t both[] = {10, 30};
  EXPECT_FAILS(varve_store_drop(store_, "main", both, 2, 1, nullptr), VARVE_NOT_FOUND, "30");
  auto stats = Struct<varve_store_stats>();
  ASSERT_OK(varve_store_get_stats(store_, &stats));
  EXPECT_EQ(stats.num_steps, 2u);
  EXPECT_EQ(stats.logical_bytes, 8000u);
  auto freed = Struct<varve_reclaim_report>();
  ASSERT_OK(varve_store_drop(store_, "main", both, 1, 0, &freed));
  EXPECT_EQ(freed.freed_bytes, 0u);
  ASSERT_OK(varve_store_get_stats(store_, &stats));
  EXPECT_GT(stats.pending_bytes, 0u);
  ASSERT_OK(varve_store_reclaim(store_, 1, &freed));
  EXPECT_GT(freed.freed_bytes, 0u);
  EXPECT_EQ(freed.pending_bytes, 0u);
  EXPECT_OK(varve_store_drop(store_, "main", nullptr, 0, 1, nullptr));
  auto checked = Struct<varve_check_report>();
  ASSERT_OK(varve_store_check(store_, 1, &checked));
  EXPECT_EQ(checked.num_errors, 0u);
  EXPECT_EQ(checked.num_steps, 1u);
  EXPECT_GT(checked.bytes_read, 0u);
}

TEST_F(CStoreTest, ADamagedStoreIsAnErrorOfCheck) {
  Open();
  Save(1, Noise(50000, 3));
  varve_store_close(store_);
  // A byte in the middle of the largest table, which holds the chunks.
  std::filesystem::directory_entry largest;
  for (const auto& entry : std::filesystem::directory_iterator(path() + "/db")) {
    const bool is_table = entry.path().extension() == ".sst";
    if (is_table && (!largest.exists() || entry.file_size() > largest.file_size())) largest = entry;
  }
  std::fstream file(largest.path(), std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(largest.file_size() / 2);
  file.seekg(middle);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(middle);
  file.put(byte);
  file.close();
  ASSERT_OK(varve_store_open(path().c_str(), VARVE_OPEN_READ, nullptr, &store_));
  auto report = Struct<varve_check_report>();
  EXPECT_FAILS(varve_store_check(store_, 1, &report), VARVE_CORRUPTION, "the check found");
  EXPECT_GT(report.num_errors, 0u);
  varve_store_close(store_);
  std::filesystem::remove_all(path());  // so that the teardown checks nothing
}

TEST_F(CStoreTest, AReaderKeepsItsStoreOpen) {
  Open();
  Save(1, {4, 5});
  varve_reader* reader = nullptr;
  ASSERT_OK(varve_reader_open(store_, "1", &reader));
  varve_store_close(store_);
  std::vector<float> out(2);
  EXPECT_OK(varve_reader_read(reader, "w", out.data(), 8));
  EXPECT_THAT(out, ElementsAre(4, 5));
  varve_store* other = nullptr;
  EXPECT_EQ(varve_store_open(path().c_str(), VARVE_OPEN_WRITE, nullptr, &other), VARVE_LOCKED);
  varve_reader_close(reader);
  EXPECT_OK(varve_store_open(path().c_str(), VARVE_OPEN_WRITE, nullptr, &other));
  varve_store_close(other);
}

TEST_F(CStoreTest, AWriterThatIsClosedLeavesNothing) {
  Open();
  varve_writer* writer = nullptr;
  ASSERT_OK(varve_writer_open(store_, 1, nullptr, &writer));
  ASSERT_OK(varve_writer_put_item(writer, "a", "b", 1));
  varve_writer_close(writer);
  varve_reader* reader = nullptr;
  EXPECT_EQ(varve_reader_open(store_, "1", &reader), VARVE_NOT_FOUND);
  Save(1, {1});
  EXPECT_EQ(varve_writer_open(store_, 1, nullptr, &writer), VARVE_ALREADY_EXISTS);
  auto options = Struct<varve_save_options>();
  options.on_existing = VARVE_EXISTING_REPLACE;
  EXPECT_OK(varve_writer_open(store_, 1, &options, &writer));
  varve_writer_close(writer);
}

TEST(CValuesTest, NamesAndSizes) {
  EXPECT_STREQ(varve_version(), "0.1.0");
  EXPECT_STREQ(varve_status_name(VARVE_OK), "ok");
  EXPECT_STREQ(varve_status_name(VARVE_CORRUPTION), "corruption");
  EXPECT_STREQ(varve_status_name(-1), "?");
  EXPECT_STREQ(varve_status_name(10), "?");
  EXPECT_STREQ(varve_dtype_name(VARVE_BF16), "BF16");
  EXPECT_STREQ(varve_dtype_name(99), "?");
  EXPECT_EQ(varve_dtype_bits(VARVE_C64), 64u);
  EXPECT_EQ(varve_dtype_bits(VARVE_C64 + 1), 0u);
}

}  // namespace
}  // namespace varve::internal::testing
