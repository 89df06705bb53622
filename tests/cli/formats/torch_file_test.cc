// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <string>

#include "cli/formats/byte_reader.h"
#include "cli/formats/tensor_bytes.h"
#include "tests/cli/formats/file_folder.h"
#include "tests/cli/formats/pickle_builder.h"
#include "tests/cli/formats/safetensors_builder.h"

namespace varve::internal::formats {
namespace {

using namespace pickles;
using ::testing::HasSubstr;

Result<TorchTree> TreeOf(const std::string& operations) {
  static std::deque<std::string> texts;
  texts.push_back(Whole(operations));
  const auto pickle = ParsePickle(AsBytes(texts.back()), IsTorchGlobal);
  if (!pickle.ok()) return pickle.status();
  return ReadTorchTree(*pickle, pickle->root);
}

std::string JsonOf(const std::string& operations) {
  const auto tree = TreeOf(operations);
  EXPECT_TRUE(tree.ok()) << tree.status().ToString();
  return tree.ok() ? tree->json : "";
}

std::string TreeError(const std::string& operations) {
  const auto tree = TreeOf(operations);
  EXPECT_FALSE(tree.ok());
  return tree.status().message();
}

std::string OpenError(const std::string& content) {
  const FileFolder folder;
  const auto file = TorchFile::Open(folder.Write("x.pt", content));
  EXPECT_FALSE(file.ok());
  EXPECT_THAT(file.status().message(), HasSubstr("x.pt: "));
  return file.status().message();
}

TEST(TorchTreeTest, WritesValuesAsThePythonPackageReadsThem) {
  EXPECT_EQ(JsonOf(Dict(Text("a"), Int(3), Int(7), Text("x\n\"é"), "\x88", "N")),
            R"({"dict":[["a",3],[7,"x\u000a\"é"],[true,null]]})");
  EXPECT_EQ(JsonOf(List(Float(1), Float(0.1), Float(1e300), Float(-INFINITY), "\x89")),
            R"([1.0,0.1,1e+300,{"float":"-inf"},false])");
  EXPECT_EQ(JsonOf(Tuple(Tuple(), List(), Dict())), R"({"tuple":[{"tuple":[]},[],{"dict":[]}]})");
  EXPECT_EQ(JsonOf(Call("torch", "Size", Tuple(Int(2), Int(3)))), R"({"size":[2,3]})");
  EXPECT_EQ(JsonOf(Call("torch", "device", Text("cuda"), Int(1))), R"({"device":"cuda:1"})");
  EXPECT_EQ(JsonOf(Global("torch", "bfloat16")), R"({"dtype":"bfloat16"})");
  EXPECT_EQ(JsonOf(Call("__builtin__", "set", List(Int(1)))), R"({"set":[1]})");
  EXPECT_EQ(JsonOf(Call("__builtin__", "complex", Float(1), Float(-2))),
            R"({"complex":["1.0","-2.0"]})");
  EXPECT_EQ(JsonOf(Call("_codecs", "encode", Text("a\xc3\xbf"), Text("latin1"))),
            R"({"bytes":"Yf8="})");
  EXPECT_EQ(JsonOf(Call("__builtin__", "bytearray",
                        Call("_codecs", "encode", Text("xyz"), Text("latin1")))),
            R"({"bytes":"eHl6"})");
  EXPECT_EQ(JsonOf(Call("collections", "Counter", Dict(Int(30), Int(1)))),
            R"({"counter":[[30,1]]})");
  EXPECT_EQ(JsonOf(Call("collections", "OrderedDict") + "(" + Text("k") + "Nu" +
                   Dict(Text("_metadata"), Call("collections", "OrderedDict")) + "b"),
            R"({"ordered":[["k",null]],"metadata":{"ordered":[]}})");
  EXPECT_EQ(JsonOf(Text("\xed\xa0\x80")), R"("\ud800")");
}

