// SPDX-License-Identifier: Apache-2.0
//
// Catalogues of any size: what is written is read, no more of it than is asked for, and nothing
// that a file says is believed.
#include "store/group/catalogue_index.h"

#include <flatbuffers/flatbuffers.h>

#include <fstream>

#include "base/util.h"
#include "store/format/group_file.h"
#include "store/schema/group_generated.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kSeed = 3;

std::string TensorName(int i) {
  std::string number = std::to_string(i);
  return "layers." + std::string(5 - number.size(), '0') + number + ".weight";
}

// Tensors of two axes, cut by rows, and one that each rank has for itself.
Catalogue MakeCatalogue(int num_tensors, uint32_t num_ranks) {
  Catalogue catalogue;
  for (int i = 0; i < num_tensors; ++i) {
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      ShardLayout rows = ShardLayout::Whole({int64_t{4} * num_ranks, 8});
      rows.axes[0] = {{int64_t{4} * rank, 4}};
      const auto number = static_cast<uint64_t>(i);
      catalogue.shards.push_back({{.name = TensorName(i),
                                   .dtype = DType::kBF16,
                                   .shape = {4, 8},
                                   .layout = std::move(rows)},
                                  rank,
                                  0,
                                  {number, rank}});
    }
  }
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    catalogue.shards.push_back({{.name = "own", .shape = {2, 3}}, rank, rank % 2});
    catalogue.items.push_back({"loader", rank});
  }
  catalogue.Sort();
  return catalogue;
}

std::map<uint32_t, GroupPart> MakeParts(uint32_t num_ranks) {
  std::map<uint32_t, GroupPart> parts;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    parts[rank] = {.member = 100 + rank, .root = {rank, 1}, .num_tensors = 2, .new_bytes = rank};
  }
  return parts;
}

class CatalogueIndexTest : public ::testing::Test {
 protected:
  void SetUp() override { VARVE_ASSERT_OK(CreateOrReadGroup(folder_.path()).status()); }

  CataloguePlaceOnDisk place() const { return {folder_.path(), kSeed, 5}; }
  fs::path File(const std::string& name) const { return CataloguesFolder(folder_.path()) / name; }

  // Returns what the log says about an attempt with these parts.
  static GroupAttempt Attempt(const std::map<uint32_t, GroupPart>& parts, const Digest& catalogue) {
    GroupAttempt attempt{.committed = true, .catalogue = catalogue};
    std::vector<MemberId> members;
    for (const auto& [rank, part] : parts) {
      members.push_back(part.member);
      attempt.crew_totals.Add(part);
    }
    attempt.crew.members = std::make_shared<const std::vector<MemberId>>(members);
    return attempt;
  }

  // Makes both calls of one save.
  GroupAttempt Write(const Catalogue& catalogue, uint32_t num_ranks, const CatalogueCut& cut = {}) {
    const auto parts = MakeParts(num_ranks);
    const auto digest = WriteIndexedCatalogue(place(), catalogue, parts, cut);
    EXPECT_TRUE(digest.ok()) << digest.status().ToString();
    return Attempt(parts, digest.ok() ? *digest : Digest());
  }

  static Result<Catalogue> ReadAll(const CatalogueReader& reader) {
    Catalogue all;
    all.items = reader.items();
    for (size_t i = 0; i < reader.num_sections(); ++i) {
      VARVE_ASSIGN_OR_RETURN(const auto shards, reader.Section(i));
      all.shards.insert(all.shards.end(), shards.begin(), shards.end());
    }
    return all;
  }

  // Opens an index, of two ranks, that somebody has made by hand.
  Status OpenIndex(flatbuffers::FlatBufferBuilder* builder,
                   flatbuffers::Offset<fb::CatalogueIndex> root) {
    builder->Finish(root);
    const std::string bytes(reinterpret_cast<const char*>(builder->GetBufferPointer()),
                            builder->GetSize());
    std::ofstream(File("5"), std::ios::binary) << bytes;
    const GroupAttempt attempt = Attempt({}, ComputeDigest(kSeed, AsBytes(bytes)));
    return CatalogueReader::Open(place(), attempt).status();
  }

