// SPDX-License-Identifier: Apache-2.0
//
// The rANS coder at every level of the processor: all levels write the same bytes and read each
// other's, and hostile bytes do no harm (run it under the `dev` preset).
#include "codec/entropy/rans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "codec/entropy/rans_kernel.h"
#include "tests/codec/levels.h"

namespace varve::internal {

namespace {

using U8 = std::vector<uint8_t>;
using Body = std::vector<std::byte>;

// Copies to memory of the exact size, so that the address sanitizer sees any byte past the end.
template <typename T>
std::unique_ptr<T[]> Exact(const std::vector<T>& values) {
  std::unique_ptr<T[]> copy(new T[values.size()]);
  std::copy(values.begin(), values.end(), copy.get());
  return copy;
}

Status Decode(CpuLevel level, const Body& body, U8* out) {
  const std::unique_ptr<std::byte[]> from = Exact(body);
  const std::unique_ptr<uint8_t[]> to = Exact(*out);
  const Status status =
      RansDecoder(level).Decode({from.get(), body.size()}, {to.get(), out->size()});
  std::copy_n(to.get(), out->size(), out->begin());
  return status;
}

// Encodes with the given code, or with the one that the encoder makes.
Body EncodeAt(CpuLevel level, const U8& in, const RansCode* code, size_t num_groups = 4) {
  Body body(3 * in.size() + kRansFixedBytes + kMaxRansSymbols);
  RansEncoder encoder(level);
  const size_t bytes =
      code == nullptr ? encoder.Encode(in, body) : encoder.EncodeWith(*code, num_groups, in, body);
  EXPECT_GT(bytes, 0u);
  body.resize(bytes);
  return body;
}

// Encodes and decodes at all levels, and returns the body.
Body EncodeAndCheck(const U8& in, const RansCode* code = nullptr, size_t num_groups = 4) {
  const Body body = EncodeAt(CpuLevel::kPortable, in, code, num_groups);
  for (const CpuLevel level : Levels()) {
    const auto number = static_cast<int>(level);
    EXPECT_TRUE(EncodeAt(level, in, code, num_groups) == body) << "level " << number << " differs";
    U8 out(in.size());
    const Status status = Decode(level, body, &out);
    EXPECT_TRUE(status.ok()) << "level " << number << ": " << status.ToString();
    EXPECT_TRUE(out == in) << "level " << number << " decodes to other bytes";
  }
  return body;
}

// Bytes whose value shift + k has about the probability (1 - p) * p^k, capped.
U8 Geometric(size_t n, double p, unsigned shift, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::geometric_distribution<int> distribution(1.0 - p);
  U8 bytes(n);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(static_cast<unsigned>(std::min(distribution(random), 255)) + shift);
  }
  return bytes;
}

double Entropy(const U8& bytes) {
  double bits = 0;
  for (const uint32_t count : CountBytes(bytes)) {
    if (count > 0) bits -= count * std::log2(count / static_cast<double>(bytes.size()));
  }
  return bits / static_cast<double>(bytes.size());
}

TEST(RansTest, AllLevelsAgreeAtAllSkewsAndLengths) {
  for (const double p : {0.0, 0.01, 0.3, 0.5, 0.8, 0.95, 0.99, 0.999}) {
    for (const unsigned shift : {0u, 100u, 250u}) {
      for (const size_t n :
           {1, 2, 63, 64, 65, 255, 256, 257, 511, 512, 513, 2304, 4097, 24575, 24576, 70000}) {
        SCOPED_TRACE("p " + std::to_string(p) + ", shift " + std::to_string(shift) + ", " +
                     std::to_string(n) + " bytes");
        EncodeAndCheck(Geometric(n, p, shift, n));
      }
    }
  }
}

TEST(RansTest, ComesNearTheEntropy) {
  for (const double p : {0.02, 0.1, 0.3, 0.5, 0.8, 0.9, 0.97}) {
    const U8 in = Geometric(262144, p, 100, 1);
    const Body body = EncodeAndCheck(in);
    const double bits = 8.0 * static_cast<double>(body.size() - kRansFixedBytes) / 262144;
    EXPECT_LT(bits, Entropy(in) + 0.06) << p;
  }
}

TEST(RansTest, AllAlphabetSizesAndLowBits) {
  std::mt19937_64 random(1);
  for (size_t symbols = 1; symbols <= kMaxRansSymbols; ++symbols) {
    RansCode code{.low_bits = static_cast<unsigned>(symbols % 5),
                  .first = static_cast<uint8_t>(random()),
                  .num_symbols = symbols};
    size_t left = 255;
    for (size_t i = 0; i < symbols; ++i) {
      const size_t share = i == 0 ? 1 + random() % 100 : random() % (512 / symbols + 1);
      code.frequency[i] = static_cast<uint8_t>(std::min(left, share));
      left -= code.frequency[i];
    }
    code.frequency[symbols] = static_cast<uint8_t>(left + 1);
    U8 in(3000);
    for (uint8_t& byte : in) {
      byte = static_cast<uint8_t>((code.first + random() % (symbols + 2)) << code.low_bits |
                                  random() % 16);
    }
    SCOPED_TRACE(std::to_string(symbols) + " symbols");
    for (const size_t num_groups : {1, 2, 4}) EncodeAndCheck(in, &code, num_groups);
  }
}

TEST(RansTest, AllFrequencies) {
  for (size_t frequency = 1; frequency < kRansTotal; ++frequency) {
    RansCode code{.first = 5, .num_symbols = 1};
    code.frequency = {static_cast<uint8_t>(frequency),
                      static_cast<uint8_t>(kRansTotal - frequency)};
    SCOPED_TRACE("frequency " + std::to_string(frequency));
    const double p = static_cast<double>(frequency) / 256.0;
    EncodeAndCheck(Geometric(20000, 1.0 - p, 5, frequency), &code);
  }
}

TEST(RansTest, CodesAreValidForAllCounts) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 3000; ++round) {
    ByteCounts counts{};
    const size_t different = 1 + random() % 256;
    for (size_t i = 0; i < different; ++i) {
      counts[random() % 256] = static_cast<uint32_t>(random() >> (32 + random() % 32));
    }
    const size_t max_symbols = 1 + random() % kMaxRansSymbols;
    for (unsigned low_bits = 0; low_bits <= kMaxRansLowBits; ++low_bits) {
      const RansCode code = MakeRansCode(counts, low_bits, max_symbols).code;
      ASSERT_GE(code.num_symbols, 1u);
      ASSERT_LE(code.num_symbols, max_symbols);
      ASSERT_GT(code.frequency[0], 0);
      size_t sum = 0;
      for (size_t i = 0; i <= code.num_symbols; ++i) {
        sum += code.frequency[i];
      }
      ASSERT_EQ(sum, kRansTotal);
      ASSERT_GT(code.frequency[code.num_symbols], 0);
    }
  }
}

