// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/dcp_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/formats/pickle_builder.h"
#include "tests/cli/formats/safetensors_builder.h"

namespace varve::internal::formats {
namespace {

using namespace pickles;
using ::testing::HasSubstr;

constexpr char kModule[] = "torch.distributed.checkpoint.metadata";

std::string Object(std::string_view name, const std::string& state,
                   std::string_view module = kModule) {
  return Global(module, name) + ")\x81" + state + "b";
}
std::string Size(const std::string& lengths) { return Call("torch", "Size", lengths); }

std::string Chunk(const std::string& offsets, const std::string& sizes) {
  return Object("ChunkStorageMetadata",
                Dict(Text("offsets"), Size(offsets), Text("sizes"), Size(sizes)));
}
std::string Entry(const std::string& shape, const std::string& chunks,
                  std::string_view dtype = "float32", const std::string& memory_format = "N") {
  const std::string properties = Object(
      "TensorProperties", Tuple(Global("torch", dtype), "N", "\x89", memory_format, "\x89", "N"));
  return Object("TensorStorageMetadata", Dict(Text("properties"), properties, Text("size"),
                                              Size(shape), Text("chunks"), chunks));
}
std::string Index(std::string_view name, const std::string& offset) {
  return Object("MetadataIndex",
                Dict(Text("fqn"), Text(name), Text("offset"), offset, Text("index"), "N"));
}
std::string Place(std::string_view path, int32_t offset, int32_t length) {
  return Object("_StorageInfo",
                Dict(Text("relative_path"), Text(path), Text("offset"), Int(offset), Text("length"),
                     Int(length)),
                "torch.distributed.checkpoint.filesystem");
}
std::string Metadata(const std::string& entries, const std::string& places,
                     const std::string& planner = "N") {
  return Whole(Object("Metadata", Dict(Text("state_dict_metadata"), entries, Text("planner_data"),
                                       planner, Text("storage_data"), places)));
}

const std::string kRows = List(Chunk(Tuple(Int(0), Int(0)), Tuple(Int(2), Int(3))),
                               Chunk(Tuple(Int(2), Int(0)), Tuple(Int(1), Int(3))),
                               Chunk(Tuple(Int(3), Int(0)), Tuple(Int(0), Int(3))));
const std::string kPlaces = Dict(Index("w", Size(Tuple(Int(0), Int(0)))), Place("a", 0, 24),
                                 Index("w", Size(Tuple(Int(2), Int(0)))), Place("b", 7, 12),
                                 Index("step", "N"), Place("a", 24, 5));
const std::string kEntries = Dict(Text("w"), Entry(Tuple(Int(3), Int(3)), kRows), Text("step"),
                                  Object("BytesStorageMetadata", Dict()));

std::string ErrorOf(const std::string& pickle) {
  const auto metadata = ParseDcpMetadata(AsBytes(pickle));
  EXPECT_FALSE(metadata.ok());
  EXPECT_EQ(metadata.status().code(), StatusCode::kInvalidArgument);
  return metadata.status().message();
}

TEST(DcpMetadataTest, ReadsChunksAndValues) {
  const auto metadata = ParseDcpMetadata(
      AsBytes(Metadata(kEntries, kPlaces, Dict(Text("w"), Tuple(Text("model"), Text("w"))))));
  ASSERT_TRUE(metadata.ok()) << metadata.status().ToString();
  ASSERT_EQ(metadata->tensors.size(), 1u);
  const DcpTensor& tensor = metadata->tensors[0];
  EXPECT_EQ(tensor.name, "w");
  EXPECT_EQ(tensor.type->name, "float32");
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{3, 3}));
  ASSERT_EQ(tensor.chunks.size(), 2u);  // the empty one has no place
  EXPECT_EQ(tensor.chunks[1].file, "b");
  EXPECT_EQ(tensor.chunks[1].offset, 7u);
  EXPECT_EQ(tensor.chunks[1].sizes, (std::vector<int64_t>{1, 3}));
  ASSERT_EQ(metadata->values.size(), 1u);
  EXPECT_EQ(metadata->values[0].name, "step");
  EXPECT_EQ(metadata->values[0].offset, 24u);
  EXPECT_EQ(metadata->planner_json, R"({"dict":[["w",{"tuple":["model","w"]}]]})");
}

TEST(DcpMetadataTest, RefusesEachTruncation) {
  const std::string whole = Metadata(kEntries, kPlaces);
  ASSERT_TRUE(ParseDcpMetadata(AsBytes(whole)).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ParseDcpMetadata(AsBytes(whole.substr(0, size))).ok()) << size;
  }
}

