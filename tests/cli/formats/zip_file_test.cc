// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/zip_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/util.h"
#include "cli/formats/zip_entry_reader.h"
#include "tests/cli/formats/file_folder.h"
#include "tests/cli/formats/safetensors_builder.h"
#include "tests/cli/formats/zip_builder.h"

namespace varve::internal::formats {
namespace {

using ::testing::HasSubstr;

ZipBuilder Small() {
  ZipBuilder builder;
  builder.Add({.name = "a/one", .contents = "hello"});
  builder.Add({.name = "a/two", .contents = "world, world", .deflate = true});
  builder.Add({.name = "a/none"});
  return builder;
}

std::string ErrorOf(const std::string& file) {
  const auto entries = ParseZip(AsBytes(file));
  EXPECT_FALSE(entries.ok());
  EXPECT_EQ(entries.status().code(), StatusCode::kInvalidArgument);
  return entries.status().message();
}

// Writes `value` over bytes of the text.
std::string With(std::string text, size_t at, std::string_view value) {
  return text.replace(at, value.size(), value);
}

// What an entry of an archive holds, or the error.
std::string ContentsOf(const std::string& file, size_t index) {
  const FileFolder folder;
  const auto input = InputFile::Open(folder.Write("a.zip", file));
  EXPECT_TRUE(input.ok());
  const auto entries = ParseZip((*input)->bytes(), FetcherOf(input->get()));
  EXPECT_TRUE(entries.ok()) << entries.status().ToString();
  const auto contents = ReadZipEntry(*input, (*entries)[index], "a.zip: entry", 1000);
  return contents.ok() ? std::string(AsString(*contents)) : contents.status().message();
}

TEST(ZipFileTest, ReadsEntriesInTheOrderOfTheFile) {
  for (const bool zip64 : {false, true}) {
    const std::string file = Small().Build(zip64);
    const auto entries = ParseZip(AsBytes(file));
    ASSERT_TRUE(entries.ok()) << entries.status().ToString();
    ASSERT_EQ(entries->size(), 3u);
    EXPECT_EQ((*entries)[0].name, "a/one");
    EXPECT_EQ(AsString((*entries)[0].data), "hello");
    EXPECT_TRUE((*entries)[1].is_deflated);
    EXPECT_EQ((*entries)[1].size, 12u);
    EXPECT_EQ((*entries)[2].size, 0u);
    EXPECT_EQ(ContentsOf(file, 0), "hello");
    EXPECT_EQ(ContentsOf(file, 1), "world, world");
    EXPECT_EQ(ContentsOf(file, 2), "");
  }
}

TEST(ZipFileTest, TakesAnArchiveWithoutEntriesAndOneWithAComment) {
  EXPECT_TRUE(ParseZip(AsBytes(ZipBuilder().Build())).value().empty());
  std::string file = Small().Build();
  file[file.size() - 2] = 3;
  EXPECT_EQ(ParseZip(AsBytes(file + "abc")).value().size(), 3u);
  EXPECT_THAT(ErrorOf(file + "ab"), HasSubstr("no end record"));
}

// A cut file may still end where an end record is, but never is an archive then.
TEST(ZipFileTest, RefusesEachTruncation) {
  for (const bool zip64 : {false, true}) {
    const std::string file = Small().Build(zip64);
    for (size_t size = 0; size < file.size(); ++size) {
      EXPECT_FALSE(ParseZip(AsBytes(file.substr(0, size))).ok()) << size;
    }
  }
}

// Whatever one byte is changed to, reading ends, within the archive.
TEST(ZipFileTest, SurvivesEachChangedByte) {
  for (const bool zip64 : {false, true}) {
    const std::string file = Small().Build(zip64);
    for (size_t i = 0; i < file.size(); ++i) {
      for (const int value : {0, 1, 0x7f, 0x80, 0xff}) {
        std::string changed = file;
        changed[i] = static_cast<char>(value);
        const auto entries = ParseZip(AsBytes(changed));
        if (!entries.ok()) continue;
        for (const ZipEntry& entry : *entries) {
          EXPECT_GE(entry.data.data(), AsBytes(changed).data());
          EXPECT_LE(entry.data.data() + entry.data.size(),
                    AsBytes(changed).data() + changed.size());
        }
      }
    }
  }
}

TEST(ZipFileTest, RefusesEntriesThatOverlap) {
  ZipBuilder builder = Small();
  // The second entry of the directory is said to start where the first does.
  const size_t second = 46 + 5;
  builder.directory() = With(builder.directory(), second + 42, Little(0, 4));
  EXPECT_THAT(ErrorOf(builder.Build()), HasSubstr("is that of another entry"));
  // Two directory entries of other names for one place, whose header has the name of the first.
  ZipBuilder nested;
  ZipBuilder inner;
  inner.Add({.name = "in", .contents = "x"});
  nested.Add({.name = "out", .contents = inner.body()});
  ZipBuilder liar = nested;
  liar.Add({.name = "in", .contents = "x"});
  const size_t entry = 46 + 3;
  liar.directory() = With(liar.directory(), entry + 42, Little(30 + 3, 4));
  EXPECT_THAT(ErrorOf(liar.Build()), HasSubstr("the entry \"in\" starts inside of \"out\""));
}

TEST(ZipFileTest, RefusesWhatIsNotOneArchiveOfKnownEntries) {
  const auto with_field = [](size_t at, uint64_t value, int bytes) {
    ZipBuilder builder;
    builder.Add({.name = "a", .contents = "hello"});
    builder.directory() = With(builder.directory(), at, Little(value, bytes));
    return ErrorOf(builder.Build());
  };
  EXPECT_THAT(with_field(8, 1, 2), HasSubstr("it is encrypted"));
  EXPECT_THAT(with_field(8, 1 << 6, 2), HasSubstr("flags is 64"));
  EXPECT_THAT(with_field(10, 12, 2), HasSubstr("compression method is 12, expected 0"));
  EXPECT_THAT(with_field(16, 7, 4), HasSubstr("another CRC-32 than the directory"));
  EXPECT_THAT(with_field(20, 4, 4), HasSubstr("it has 4 bytes for contents of 5"));
  EXPECT_THAT(with_field(42, 9, 4), HasSubstr("its local header, at byte 9, "));
  EXPECT_THAT(with_field(0, 9, 4), HasSubstr("there is no entry of the directory"));
  EXPECT_THAT(ErrorOf(Small().Add({.name = "a/one"}).Build()), HasSubstr("\"a/one\" comes twice"));
  EXPECT_THAT(ErrorOf(Small().Build() + "x"), HasSubstr("no end record"));
  EXPECT_THAT(ErrorOf("x" + Small().Build()), HasSubstr("expected that it ends at"));
  EXPECT_THAT(ErrorOf("PK"), HasSubstr("no end record"));
}

TEST(ZipFileTest, ChecksSizesBeforeItBelievesThem) {
  ZipBuilder builder;
  builder.Add({.name = "bomb", .contents = "x", .deflate = true});
  builder.directory() = With(builder.directory(), 24, Little(0xfffffff0, 4));
  builder.body() = With(builder.body(), 22, Little(0xfffffff0, 4));
  EXPECT_THAT(ErrorOf(builder.Build()), HasSubstr("cannot be deflated contents of 4294967280"));
  std::string file = Small().Build(true);
  const size_t count = file.size() - 22 - 20 - 56 + 24;
  for (const size_t at : {count, count + 8}) file = With(file, at, Little(uint64_t{1} << 60, 8));
  EXPECT_THAT(ErrorOf(file), HasSubstr("cannot have 1152921504606846976 entries"));
}

TEST(ZipFileTest, ReadsSizesOfZip64FromTheirField) {
  ZipBuilder builder;
  const std::string extra = Little(1, 2) + Little(16, 2) + Little(5, 8) + Little(5, 8);
  builder.Add({.name = "a", .contents = "hello", .extra = extra});
  for (std::string* record : {&builder.directory(), &builder.body()}) {
    const size_t sizes = record == &builder.directory() ? 20 : 18;
    *record = With(*record, sizes, Little(0xffffffffffffffff, 8));
  }
  EXPECT_EQ(ContentsOf(builder.Build(), 0), "hello");
  builder.directory() = With(builder.directory(), 46 + 1 + 2, Little(8, 2));
  EXPECT_THAT(ErrorOf(builder.Build()), HasSubstr("zip64 field is cut short"));
}

TEST(ZipEntryReaderTest, ChecksTheContents) {
  const std::string file = Small().Build();
  EXPECT_THAT(ContentsOf(With(file, file.find("hello"), "?"), 0), HasSubstr("another CRC-32"));
  EXPECT_THAT(ContentsOf(With(file, file.find("world"), "?"), 1), HasSubstr("another CRC-32"));
}

TEST(ZipEntryReaderTest, RefusesDataThatIsNotThatOfTheContents) {
  const auto with_data = [](const std::string& data, uint64_t size) {
    ZipBuilder builder;
    builder.Add({.name = "a", .contents = data});
    for (std::string* record : {&builder.directory(), &builder.body()}) {
      const size_t method = record == &builder.directory() ? 10 : 8;
      *record = With(*record, method, Little(8, 2));
      *record = With(*record, method + 14, Little(size, 4));
    }
    return ContentsOf(builder.Build(), 0);
  };
  EXPECT_THAT(with_data("not deflated", 5), HasSubstr("is not deflated data"));
  EXPECT_THAT(with_data(Deflated("hello"), 6), HasSubstr("deflated data ends too early"));
  EXPECT_THAT(with_data(Deflated("hello"), 4), HasSubstr("goes on after its contents"));
  EXPECT_THAT(with_data(Deflated("hello").substr(0, 8), 5), HasSubstr("is cut short"));
  EXPECT_THAT(with_data(Deflated("hello") + "x", 5), HasSubstr("bytes follow its deflated data"));
  EXPECT_THAT(with_data(Deflated("hello"), 1001), HasSubstr("expected at most 1000"));
}

TEST(CheckedPartTest, ChecksBytesHoweverTheyAreRead) {
  const FileFolder folder;
  std::string text;
  while (text.size() < 3'000'000) text += std::to_string(text.size()) + ",";
  const auto file = InputFile::Open(folder.Write("a", text));
  ASSERT_TRUE(file.ok());
  const auto reads = std::make_shared<SmallReads>(*file);
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;
  for (const Ranges& ranges :
       {Ranges{}, Ranges{{0, 100}, {100, 50}, {150, text.size() - 150}},
        Ranges{{500, 100}, {550, 100}, {10, 5}, {10, 5}, {10, 9}, {10, 3}}}) {
    for (const bool is_right : {true, false}) {
      const uint32_t crc = CrcOf(text) ^ (is_right ? 0 : 1);
      CheckedPart part(reads, (*file)->bytes(), crc, "a");
      for (const auto& [offset, size] : ranges) {
        std::string out(size, '?');
        const auto bytes = std::as_writable_bytes(std::span(out));
        EXPECT_TRUE(part.Read(offset, bytes).ok());
        EXPECT_EQ(out, text.substr(offset, size));
      }
      EXPECT_EQ(part.Finish().ok(), is_right);
      if (is_right) continue;
      EXPECT_THAT(part.Finish().message(), HasSubstr("the file is damaged"));
    }
  }
}

}  // namespace
}  // namespace varve::internal::formats