  TempFolder folder_;
};

// 2^20 tables were the most that a reader believed: 90 ranks of this model.
TEST_F(CatalogueIndexTest, ACatalogueOfManyRanksIsRead) {
  const Catalogue catalogue = MakeCatalogue(2892, 96);
  const auto list = DecodeCatalogue(EncodeCatalogue(catalogue), 96);
  VARVE_ASSERT_OK(list.status());
  EXPECT_TRUE(*list == catalogue);

  const GroupAttempt attempt = Write(catalogue, 96, {.section_bytes = 1 << 20});
  EXPECT_LT(fs::file_size(File("5")), 16384u);
  const auto reader = CatalogueReader::Open(place(), attempt);
  VARVE_ASSERT_OK(reader.status());
  EXPECT_GT((*reader)->num_sections(), 5u);
  EXPECT_THAT((*reader)->Find(TensorName(1000)).value(), SizeIs(96));
  EXPECT_EQ((*reader)->num_sections_read(), 1u);
  EXPECT_EQ((*reader)->parts().at(95).member, 195u);
}

TEST_F(CatalogueIndexTest, IsReadHoweverItIsCut) {
  const Catalogue catalogue = MakeCatalogue(20, 3);
  for (const CatalogueCut& cut :
       {CatalogueCut{}, CatalogueCut{0, 0}, CatalogueCut{0, 2000}, CatalogueCut{0, 1 << 20}}) {
    fs::remove_all(CataloguesFolder(folder_.path()));
    fs::create_directory(CataloguesFolder(folder_.path()));
    const GroupAttempt attempt = Write(catalogue, 3, cut);
    const auto reader = CatalogueReader::Open(place(), attempt);
    VARVE_ASSERT_OK(reader.status());
    EXPECT_TRUE(ReadAll(**reader).value() == catalogue);
    for (const CatalogueShard& shard : catalogue.shards) {
      const auto found = (*reader)->Find(shard.name);
      VARVE_ASSERT_OK(found.status());
      ASSERT_THAT(*found, SizeIs(3));
      EXPECT_TRUE((*found)[shard.rank] == shard);
    }
    for (const char* name : {"", "a", "layers.00007.bias", "oak", "z"}) {
      EXPECT_THAT((*reader)->Find(name).value(), IsEmpty()) << name;
    }
    if (cut.section_bytes == 0) {
      EXPECT_EQ((*reader)->num_sections(), 21u);
    }
    if (cut.section_bytes == 2000) {
      EXPECT_GT((*reader)->num_sections(), 1u);
    }
    if (cut.section_bytes > 2000) {
      EXPECT_EQ((*reader)->num_sections(), 1u);
    }
    EXPECT_EQ(fs::exists(File("5.p0")), cut.inline_bytes == 0);
    std::vector<bool> stay;
    for (const auto& [path, number] : ListCatalogues(folder_.path()).value()) {
      EXPECT_EQ(number, 5u);
      stay.push_back(IsWholeCatalogue(path));
    }
    EXPECT_THAT(stay, Each(true));
  }
  EXPECT_FALSE(IsWholeCatalogue(File("5.0")));
  const GroupAttempt none = Write({}, 3);
  EXPECT_TRUE(ReadAll(**CatalogueReader::Open(place(), none)).value() == Catalogue());
}

