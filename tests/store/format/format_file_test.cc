// SPDX-License-Identifier: Apache-2.0
#include "store/format/format_file.h"

#include <fstream>

#include "base/util.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

class FormatFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FormatFile format;
    format.store_id = {0x0123456789abcdef, 0xfedcba9876543210};
    format.digest_seed = 42;
    VARVE_ASSERT_OK(WriteFormatFile(folder_.path(), format));
    bytes_ = ReadSmallFile(folder_.path() / "FORMAT", 4096).value();
  }
  Result<FormatFile> ReadWith(const std::string& bytes, bool for_writing = true) {
    std::ofstream(folder_.path() / "FORMAT", std::ios::binary | std::ios::trunc) << bytes;
    return ReadFormatFile(folder_.path(), for_writing);
  }
  // Sets a feature word and makes the checksum right again.
  std::string WithFeature(size_t offset, int bits = 1) {
    std::string bytes = bytes_;
    bytes[offset] = static_cast<char>(bits);
    const uint64_t sum = ComputeDigest(0, AsBytes(std::string_view(bytes).substr(0, 72))).lo;
    for (int i = 0; i < 8; ++i) bytes[72 + i] = static_cast<char>(sum >> (8 * i));
    return bytes;
  }

  TempFolder folder_;
  std::string bytes_;
};

TEST_F(FormatFileTest, RoundTrip) {
  const FormatFile read = ReadWith(bytes_).value();
  EXPECT_EQ(read.store_id, (Digest{0x0123456789abcdef, 0xfedcba9876543210}));
  EXPECT_EQ(read.digest_seed, 42u);
  EXPECT_EQ(read.version, kFormatVersion);
}

// docs/format.md, "FORMAT", byte for byte.
TEST_F(FormatFileTest, Golden) {
  ASSERT_EQ(bytes_.size(), 80u);
  EXPECT_EQ(bytes_.substr(0, 8), "varve\r\n\x1a");
  EXPECT_EQ(bytes_.substr(8, 4), std::string("\1\0\0\0", 4));
  EXPECT_EQ(bytes_.substr(12, 4), std::string("\x50\0\0\0", 4));
  EXPECT_EQ(bytes_.substr(16, 8), "\xef\xcd\xab\x89\x67\x45\x23\x01");
  EXPECT_EQ(bytes_.substr(32, 8), std::string("\x2a\0\0\0\0\0\0\0", 8));
}

// Also one of the version: the rest of the file says that it is no newer one.
TEST_F(FormatFileTest, EveryFlippedBitIsRefused) {
  for (size_t bit = 0; bit < 8 * bytes_.size(); ++bit) {
    std::string bad = bytes_;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THAT(ReadWith(bad), FailsWith(StatusCode::kCorruption, "FORMAT")) << "bit " << bit;
  }
  for (size_t size = 0; size < bytes_.size(); ++size) {
    EXPECT_FALSE(ReadWith(bytes_.substr(0, size)).ok()) << size << " bytes";
  }
}

TEST_F(FormatFileTest, NewerVersionSaysSoWhateverItsLength) {
  std::string newer = bytes_ + "more";
  newer[8] = 2;
  EXPECT_THAT(ReadWith(newer, false),
              FailsWith(StatusCode::kFailedPrecondition,
                        "format version 2, this varve knows versions up to 1"));
}

TEST_F(FormatFileTest, FeatureBits) {
  EXPECT_TRUE(ReadWith(WithFeature(40)).ok());  // compatible
  EXPECT_TRUE(ReadWith(WithFeature(48)).ok());  // sealed
  EXPECT_THAT(ReadWith(WithFeature(48, 2)),
              FailsWith(StatusCode::kFailedPrecondition, "too old to write"));
  EXPECT_TRUE(ReadWith(WithFeature(48, 2), /*for_writing=*/false).ok());
  EXPECT_TRUE(ReadWith(WithFeature(56)).ok());     // rANS
  EXPECT_TRUE(ReadWith(WithFeature(56, 2)).ok());  // replays
  EXPECT_THAT(ReadWith(WithFeature(56, 4), false),
              FailsWith(StatusCode::kFailedPrecondition, "does not know"));
}

TEST_F(FormatFileTest, OtherFilesAreNoStore) {
  EXPECT_THAT(ReadWith("hello, this is no store"), FailsWith(StatusCode::kCorruption, "bad magic"));
  std::filesystem::remove(folder_.path() / "FORMAT");
  EXPECT_THAT(ReadFormatFile(folder_.path(), true),
              FailsWith(StatusCode::kNotFound, folder_.path().string()));
}

}  // namespace
}  // namespace varve::internal::testing