TEST(TorchTreeTest, NamesTensorsByTheirPath) {
  const auto tree = TreeOf(Dict(Text("a"), Dict(Text("b"), List(Vector("0", 3), Vector("1", 3))),
                                Text("a.b"), Dict(Int(1), Vector("2", 3)), Text("lr"), Float(0.5)));
  ASSERT_TRUE(tree.ok()) << tree.status().ToString();
  ASSERT_EQ(tree->tensors.size(), 3u);
  EXPECT_EQ(tree->tensors[0].name, "a.b.0");
  EXPECT_EQ(tree->tensors[1].name, "a.b.1");
  EXPECT_EQ(tree->tensors[2].name, "a.b.1~1");
  ASSERT_EQ(tree->plain.size(), 1u);
  EXPECT_EQ(tree->plain[0].path, "lr");
}

TEST(TorchTreeTest, NotesSharedMemoryAndStrides) {
  const std::string storage = Storage("FloatStorage", "0", 12, "cuda:0");
  const auto tree = TreeOf(Dict(
      Text("all"), Tensor(storage, 0, Tuple(Int(3), Int(4)), Tuple(Int(4), Int(1))), Text("row"),
      Tensor(storage, 4, Tuple(Int(4)), Tuple(Int(1))), Text("same"),
      Tensor(storage, 4, Tuple(Int(4)), Tuple(Int(1))), Text("turned"),
      Tensor(Storage("HalfStorage", "1", 6), 0, Tuple(Int(2), Int(3)), Tuple(Int(1), Int(2)))));
  ASSERT_TRUE(tree.ok()) << tree.status().ToString();
  EXPECT_EQ(tree->json,
            R"({"dict":[["all",{"tensor":"all","strides":[4,1],"memory":0,"offset":0,)"
            R"("device":"cuda:0"}],)"
            R"(["row",{"tensor":"row","strides":[1],"memory":0,"offset":16,"device":"cuda:0"}],)"
            R"(["same",{"tensor":"same","strides":[1],"memory":0,"offset":16,"device":"cuda:0"}],)"
            R"(["turned",{"tensor":"turned","strides":[1,2]}]]})");
  EXPECT_EQ(tree->tensors[2].alias_of, "row");
  EXPECT_EQ(tree->tensors[1].alias_of, "");
}

TEST(TorchTreeTest, RefusesTensorsThatReachOutOfTheirStorage) {
  const auto with = [](const std::string& storage, int32_t offset, const std::string& shape,
                       const std::string& strides) {
    return TreeError(Dict(Text("w"), Tensor(storage, offset, shape, strides)));
  };
  const std::string four = Storage("FloatStorage", "0", 4);
  const std::string big = "\x8a\x08" + Little(INT64_MAX, 8);
  EXPECT_THAT(with(four, 0, Tuple(Int(5)), Tuple(Int(1))), HasSubstr("\"w\": at byte "));
  EXPECT_THAT(with(four, 0, Tuple(Int(5)), Tuple(Int(1))),
              HasSubstr("needs 20 bytes from byte 0 on of storage \"0\", which has 16"));
  EXPECT_THAT(with(four, 3, Tuple(Int(2)), Tuple(Int(1))), HasSubstr("from byte 12 on"));
  EXPECT_THAT(with(four, -1, Tuple(Int(2)), Tuple(Int(1))), HasSubstr("-1 elements"));
  EXPECT_THAT(with(four, 0, Tuple(Int(2)), Tuple(Int(-1))), HasSubstr("no negative number"));
  EXPECT_THAT(with(four, 0, Tuple(Int(-2)), Tuple(Int(1))), HasSubstr("no negative number"));
  EXPECT_THAT(with(four, 0, Tuple(Int(2)), Tuple()), HasSubstr("has 0 strides, expected 1"));
  EXPECT_THAT(with(four, 0, Tuple(Int(3)), Tuple(big)), HasSubstr("too large"));
  EXPECT_THAT(with(four, 0, Tuple(big, big), Tuple(Int(0), Int(0))),
              HasSubstr("has more than 2^63 - 1 elements"));
  EXPECT_THAT(with(four, 0, Tuple(Text("x")), Tuple(Int(1))), HasSubstr("is a string, expected"));
  EXPECT_THAT(with("N", 0, Tuple(), Tuple()), HasSubstr("a tensor has None, expected a storage"));
  EXPECT_THAT(with(Tuple(Text("module"), "N", "N", "N", "N") + "Q", 0, Tuple(), Tuple()),
              HasSubstr("is a \"module\", expected a \"storage\""));
  EXPECT_THAT(with(Tuple(Text("storage")) + "Q", 0, Tuple(), Tuple()), HasSubstr("has 1 parts"));
}