std::string DecodeError(const Body& body, size_t n) {
  U8 out(n);
  const Status status = Decode(CpuLevel::kPortable, body, &out);
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  return status.message();
}

TEST(RansTest, SaysWhatIsWrong) {
  const U8 in = Geometric(5000, 0.5, 0, 1);
  const Body good = EncodeAndCheck(in);
  const auto num_symbols = std::to_integer<size_t>(good[2]);
  const auto with = [&](size_t at, int value) {
    Body body = good;
    body[at] = static_cast<std::byte>(value);
    return DecodeError(body, in.size());
  };
  EXPECT_EQ(DecodeError({}, 5), "rANS code is cut short");
  EXPECT_EQ(DecodeError(good, 0), "rANS stream of no bytes");
  EXPECT_EQ(with(0, 5), "rANS code has " + std::to_string(num_symbols) +
                            " symbols and 5 low bits, expected 1 to 63 and at most 4");
  EXPECT_EQ(with(2, 64), "rANS code has 64 symbols and 0 low bits, expected 1 to 63 and at most 4");
  EXPECT_EQ(with(2, 0), "rANS code has 0 symbols and 0 low bits, expected 1 to 63 and at most 4");
  EXPECT_EQ(DecodeError(Body(good.begin(), good.begin() + 40), in.size()),
            "rANS states are cut short");
  // The code, one group, two sizes, 64 states.
  const size_t rest = good.size() - (3 + num_symbols + 1 + size_t{2} * 4 + 128);
  EXPECT_EQ(
      DecodeError(Body(good.begin(), good.end() - 1), in.size()),
      "rANS streams have " + std::to_string(rest - 1) + " bytes, expected " + std::to_string(rest));
  // One round more or fewer than was encoded.
  EXPECT_EQ(DecodeError(good, in.size() + 64), "rANS streams do not end where their symbols do");
  EXPECT_EQ(DecodeError(good, in.size() - 64), "rANS streams do not end where their symbols do");
  EXPECT_EQ(with(3 + num_symbols, 3), "rANS stream has 3 groups, expected 1, 2 or 4");
  EXPECT_NE(with(3, 0).find("rANS frequencies start with 0"), std::string::npos);
  EXPECT_NE(with(4, 255).find("expected 1 or more and at most 255"), std::string::npos);
}

