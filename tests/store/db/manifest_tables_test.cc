// SPDX-License-Identifier: Apache-2.0
//
// What a manifest names is what RocksDB reads from it, and whatever is not understood is left to
// RocksDB.
#include "store/db/manifest_tables.h"

#include <fstream>

#include "base/util.h"
#include "store/db/manifest_log.h"
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using std::string_literals::operator""s;

class ManifestTablesTest : public InternalsTest {
 protected:
  std::filesystem::path manifest() const {
    std::string name = ReadSmallFile(path() / "db" / "CURRENT", 256).value();
    name.pop_back();
    return path() / "db" / name;
  }
  std::string log() const { return ReadSmallFile(manifest(), 1 << 20).value(); }

  // RocksDB reads the same files, families and levels.
  void ExpectSameAsRocksDb() {
    const Families families =
        FindFamilies(path(), MakeDbOptions(), MakeFamilyOptions(nullptr)).value();
    FamilyIds ids;
    const auto expected = ReadManifest(path(), families, &ids).value();
    const auto found = ReadManifestTables(path());
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->FileNames(), NamesOf(expected));
    ASSERT_EQ(found->families.size(), ids.size());
    for (const auto& [id, name] : found->families) EXPECT_EQ(ids.at(name), id);
    ASSERT_EQ(found->tables.size(), expected.size());
    for (const auto& file : expected) {
      const ManifestTables::Table table{ids.at(file.column_family_name),
                                        static_cast<uint64_t>(file.level), file.size};
      EXPECT_EQ(found->tables.at(file.file_number), table) << file.name;
    }
  }
};

TEST_F(ManifestTablesTest, NamesWhatRocksDbReads) {
  ExpectSameAsRocksDb();
  for (uint64_t step = 1; step <= 40; ++step) {
    // Every other tensor stays as it was, so that chunk files die in part.
    VARVE_ASSERT_OK(Save(step, {RandomTensor("a", DType::kU8, {70000}, step),
                                RandomTensor("b", DType::kU8, {70000}, step / 8)})
                        .status());
    if (step % 8 == 0) {
      Reopen();
      VARVE_ASSERT_OK(DropSteps({step - 1, step - 2}));
      VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
      store_.reset();
      ExpectSameAsRocksDb();
      Reopen();
    }
  }
  auto* const db = database()->rocksdb();
  const Family moved = Family::kTensors;
  ASSERT_TRUE(db->CompactRange({}, database()->handle(moved), nullptr, nullptr).ok());
  store_.reset();
  ExpectSameAsRocksDb();
}

TEST_F(ManifestTablesTest, AnEndThatIsNotWholeIsLeftToRocksDb) {
  for (uint64_t step = 1; step <= 3; ++step) {
    VARVE_ASSERT_OK(Save(step, {RandomTensor("t", DType::kU8, {1000}, step)}).status());
  }
  store_.reset();
  const std::string whole = log();
  const auto all = DecodeManifest(whole);
  ASSERT_TRUE(all.has_value());
  size_t num_states = 0;
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string_view start = std::string_view(whole).substr(0, size);
    const auto found = DecodeManifest(start);
    if (!found.has_value()) continue;
    ++num_states;
    EXPECT_EQ(EndOfLogRecords(start, LogChecksums::kCompare), size);
  }
  EXPECT_GT(num_states, 3u);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    EXPECT_FALSE(DecodeManifest(damaged).has_value()) << at;
  }
  // Whatever it says, the store opens as RocksDB reads it.
  std::ofstream(manifest(), std::ios::binary | std::ios::app) << whole.substr(0, 9);
  EXPECT_FALSE(ReadManifestTables(path()).has_value());
  const auto reader = Store::OpenForReading(path());
  VARVE_ASSERT_OK(reader.status());
  EXPECT_EQ((*reader)->ListCheckpoints("main").value().size(), 3u);
  std::filesystem::resize_file(manifest(), whole.size());
}

// Records by hand. Numbers below 128 are varints of one byte, and a text follows its length.
std::string File(int number, const std::string& fields = "") {
  const std::string key = "\x09keykeykey";
  std::string file = "\x67\x01";  // tag 103, level 1
  file += static_cast<char>(number);
  return file + "\x40" + key + key + "\x05\x06" + fields + "\x01";
}
const std::string kOfFamily3 = "\xc8\x01\x03";  // tag 200
const std::string kAdd3 = kOfFamily3 + "\xc9\x01\x05 tags";
const std::string kDrop = "\xca\x01";
std::string Deleted(int level, int number) {
  return {'\x06', static_cast<char>(level), static_cast<char>(number)};
}
std::string InGroup(int to_come) { return {'\xac', '\x02', static_cast<char>(to_come)}; }

std::optional<ManifestTables> Decode(const std::vector<std::string>& records) {
  std::string log;
  for (const std::string& record : records) AppendLogRecord(record, &log);
  return DecodeManifest(log);
}

std::optional<std::set<std::string>> Names(const std::vector<std::string>& records) {
  const auto found = Decode(records);
  return found.has_value() ? std::optional(found->FileNames()) : std::nullopt;
}