TEST(TorchTreeTest, RefusesValuesThatAreNone) {
  EXPECT_THAT(TreeError(Dict(Text("a"), Global("torch", "Size"))),
              HasSubstr("\"a\" is torch.Size, which is no value"));
  EXPECT_THAT(TreeError(Dict(Text("a"), Storage("FloatStorage", "0", 4))),
              HasSubstr("\"a\" is a storage, expected a tensor"));
  EXPECT_THAT(TreeError(Dict(Text("a"), Call("torch", "FloatStorage"))),
              HasSubstr("\"a\" is a torch.FloatStorage, expected a tensor"));
  EXPECT_THAT(TreeError(Dict(Tuple(), "N")), HasSubstr("has a tuple as a key"));
  EXPECT_THAT(TreeError(Dict(Vector("0", 3), "N")), HasSubstr("has an object as a key"));
  EXPECT_THAT(TreeError(Text("\xff")), HasSubstr("a string that is no UTF-8"));
  EXPECT_THAT(TreeError(Call("_codecs", "encode", Text("a"), Text("rot13"))),
              HasSubstr("the encoding \"rot13\", expected latin1"));
  EXPECT_THAT(TreeError(Dict(Text(""), Vector("0", 3))), HasSubstr("cannot be a tensor"));
  EXPECT_THAT(TreeError(Dict(Text(std::string(1025, 'x')), Vector("0", 3))),
              HasSubstr("cannot be a tensor"));
  EXPECT_THAT(TreeError(Call("torch._utils", "_rebuild_parameter", Vector("0", 3))),
              HasSubstr("has 1 arguments, expected 3"));
  const std::string inner = Call("torch._utils", "_rebuild_parameter", Vector("0", 3), "\x88", "N");
  EXPECT_THAT(TreeError(Call("torch._utils", "_rebuild_parameter", inner, "\x88", "N")),
              HasSubstr("there is no tensor here"));
}

TEST(TorchTreeTest, EndsOnWhatContainsItselfOrGrowsWithoutEnd) {
  EXPECT_THAT(TreeError("]q\x01h\x01"
                        "a"),
              HasSubstr("or contains itself"));
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += ']';
  for (int i = 1; i < 200; ++i) deep += 'a';
  EXPECT_THAT(TreeError(deep), HasSubstr("lies in more than 100 containers"));
  // Each list holds the one before twice: 2^60 values, written out.
  std::string bomb = "]";
  for (int i = 1; i < 60; ++i) {
    bomb += "q" + Little(static_cast<uint64_t>(i), 1) + "0](" + "h" +
            Little(static_cast<uint64_t>(i), 1) + "h" + Little(static_cast<uint64_t>(i), 1) + "e";
  }
  EXPECT_THAT(TreeError(bomb), HasSubstr("have more than 67108864 bytes"));
  std::string texts = Text(std::string(1 << 20, 'x')) +
                      "q\x01"
                      "0](";
  for (int i = 0; i < 1000; ++i) texts += "h\x01";
  EXPECT_THAT(TreeError(texts + "e"), HasSubstr("have more than 67108864 bytes"));
}

TEST(TorchFileTest, ReadsAFileAndItsStorages) {
  const FileFolder folder;
  const std::string pickle = Whole(Dict(Text("w"), Vector("0", 3), Text("v"), Vector("k", 1)));
  const auto file = TorchFile::Open(
      folder.Write("x.pt", TorchText(pickle, {{"0", "abcdefghijkl"}, {"k", "1234"}})));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto& tensors = (*file)->tree().tensors;
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ((*file)->StorageOf(tensors[0]).size, 12u);
  EXPECT_EQ((*file)->StorageOf(tensors[1]).size, 4u);
  EXPECT_FALSE((*file)->tree().has_plain);
}

TEST(TorchFileTest, RefusesEachTruncation) {
  const FileFolder folder;
  const std::string whole =
      TorchText(Whole(Dict(Text("w"), Vector("0", 3))), {{"0", "abcdefghijkl"}});
  ASSERT_TRUE(TorchFile::Open(folder.Write("x.pt", whole)).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto file = TorchFile::Open(folder.Write("x.pt", whole.substr(0, size)));
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << size;
  }
}

