// SPDX-License-Identifier: Apache-2.0
#include "store/db/frame_block.h"

#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>

#include <fstream>

#include "store/db/store_impl.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

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
      EXPECT_TRUE(
          writer.Put(keys::Chunk({7, static_cast<uint32_t>(i)}), std::string(frame_bytes[i], 'f'))
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

// A key may become another one in its place. Then RocksDB does not find the frame, and that is all.
TEST_F(FrameBlockTest, EachFlippedBitBesideFramesAndKeysIsFound) {
  for (const std::vector<size_t>& frames :
       std::vector<std::vector<size_t>>{{40}, std::vector<size_t>(40, 30)}) {
    auto block = BlockOf(frames);
    std::vector<bool> is_harmless(block.size());
    std::vector<bool> is_of_key(block.size());
    size_t at = 0;
    for (size_t i = 0; i < frames.size(); ++i) {
      const size_t num_shared = i % 16 == 0 ? 0 : 11;  // with the key before, of 12 + 8 bytes
      at += 3;                                         // three lengths
      std::fill_n(is_of_key.begin() + at, 12 - num_shared, true);
      at += 20 - num_shared;
      std::fill_n(is_harmless.begin() + at, frames[i], true);
      at += frames[i];
    }
    std::fill(is_harmless.end() - 4, is_harmless.end(), true);  // the checksum
    for (size_t i = 0; i < block.size(); ++i) {
      for (int bit = 0; bit < 8 && !is_of_key[i]; ++bit) {
        block[i] ^= std::byte{1} << bit;
        EXPECT_EQ(HasSoundEntries(block), is_harmless[i]) << i << " " << bit;
        block[i] ^= std::byte{1} << bit;
      }
    }
    EXPECT_TRUE(HasSoundEntries(block));
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