// Names that begin alike are found wherever the sections are cut, and no other section is read.
TEST_F(CatalogueIndexTest, APrefixReadsItsSections) {
  const Catalogue catalogue = MakeCatalogue(20, 3);
  const std::vector<std::string> prefixes = {
      "", "a", "layers.", "layers.00007", "layers.00007.weight", "layers.9", "o", "own", "z"};
  for (const CatalogueCut& cut : {CatalogueCut{}, CatalogueCut{0, 0}, CatalogueCut{0, 2000}}) {
    const GroupAttempt attempt = Write(catalogue, 3, cut);
    for (const std::string& prefix : prefixes) {
      std::vector<CatalogueShard> expected;
      for (const CatalogueShard& shard : catalogue.shards) {
        if (shard.name.starts_with(prefix)) expected.push_back(shard);
      }
      const auto reader = CatalogueReader::Open(place(), attempt).value();
      std::vector<CatalogueShard> found;
      const auto sections = reader->FindByPrefix(prefix);
      VARVE_ASSERT_OK(sections.status());
      for (const auto& section : *sections) {
        EXPECT_FALSE(section.empty());
        found.insert(found.end(), section.begin(), section.end());
      }
      EXPECT_TRUE(found == expected) << prefix;
      if (cut.section_bytes == 0) {  // a section a tensor. The one before may end with the prefix
        EXPECT_LE(reader->num_sections_read(), expected.size() / 3 + 1) << prefix;
      }
    }
  }
}

TEST_F(CatalogueIndexTest, WhatCouldNotBeReadIsNotWritten) {
  const auto write = [&](const Catalogue& catalogue, const CatalogueCut& cut) {
    return WriteIndexedCatalogue(place(), catalogue, MakeParts(3), cut);
  };
  for (const CatalogueCut& cut : {CatalogueCut{}, CatalogueCut{0, 0}}) {
    Catalogue bad = MakeCatalogue(4, 3);
    bad.shards[1].rank = 3;
    EXPECT_THAT(write(bad, cut), FailsWith(StatusCode::kInvalidArgument, "is of rank 3"));
    bad = MakeCatalogue(4, 3);
    bad.shards[1].rank = 0;
    EXPECT_THAT(write(bad, cut), FailsWith(StatusCode::kInvalidArgument, "is out of order"));
    bad = MakeCatalogue(4, 3);
    bad.shards[1].dtype = static_cast<DType>(200);
    EXPECT_THAT(write(bad, cut), FailsWith(StatusCode::kInvalidArgument, "has dtype 200"));
    bad = MakeCatalogue(4, 3);
    bad.shards.back().shape = {-1};
    EXPECT_THAT(write(bad, cut), FailsWith(StatusCode::kInvalidArgument, "tensor own"));
    bad = MakeCatalogue(4, 3);
    bad.shards[0].shape = {1};  // not what its layout says
    EXPECT_THAT(write(bad, cut), FailsWith(StatusCode::kInvalidArgument, "something else"));
    bad = MakeCatalogue(4, 3);
    bad.items[0].rank = 7;
    EXPECT_THAT(write(bad, cut), FailsWith(StatusCode::kInvalidArgument, "is of rank 7"));
  }
  EXPECT_FALSE(fs::exists(File("5")));
  Catalogue bad = MakeCatalogue(4, 3);
  bad.shards[0].dtype = static_cast<DType>(200);
  EXPECT_THAT(CatalogueFile(folder_.path(), kSeed, 5, 0).Write(ViewsOf(bad), bad.items),
              FailsWith(StatusCode::kInvalidArgument, "could not be read again"));
}

TEST_F(CatalogueIndexTest, DamageIsNamed) {
  const GroupAttempt good = Write(MakeCatalogue(4, 3), 3, {0, 0});
  const auto open = [&](const GroupAttempt& attempt) {
    return CatalogueReader::Open(place(), attempt).status();
  };
  VARVE_ASSERT_OK(open(good));
  GroupAttempt bad = good;
  bad.catalogue.lo ^= 1;
  EXPECT_THAT(open(bad), FailsWith(StatusCode::kCorruption, "digest is"));
  bad = good;
  ++bad.crew_totals.logical_bytes;
  EXPECT_THAT(open(bad), FailsWith(StatusCode::kCorruption, "not those that the log says"));
  bad = good;
  bad.crew.members = std::make_shared<const std::vector<MemberId>>(3, 100);
  EXPECT_THAT(open(bad), FailsWith(StatusCode::kCorruption, "not those that the log says"));

  std::fstream(File("5.p1"), std::ios::in | std::ios::out | std::ios::binary).seekp(40).put('x');
  fs::remove(File("5.p2"));
  const auto reader = CatalogueReader::Open(place(), good).value();
  EXPECT_THAT(reader->Find(TensorName(0)).value(), SizeIs(3));
  EXPECT_THAT(reader->Find(TensorName(1)), FailsWith(StatusCode::kCorruption, "5.p1: digest is"));
  EXPECT_THAT(reader->Find(TensorName(2)),
              FailsWith(StatusCode::kCorruption, "5.p2 cannot be read"));
  EXPECT_THAT(reader->Find(TensorName(3)).value(), SizeIs(3));
  EXPECT_EQ(reader->num_sections_read(), 2u);
}