// Damaged bodies are refused or decode to other bytes, and every level finds the same.
TEST(RansTest, DamageDoesNoHarm) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 1500; ++round) {
    const U8 in = Geometric(1 + random() % 6000, 0.05 + 0.9 * static_cast<double>(random() % 8) / 8,
                            9, random());
    Body body = EncodeAt(DetectCpu(), in, nullptr);
    // Damage at the front hits the code, the sizes and the states.
    const size_t reach = random() % 2 == 0 ? std::min<size_t>(body.size(), 40) : body.size();
    for (uint64_t m = random() % 4; m > 0; --m)
      body[random() % reach] = static_cast<std::byte>(random());
    if (random() % 4 == 0) body.resize(random() % body.size());
    if (random() % 8 == 0) body.resize(body.size() + random() % 100);
    U8 expected(in.size());
    const Status status = Decode(CpuLevel::kPortable, body, &expected);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCorruption);
    for (const CpuLevel level : Levels()) {
      U8 out(in.size());
      EXPECT_EQ(Decode(level, body, &out).ToString(), status.ToString());
      EXPECT_TRUE(!status.ok() || out == expected);
    }
  }
}

// Random states, and streams that are random or empty, under a valid code.
TEST(RansTest, RandomStreamsDoNoHarm) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 500; ++round) {
    const size_t n = 1 + random() % 20000;
    Body body = {static_cast<std::byte>(random() % 5), static_cast<std::byte>(random()),
                 std::byte{2}, static_cast<std::byte>(1 + random() % 120),
                 static_cast<std::byte>(random() % 120)};
    const size_t num_groups = size_t{1} << random() % 3;
    body.push_back(static_cast<std::byte>(num_groups));
    size_t rest = 0;
    for (size_t s = 0; s <= num_groups; ++s) {
      const auto size = static_cast<uint32_t>(random() % 3 == 0 ? 0 : random() % 300);
      for (int k = 0; k < 4; ++k) body.push_back(static_cast<std::byte>(size >> (8 * k)));
      rest += size;
    }
    rest += (n - 1) / (64 * num_groups) * 8 * num_groups * std::to_integer<size_t>(body[0]);
    for (size_t i = 0; i < 128 * num_groups + rest; ++i) {
      body.push_back(static_cast<std::byte>(random() % 3 == 0 ? 0 : random()));
    }
    for (const CpuLevel level : Levels()) {
      U8 out(n);
      const Status status = Decode(level, body, &out);
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCorruption);
    }
  }
}

}  // namespace

}  // namespace varve::internal