TEST(DecodeManifestTest, RecordsAddUp) {
  const std::string comparator =
      "\x01\x07"
      "Ordered";
  const std::string numbers = "\x02\x03\x03\x7f\x04\x80\x01\x09\x01\x0a\x02\xcb\x01\x03";
  EXPECT_THAT(Names({}), Optional(ElementsAre()));
  EXPECT_THAT(Names({comparator + numbers, kAdd3, kOfFamily3 + File(7), File(8)}),
              Optional(ElementsAre("000007.sst", "000008.sst")));
  EXPECT_THAT(Decode({kAdd3})->families,
              UnorderedElementsAre(Pair(0, "default"), Pair(3, " tags")));
  EXPECT_THAT(Names({kAdd3, kOfFamily3 + File(7), File(8), kOfFamily3 + kDrop}),
              Optional(ElementsAre("000008.sst")));
  EXPECT_THAT(Names({File(7), Deleted(1, 7) + File(9)}), Optional(ElementsAre("000009.sst")));
  EXPECT_THAT(Names({File(7), Deleted(1, 7) + File(7)}), Optional(ElementsAre("000007.sst")));
  EXPECT_THAT(Names({File(7, "\x05\x02xy\x07\x00"s)}), Optional(ElementsAre("000007.sst")));
  EXPECT_THAT(Names({InGroup(1) + File(7), InGroup(0) + File(8)}),
              Optional(ElementsAre("000007.sst", "000008.sst")));
  // A record of several blocks.
  const std::string long_name(70000, 'x');
  EXPECT_THAT(Names({File(7), "\x01\xf0\xa2\x04" + long_name + File(8)}),
              Optional(ElementsAre("000007.sst", "000008.sst")));
}

TEST(VisitManifestStatesTest, StatesFollowEachOther) {
  const std::vector<std::string> records = {File(7), InGroup(1) + File(8), InGroup(0) + File(9),
                                            Deleted(1, 7)};
  std::string log;
  std::vector<size_t> ends = {0};
  for (const std::string& record : records) {
    AppendLogRecord(record, &log);
    ends.push_back(log.size());
  }
  using Names = std::set<std::string>;
  const std::string a = "000007.sst", b = "000008.sst", c = "000009.sst";
  const std::vector<std::pair<size_t, Names>> states = {
      {0, {}}, {ends[1], {a}}, {ends[3], {a, b, c}}, {ends[4], {b, c}}};
  // How many of them are later than `from`.
  const auto visited = [&](std::string_view part, size_t from, size_t last) {
    std::vector<std::pair<size_t, Names>> found;
    const auto end = VisitManifestStates(part, from, [&](const ManifestTables& state, size_t at) {
      found.emplace_back(at, state.FileNames());
    });
    EXPECT_THAT(end, Optional(states[last].first));
    return found;
  };
  const auto between = [&](size_t first, size_t last) {
    return std::vector(states.begin() + static_cast<int64_t>(first),
                       states.begin() + static_cast<int64_t>(last) + 1);
  };
  EXPECT_EQ(visited(log, 0, 3), between(0, 3));
  EXPECT_EQ(visited(log, ends[1] - 1, 3), between(0, 3));
  EXPECT_EQ(visited(log, ends[1], 3), between(1, 3));
  EXPECT_EQ(visited(log, ends[2], 3), between(1, 3));  // the group is not whole there
  EXPECT_EQ(visited(log, ends[3], 3), between(2, 3));
  EXPECT_EQ(visited(log, log.size(), 3), between(3, 3));
  EXPECT_EQ(visited(log, log.size() + 9, 3), between(3, 3));
  // The end is being written.
  const std::string_view whole = log;
  EXPECT_EQ(visited(whole.substr(0, log.size() - 1), ends[1], 2), between(1, 2));
  EXPECT_EQ(visited(whole.substr(0, ends[2] + 3), ends[2] + 3, 1), between(1, 1));
  EXPECT_EQ(VisitManifestStates("", 0, [](const ManifestTables&, size_t) {}), size_t{0});
}

TEST(VisitManifestStatesTest, TablesAreNamedByFamily) {
  std::string log;
  for (const std::string& record : {kAdd3, kOfFamily3 + File(7), File(8), kOfFamily3 + File(9)}) {
    AppendLogRecord(record, &log);
  }
  EXPECT_THAT(
      DecodeManifest(log)->ByFamily(),
      UnorderedElementsAre(Pair(" tags", ElementsAre(7, 9)), Pair("default", ElementsAre(8))));
}

TEST(DecodeManifestTest, WhatIsNotUnderstoodIsLeftToRocksDb) {
  const std::vector<std::vector<std::string>> strange = {
      {"\x07\x01\x02"},                                      // an older kind of file
      {"\x90\x03\x01"},                                      // tag 400: blobs
      {File(7, "\x41\x01\x02")},                             // a file in another folder
      {File(7, "\x42\x01\x02")},                             // a field that must be known
      {File(7).substr(0, 12)},                               // a file that is cut
      {"\x01\x20short"},                                     // a text that is cut
      {"\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"},  // no number
      {Deleted(1, 7)},                                       // of a file that is not there
      {File(7), Deleted(0, 7)},                              // of another level
      {kAdd3, File(7), kOfFamily3 + Deleted(1, 7)},          // of another family
      {File(7), File(7)},
      {kOfFamily3 + File(7)},  // of a family that is not there
      {kAdd3, kAdd3},
      {InGroup(1) + File(7)},           // the rest of the group is missing
      {InGroup(1) + File(7), File(8)},  // and so it is here
      {InGroup(2) + File(7), InGroup(0) + File(8)},
      {"\xc8\x01\xff\xff\xff\xff\x7f"},  // no number of a family
  };
  for (size_t i = 0; i < strange.size(); ++i) EXPECT_FALSE(Decode(strange[i]).has_value()) << i;
  std::string log;
  AppendLogRecord(File(7), &log);
  EXPECT_FALSE(DecodeManifest(log + std::string(20, '\0')).has_value());
}

}  // namespace
}  // namespace varve::internal::testing
