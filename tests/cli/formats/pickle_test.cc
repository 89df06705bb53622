// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "cli/formats/torch_types.h"
#include "tests/cli/formats/pickle_builder.h"
#include "tests/cli/formats/safetensors_builder.h"

namespace varve::internal::formats {
namespace {

using namespace pickles;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& pickle) {
  const auto parsed = ParsePickle(AsBytes(pickle), IsTorchGlobal);
  EXPECT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  return parsed.status().message();
}

// The only value of a pickle. It lives as long as the program.
const PickleValue& ValueOf(const std::string& operations) {
  static std::deque<std::string> texts;
  static std::deque<Pickle> pickles;
  texts.push_back(Whole(operations));
  auto parsed = ParsePickle(AsBytes(texts.back()), IsTorchGlobal);
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  pickles.push_back(*std::move(parsed));
  return pickles.back()[pickles.back().root];
}

TEST(PickleTest, ReadsNumbersAsPythonWritesThem) {
  EXPECT_EQ(ValueOf("K\xff").integer, 255);
  EXPECT_EQ(ValueOf("M\xff\xff").integer, 65535);
  EXPECT_EQ(ValueOf("J\xff\xff\xff\xff").integer, -1);
  EXPECT_EQ(ValueOf(std::string("\x8a\x00", 2)).integer, 0);
  EXPECT_EQ(ValueOf("\x8a\x01\x80").integer, -128);
  EXPECT_EQ(ValueOf(std::string("\x8a\x02\x80\x00", 4)).integer, 128);
  EXPECT_EQ(ValueOf("\x8a\x08" + Little(uint64_t{1} << 63, 8)).integer, INT64_MIN);
  EXPECT_EQ(ValueOf(Float(-2.5)).number, -2.5);
  EXPECT_EQ(ValueOf("\x88").integer, 1);
  EXPECT_EQ(ValueOf("N").kind, PickleKind::kNone);
}

TEST(PickleTest, KeepsIntegersOfMoreThan64BitsInDigits) {
  EXPECT_EQ(ValueOf("\x8a\x09" + Little(0, 8) + "\x01").text, "18446744073709551616");
  EXPECT_EQ(ValueOf("\x8a\x09" + Little(0, 8) + "\xff").text, "-18446744073709551616");
  EXPECT_EQ(ValueOf("\x8a\x09" + Little(uint64_t{1} << 63, 8) + std::string(1, '\0')).text,
            "9223372036854775808");
  EXPECT_THAT(ErrorOf(Whole("\x8b" + Little(256, 4) + std::string(256, 'x'))),
              HasSubstr("at byte 2: an integer has 256 bytes, expected at most 255"));
}

TEST(PickleTest, ReadsContainersAndWhatTheyShare) {
  const std::string text = Whole(Dict(Text("a"), "]q\x01", Text("b"), "h\x01" + Int(7) + "a"));
  const auto pickle = ParsePickle(AsBytes(text), IsTorchGlobal);
  ASSERT_TRUE(pickle.ok()) << pickle.status().ToString();
  const PickleValue& root = (*pickle)[pickle->root];
  ASSERT_EQ(root.kind, PickleKind::kDict);
  ASSERT_EQ(root.items.size(), 4u);
  EXPECT_EQ(root.items[1], root.items[3]);
  EXPECT_EQ((*pickle)[root.items[1]].items.size(), 1u);
}

TEST(PickleTest, KeepsCallsAsValues) {
  const std::string text =
      Whole(Call("collections", "OrderedDict") + "(" + Text("k") + "Nu" + Dict() + "b");
  const auto pickle = ParsePickle(AsBytes(text), IsTorchGlobal);
  ASSERT_TRUE(pickle.ok()) << pickle.status().ToString();
  const PickleValue& root = (*pickle)[pickle->root];
  EXPECT_EQ(root.kind, PickleKind::kCall);
  EXPECT_EQ((*pickle)[root.function].text, "collections.OrderedDict");
  EXPECT_EQ(root.items.size(), 2u);
  EXPECT_NE(root.state, kNoPickleValue);
}

TEST(PickleTest, RefusesEveryOtherNameWithItsPlace) {
  const std::pair<const char*, const char*> names[] = {
      {"os", "system"},
      {"posix", "system"},
      {"nt", "system"},
      {"subprocess", "Popen"},
      {"builtins", "eval"},
      {"__builtin__", "eval"},
      {"builtins", "exec"},
      {"builtins", "getattr"},
      {"builtins", "__import__"},
      {"builtins", "open"},
      {"builtins", "dict"},
      {"torch", "load"},
      {"torch.hub", "load"},
      {"torch._utils", "_rebuild_qtensor"},
      {"torch", "QInt8Storage"},
      {"torch.jit", "load"},
      {"torch", "float32.__class__"},
      {"torch.serialization", "load"},
      {"numpy", "load"},
      {"pickle", "loads"},
      {"runpy", "run_path"},
      {"ctypes", "CDLL"},
      {"collections", "OrderedDict.__init__"},
      {"_codecs", "decode"},
  };
  for (const auto& [module, name] : names) {
    std::string full = std::string(module) + "." + name;
    if (full.starts_with("__builtin__")) full = "builtins.eval";
    EXPECT_THAT(ErrorOf(Whole("K\x01"
                              "0" +
                              Global(module, name))),
                HasSubstr("at byte 5: the pickle uses " + full + ", which is neither"));
    const std::string by_stack = "\x8c" + Little(strlen(module), 1) + module + "\x8c" +
                                 Little(strlen(name), 1) + name + "\x93";
    EXPECT_THAT(ErrorOf(Whole(by_stack)), HasSubstr("the pickle uses " + full));
  }
}

TEST(PickleTest, RefusesOperationsThatFilesOfTensorsDoNotHave) {
  for (const char* operation :
       {"i",    "o",    "\x82\x01", "\x83", "\x84", "P", "I1\n", "F1\n", "S'a'\n", "V\n", "L1\n",
        "g0\n", "p0\n", "d",        "l",    "2",    "1", "\x92", "\x97", "\x98",   "\xff"}) {
    EXPECT_THAT(ErrorOf(Whole(operation)), HasSubstr("at byte 2: the operation 0x")) << operation;
  }
  for (const char* protocol : {"\x80\x06", "\x80\x01", "\x80\xff"}) {
    EXPECT_THAT(ErrorOf(std::string(protocol) + "N."), HasSubstr("has protocol"));
  }
}

TEST(PickleTest, RefusesWhatCannotBe) {
  EXPECT_THAT(ErrorOf(Whole("")), HasSubstr("takes more values than there are"));
  EXPECT_THAT(ErrorOf(Whole("NN")), HasSubstr("ends with values left over"));
  EXPECT_THAT(ErrorOf(Whole("(N")), HasSubstr("ends with values left over"));
  EXPECT_THAT(ErrorOf(Whole("N") + "N"), HasSubstr("goes on after its end"));
  EXPECT_THAT(ErrorOf(Whole("t")), HasSubstr("has no mark before it"));
  EXPECT_THAT(ErrorOf(Whole("NNa")), HasSubstr("items of a list are put into None"));
  EXPECT_THAT(ErrorOf(Whole("}(Nu")), HasSubstr("a key has no value"));
  EXPECT_THAT(ErrorOf(Whole("N)R")), HasSubstr("what is called is None"));
  EXPECT_THAT(ErrorOf(Whole(Global("torch", "Size") + "NR")), HasSubstr("are no tuple"));
  EXPECT_THAT(ErrorOf(Whole("]Nb")), HasSubstr("a state is set on a list"));
  EXPECT_THAT(ErrorOf(Whole("h\x07")), HasSubstr("there is no memo 7"));
  EXPECT_THAT(ErrorOf(Whole("NN\x93")), HasSubstr("not named by strings"));
  EXPECT_THAT(ErrorOf(Whole("\x95" + Little(1000, 8))),
              HasSubstr("a frame of the pickle has 1000"));
}

TEST(PickleTest, ChecksLengthsBeforeItBelievesThem) {
  EXPECT_THAT(ErrorOf(Whole("X" + Little(0xffffffff, 4))), HasSubstr("needs 4294967295 bytes"));
  EXPECT_THAT(ErrorOf(Whole("\x8d" + Little(~uint64_t{0}, 8))), HasSubstr("bytes; the file has"));
  EXPECT_THAT(ErrorOf(Whole("\x8b" + Little(0x7fffffff, 4))), HasSubstr("expected at most 255"));
  EXPECT_THAT(ErrorOf(Whole("c" + std::string(5000, 'x'))), HasSubstr("cut short or too long"));
}

TEST(PickleTest, RefusesEachTruncation) {
  const std::string whole = Whole(Dict(Text("w"), Vector("0", 3), Text("lr"), Float(0.1)));
  ASSERT_TRUE(ParsePickle(AsBytes(whole), IsTorchGlobal).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ParsePickle(AsBytes(whole.substr(0, size)), IsTorchGlobal).ok()) << size;
  }
}

TEST(PickleTest, SurvivesEachChangedByte) {
  const std::string whole = Whole(Dict(Text("w"), Vector("0", 3), Text("lr"), Float(0.1)));
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = whole;
      changed[i] = static_cast<char>(value);
      ParsePickle(AsBytes(changed), IsTorchGlobal).status().IgnoreError();
    }
  }
}

TEST(PickleTest, TakesDeepNestingWithoutRecursion) {
  std::string operations;
  constexpr int kDepth = 1'000'000;
  for (int i = 0; i < kDepth; ++i) operations += ']';
  for (int i = 1; i < kDepth; ++i) operations += 'a';
  EXPECT_TRUE(ParsePickle(AsBytes(Whole(operations)), IsTorchGlobal).ok());
}

TEST(PickleTest, RefusesMoreValuesThanAnyFileHas) {
  const std::string operations((kMaxPickleValues + 1), ')');
  EXPECT_THAT(ErrorOf(Whole(operations)), HasSubstr("the pickle has more than 8388608 values"));
}

}  // namespace
}  // namespace varve::internal::formats