// With digests that fit.
TEST_F(CatalogueIndexTest, WhatAnIndexSaysIsChecked) {
  using flatbuffers::FlatBufferBuilder;
  using flatbuffers::Offset;
  const fb::Digest digest(1, 2);
  // A tensor with this many shards, all at this place.
  const auto tensor = [&](FlatBufferBuilder* b, size_t num_shards, uint32_t place) {
    const auto dtype = static_cast<uint8_t>(DType::kU8);
    const std::vector<fb::CatalogueEntry> entries(num_shards,
                                                  fb::CatalogueEntry(digest, 0, 0, place, dtype));
    return fb::CreateCatalogueEntries(*b, b->CreateString("t"), b->CreateVectorOfStructs(entries));
  };
  {
    FlatBufferBuilder b;
    const std::vector<Offset<fb::CatalogueEntries>> tensors{tensor(&b, 1, 7)};
    const auto section = fb::CreateCatalogueSection(b, 0, b.CreateVector(tensors));
    EXPECT_THAT(OpenIndex(&b, fb::CreateCatalogueIndex(b, 0, 0, section)),
                FailsWith(StatusCode::kCorruption, "names place 7 of 0"));
  }
  {
    FlatBufferBuilder b;  // one tensor, named three times
    const std::vector<Offset<fb::CatalogueEntries>> tensors(3, tensor(&b, 1000, 0));
    const std::vector<Offset<fb::CataloguePlace>> places{fb::CreateCataloguePlace(b)};
    const auto section =
        fb::CreateCatalogueSection(b, b.CreateVector(places), b.CreateVector(tensors));
    EXPECT_THAT(OpenIndex(&b, fb::CreateCatalogueIndex(b, 0, 0, section)),
                FailsWith(StatusCode::kCorruption, "larger than the section"));
  }
  {
    FlatBufferBuilder b;
    const std::vector<Offset<fb::CatalogueEntries>> tensors{tensor(&b, 0, 0)};
    const auto all = fb::CreateCatalogueSection(b, 0, b.CreateVector(tensors));
    EXPECT_THAT(OpenIndex(&b, fb::CreateCatalogueIndex(b, 0, 0, all)),
                FailsWith(StatusCode::kCorruption, "tensor t has no shard"));
  }
  {
    FlatBufferBuilder b;
    EXPECT_THAT(OpenIndex(&b, fb::CreateCatalogueIndex(b)),
                FailsWith(StatusCode::kCorruption, "0 sections as files, and none in the index"));
  }
  {
    FlatBufferBuilder b;
    std::vector<Offset<fb::CatalogueSectionFile>> files;
    for (const char* name : {"b", "a"}) {
      files.push_back(fb::CreateCatalogueSectionFile(b, b.CreateString(name), &digest));
    }
    EXPECT_THAT(OpenIndex(&b, fb::CreateCatalogueIndex(b, 0, 0, 0, b.CreateVector(files))),
                FailsWith(StatusCode::kCorruption, "section 1 is out of order"));
  }
  std::ofstream(File("5")) << "not an index at all";
  const Digest found = ComputeDigest(kSeed, AsBytes(std::string_view("not an index at all")));
  EXPECT_THAT(CatalogueReader::Open(place(), Attempt({}, found)),
              FailsWith(StatusCode::kCorruption, "not a well-formed flatbuffer"));
}

}  // namespace
}  // namespace varve::internal::testing