TEST(TorchFileTest, SaysThatAFileWasCutAfterItWasOpened) {
  const FileFolder folder;
  const std::string content(100'000, 'x');
  const auto path = folder.Write(
      "x.pt", TorchText(Whole(Dict(Text("w"), Vector("0", 25'000))), {{"0", content}}));
  const auto file = TorchFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const ZipEntry& entry = (*file)->StorageOf((*file)->tree().tensors[0]);
  CheckedPart part(std::make_shared<SmallReads>((*file)->file()), entry.data, entry.crc, "x.pt");
  std::filesystem::resize_file(path, 50'000);
  std::vector<std::byte> out(content.size());
  EXPECT_EQ(part.Read(0, out).code(), StatusCode::kIOError);
  EXPECT_THAT(part.Finish().message(), HasSubstr("at byte 50000: the file ends"));
}

TEST(TorchFileTest, NamesFilesThatAreNone) {
  const std::string pickle = Whole(Dict(Text("w"), Vector("0", 3)));
  EXPECT_THAT(OpenError(std::string("\x80\x02\x8a\x0a", 4)), HasSubstr("before PyTorch 1.6"));
  EXPECT_THAT(OpenError("hello"), HasSubstr("no file of torch.save"));
  EXPECT_THAT(OpenError(""), HasSubstr("no file of torch.save"));
  EXPECT_THAT(OpenError(TorchText(pickle, {{"0", "abcdefghijkl"}}, "big")),
              HasSubstr("the byte order is \"big\""));
  EXPECT_THAT(OpenError(TorchText(pickle, {})), HasSubstr("lacks its storage data/0"));
  EXPECT_THAT(OpenError(TorchText(pickle, {{"0", "abcd"}})), HasSubstr("has 4 bytes, expected 12"));
  EXPECT_THAT(OpenError(ZipBuilder().Add({.name = "a.npy"}).Build()),
              HasSubstr("no entry data.pkl"));
  EXPECT_THAT(OpenError(ZipBuilder()
                            .Add({.name = "x/data.pkl", .contents = pickle})
                            .Add({.name = "x/constants.pkl"})
                            .Build()),
              HasSubstr("a TorchScript program"));
  EXPECT_THAT(OpenError(ZipBuilder()
                            .Add({.name = "x/data.pkl", .contents = pickle})
                            .Add({.name = "y/data/0"})
                            .Build()),
              HasSubstr("outside of the folder x/"));
}

TEST(TorchFileTest, RefusesAFewBytesThatAreSaidToBeMany) {
  const std::string huge = "\x8a\x05" + Little(uint64_t{1} << 36, 5);
  const std::string pickle =
      Whole(Tensor(Storage("FloatStorage", "0", 1), 0, Tuple(huge), Tuple(Int(0))));
  EXPECT_THAT(OpenError(TorchText(pickle, {{"0", "abcd"}})),
              HasSubstr("its tensors need 274877906944 bytes"));
}

TEST(TorchTypesTest, KnowsItsNames) {
  EXPECT_TRUE(IsTorchGlobal("torch.float8_e4m3fn"));
  EXPECT_TRUE(IsTorchGlobal("torch.BFloat16Storage"));
  EXPECT_TRUE(IsTorchGlobal("_codecs.encode"));
  EXPECT_TRUE(IsTorchGlobal("torch._utils._rebuild_tensor_v3"));
  for (const char* name : {"", "torch", "torch.", "torch.load", "os.system", "float32"}) {
    EXPECT_FALSE(IsTorchGlobal(name)) << name;
  }
  EXPECT_EQ(FindTorchType("complex128")->ShapeOf({3}).value(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(FindTorchType("complex32")->ShapeOf({}).value(), (std::vector<int64_t>{2}));
  EXPECT_EQ(FindTorchType("complex64")->ShapeOf({3}).value(), (std::vector<int64_t>{3}));
  EXPECT_EQ(FindTorchType("float4_e2m1fn_x2")->ShapeOf({3, 4}).value(),
            (std::vector<int64_t>{3, 8}));
  EXPECT_FALSE(FindTorchType("float4_e2m1fn_x2")->ShapeOf({}).ok());
}

}  // namespace
}  // namespace varve::internal::formats
