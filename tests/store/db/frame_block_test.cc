// SPDX-License-Identifier: Apache-2.0
#include "store/db/frame_block.h"

#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>

#include <fstream>

#include "store/db/store_impl.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

constexpr char kValueByte = '\xa5';  // in no key and in no length of these tests

class FrameBlockTest : public StoreTest {
 protected:
  // Returns the only block of frames of a table that has these frames.
  std::vector<std::byte> BlockOf(const std::vector<size_t>& frame_bytes) {
    const Database* database = static_cast<StoreImpl*>(store_.get())->database();
    const rocksdb::Options options = database->FileOptions(Family::kChunks);
    const std::string name = (path() / "block.sst").string();
    rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options);
    EXPECT_TRUE(writer.Open(name).ok());
    for (size_t i = 0; i < frame_bytes.size(); ++i) {
      EXPECT_TRUE(writer
                      .Put(keys::Chunk({7, static_cast<uint32_t>(i)}),
                           std::string(frame_bytes[i], kValueByte))
                      .ok());
    }
    EXPECT_TRUE(writer.Finish().ok());
    rocksdb::SstFileReader reader(options);
    EXPECT_TRUE(reader.Open(name).ok());
    const auto properties = reader.GetTableProperties();
    EXPECT_EQ(properties->num_data_blocks, 1u);
    std::vector<std::byte> block(properties->data_size);
    std::ifstream file(name, std::ios::binary);
    file.read(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(block.size()));
    EXPECT_TRUE(file.good());
    std::filesystem::remove(name);
    return block;
  }
};

TEST_F(FrameBlockTest, BlocksOfRocksDbAreSound) {
  for (const std::vector<size_t>& frames : std::vector<std::vector<size_t>>{
           {1}, {0}, {300'000}, {100, 200, 90}, std::vector<size_t>(130, 100)}) {
    const auto block = BlockOf(frames);
    EXPECT_TRUE(HasSoundEntries(block)) << frames.size();
  }
}

TEST_F(FrameBlockTest, EachFlippedBitThatIsNotOfAFrameIsFound) {
  for (const std::vector<size_t>& frames :
       std::vector<std::vector<size_t>>{{40}, std::vector<size_t>(40, 30)}) {
    auto block = BlockOf(frames);
    for (size_t at = 0; at < block.size(); ++at) {
      const bool of_frame = block[at] == std::byte{static_cast<unsigned char>(kValueByte)};
      const bool of_checksum = at + 4 >= block.size();
      for (int bit = 0; bit < 8; ++bit) {
        block[at] ^= std::byte{1} << bit;
        EXPECT_EQ(HasSoundEntries(block), of_frame || of_checksum) << at << " " << bit;
        block[at] ^= std::byte{1} << bit;
      }
    }
  }
}

TEST_F(FrameBlockTest, CutAndRandomBlocksAreRefused) {
  const auto block = BlockOf(std::vector<size_t>(40, 30));
  for (size_t size = 0; size < block.size(); ++size) {
    EXPECT_FALSE(HasSoundEntries(std::span(block).first(size))) << size;
  }
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    const TestTensor noise =
        RandomTensor("noise", DType::kU8, {static_cast<int64_t>(seed % 200 + 1)}, seed);
    EXPECT_FALSE(HasSoundEntries(noise.bytes)) << seed;
  }
}

}  // namespace
}  // namespace varve::internal::testing