TEST(DcpMetadataTest, RefusesWhatDoesNotFit) {
  const auto with_chunk = [](const std::string& chunk) {
    return ErrorOf(Metadata(Dict(Text("w"), Entry(Tuple(Int(3)), List(chunk))), kPlaces));
  };
  EXPECT_THAT(with_chunk(Chunk(Tuple(Int(2)), Tuple(Int(2)))), HasSubstr("\"w\": at byte "));
  EXPECT_THAT(with_chunk(Chunk(Tuple(Int(2)), Tuple(Int(2)))),
              HasSubstr("a chunk has 2 indices from 2 on axis 0, whose length is 3"));
  EXPECT_THAT(with_chunk(Chunk(Tuple(Int(-1)), Tuple(Int(2)))), HasSubstr("no negative number"));
  EXPECT_THAT(with_chunk(Chunk(Tuple(), Tuple())), HasSubstr("another number of axes"));
  EXPECT_THAT(with_chunk(Chunk(Tuple(Int(1)), Tuple(Int(2)))), HasSubstr("no place in a file"));
  EXPECT_THAT(with_chunk("N"), HasSubstr("there is None, expected a ChunkStorageMetadata of DCP"));
  EXPECT_THAT(ErrorOf(Metadata(kEntries, Dict())), HasSubstr("no place in a file"));
  EXPECT_THAT(ErrorOf(Metadata(Dict(Text("w"), Entry(Tuple(), List(), "Size")), kPlaces)),
              HasSubstr("no dtype that varve has"));
  EXPECT_THAT(ErrorOf(Metadata(Dict(Text("w"), "N"), kPlaces)),
              HasSubstr("expected a TensorStorageMetadata"));
  EXPECT_THAT(ErrorOf(Whole("N")), HasSubstr("expected a Metadata of DCP"));
  EXPECT_THAT(ErrorOf(Whole(Object("Metadata", Dict()))), HasSubstr("has no field storage_data"));
}

TEST(DcpMetadataTest, RefusesPlacesOutsideOfTheFolder) {
  const auto with_place = [](const std::string& place) {
    return ErrorOf(Metadata(kEntries, Dict(Index("w", "N"), place)));
  };
  for (const char* path : {"../a", "/etc/passwd", "a/b", "", "..", "."}) {
    EXPECT_THAT(with_place(Place(path, 0, 1)), HasSubstr("expected a file of the folder")) << path;
  }
  EXPECT_THAT(with_place(Place("a", -1, 1)), HasSubstr("offset is -1"));
  EXPECT_THAT(ErrorOf(Metadata(kEntries, Dict(Index("w", "N"), Place("a", 0, 1), Index("w", "N"),
                                              Place("a", 0, 1)))),
              HasSubstr("\"w\" has two places"));
  const std::string transformed = Object(
      "_StorageInfo",
      Dict(Text("relative_path"), Text("a"), Text("transform_descriptors"), List(Text("zstd"))),
      "torch.distributed.checkpoint.filesystem");
  EXPECT_THAT(with_place(transformed), HasSubstr("save without _extensions"));
}

// As Python 3.11.0 to 3.11.3 write it.
TEST(DcpMetadataTest, AMemberOfAnEnumMayBeAGetattr) {
  const auto with = [](const std::string& arguments) {
    const std::string got = Global("builtins", "getattr") + arguments + "R";
    return Metadata(Dict(Text("w"), Entry(Tuple(Int(3), Int(3)), kRows, "float32", got),
                         Text("step"), Object("BytesStorageMetadata", Dict())),
                    kPlaces);
  };
  const std::string member = Text("TORCH_CONTIGUOUS_FORMAT");
  const auto metadata =
      ParseDcpMetadata(AsBytes(with(Tuple(Global(kModule, "_MEM_FORMAT_ENCODING"), member))));
  ASSERT_TRUE(metadata.ok()) << metadata.status().ToString();
  EXPECT_EQ(metadata->tensors.size(), 1u);
  EXPECT_THAT(ErrorOf(with(Tuple(Global(kModule, "Metadata"), member))),
              HasSubstr("uses builtins.getattr"));
  EXPECT_THAT(ErrorOf(with(Tuple(Text("x"), Text("upper")))), HasSubstr("uses builtins.getattr"));
}

TEST(DcpMetadataTest, RefusesOtherClasses) {
  EXPECT_THAT(ErrorOf(Metadata(kEntries, kPlaces, Call("os", "system", Text("x")))),
              HasSubstr("the pickle uses os.system"));
  EXPECT_THAT(ErrorOf(Metadata(kEntries, kPlaces, Object("Metadata", Dict()))),
              HasSubstr("planner_data: at byte "));
}

}  // namespace
}  // namespace varve::internal::formats
