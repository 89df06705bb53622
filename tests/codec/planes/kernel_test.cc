// SPDX-License-Identifier: Apache-2.0
//
// Every kernel gives the same bytes at every level, and its inverse gives the input back.
#include <gtest/gtest.h>

#include <cfenv>
#include <random>
#include <vector>

#include "codec/planes/class_kernel.h"
#include "codec/planes/copy_kernel.h"
#include "codec/planes/plane_kernel.h"
#include "codec/planes/residual_kernel.h"
#include "codec/planes/sparse_kernel.h"
#include "tests/codec/levels.h"

namespace varve::internal {

namespace {

const std::vector<size_t> kSizes = {0,   1,   2,   3,    7,    8,    9,    15,   16,   17,
                                    31,  32,  33,  63,   64,   65,   127,  128,  129,  191,
                                    255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 5000};

using U8 = std::vector<uint8_t>;

U8 Random(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  U8 bytes(n);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// Zero with probability p0, else small most of the time.
U8 MostlySmall(size_t n, double p0, uint64_t seed) {
  std::mt19937_64 random(seed);
  U8 bytes(n);
  for (uint8_t& byte : bytes) {
    const bool zero = std::generate_canonical<double, 32>(random) < p0;
    const auto value = static_cast<uint8_t>(random());
    byte = zero ? uint8_t{0} : (value < 200 ? static_cast<uint8_t>(value % 18) : value);
  }
  return bytes;
}

TEST(PlaneKernelTest, LevelsAgreeAndInvert) {
  for (const size_t width : {1, 2, 4, 8}) {
    for (const size_t n : kSizes) {
      const U8 elements = Random(n * width, n + width);
      for (const CpuLevel level : Levels()) {
        U8 planes(n * width);
        std::vector<uint8_t*> to;
        std::vector<const uint8_t*> from;
        for (size_t p = 0; p < width; ++p) to.push_back(planes.data() + p * n);
        from.assign(to.begin(), to.end());
        SplitPlanes(level, elements.data(), n, to);
        for (size_t i = 0; i < n * width; ++i) {
          ASSERT_EQ(planes[(i % width) * n + i / width], elements[i]) << width << " " << n;
        }
        U8 joined(n * width);
        JoinPlanes(level, from, n, joined.data());
        ASSERT_EQ(joined, elements) << width << " " << n;
      }
    }
  }
}

TEST(PlaneKernelTest, JoinRotatedIsJoinAndRotate) {
  for (const size_t width : {2, 4}) {
    const TransformArgs rotate{.transform = Transform::kRotate, .element_bytes = width};
    for (const size_t n : kSizes) {
      const U8 planes = Random(n * width, n + width);
      std::vector<const uint8_t*> from;
      for (size_t p = 0; p < width; ++p) from.push_back(planes.data() + p * n);
      U8 joined(n * width);
      U8 expected(n * width);
      JoinPlanes(CpuLevel::kPortable, from, n, joined.data());
      InverseTransform(CpuLevel::kPortable, rotate, joined.data(), nullptr, n, expected.data());
      for (const CpuLevel level : Levels()) {
        U8 rotated(n * width);
        JoinRotated(level, from, n, rotated.data());
        ASSERT_EQ(rotated, expected) << width << " " << n;
      }
    }
  }
}

TEST(CopyKernelTest, CopiesAnySizeToAnyAddress) {
  for (const size_t n : kSizes) {
    for (const size_t shift : {0, 1, 15, 16, 63}) {
      const U8 from = Random(n + shift, n);
      U8 to(n + size_t{2} * 64 + shift, 0xEE);
      U8 expected = to;
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(shift), n,
                  expected.begin() + static_cast<ptrdiff_t>(64 + shift));
      CopyPastCache(std::as_bytes(std::span(from)).subspan(shift),
                    std::as_writable_bytes(std::span(to)).subspan(64 + shift, n));
      ASSERT_EQ(to, expected) << n << " " << shift;
    }
  }
}

struct TransformCase {
  Transform transform;
  size_t width;
};

TEST(ResidualKernelTest, LevelsAgreeAndInvert) {
  std::vector<TransformCase> cases = {{Transform::kSubtractScale, 4}};
  for (const size_t width : {1, 2, 4, 8}) {
    for (const Transform t :
         {Transform::kPlain, Transform::kRotate, Transform::kSubtract, Transform::kSubtractOrd}) {
      cases.push_back({t, width});
    }
  }
  for (const TransformCase& c : cases) {
    const TransformArgs args{.transform = c.transform, .element_bytes = c.width, .scale = 0.95f};
    for (const size_t n : kSizes) {
      const U8 in = Random(n * c.width, 2 * n);
      const U8 base = Random(n * c.width, 2 * n + 1);
      U8 expected(in.size());
      ForwardTransform(CpuLevel::kPortable, args, in.data(), base.data(), n, expected.data());
      for (const CpuLevel level : Levels()) {
        U8 out(in.size());
        ForwardTransform(level, args, in.data(), base.data(), n, out.data());
        ASSERT_EQ(out, expected) << static_cast<int>(c.transform) << " " << c.width << " " << n;
        U8 back(in.size());
        InverseTransform(level, args, out.data(), base.data(), n, back.data());
        ASSERT_EQ(back, in) << static_cast<int>(c.transform) << " " << c.width << " " << n;
      }
    }
  }
}

// All pairs of 16-bit patterns of interest: every pattern against a handful of bases.
TEST(ResidualKernelTest, Every16BitPatternSurvives) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const int base_bits : {0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0x0001, 0xFFFF}) {
    const std::vector<uint16_t> base(all.size(), static_cast<uint16_t>(base_bits));
    for (const Transform t : {Transform::kRotate, Transform::kSubtract, Transform::kSubtractOrd}) {
      const TransformArgs args{.transform = t, .element_bytes = 2};
      for (const CpuLevel level : Levels()) {
        std::vector<uint16_t> out(all.size());
        std::vector<uint16_t> back(all.size());
        const auto* in = reinterpret_cast<const uint8_t*>(all.data());
        const auto* from = reinterpret_cast<const uint8_t*>(base.data());
        auto* to = reinterpret_cast<uint8_t*>(out.data());
        ForwardTransform(level, args, in, from, all.size(), to);
        InverseTransform(level, args, to, from, all.size(),
                         reinterpret_cast<uint8_t*>(back.data()));
        ASSERT_EQ(back, all);
      }
    }
  }
}

// NaN, infinity and denormal bases, and a caller that flushes denormals or rounds otherwise.
TEST(ResidualKernelTest, ScaledPredictionIgnoresTheFloatEnvironment) {
  const std::vector<uint32_t> base = {0x7FC00001, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000,
                                      0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x3F800001,
                                      0x00000000, 0x80000000, 0x3DCCCCCD, 0xBDCCCCCD, 0x007FFFFF};
  std::vector<uint32_t> in(base.size(), 0x12345678);
  const TransformArgs args{
      .transform = Transform::kSubtractScale, .element_bytes = 4, .scale = 0.9f};
  std::vector<uint32_t> expected(base.size());
  const auto run = [&](CpuLevel level, std::vector<uint32_t>* out) {
    ForwardTransform(level, args, reinterpret_cast<const uint8_t*>(in.data()),
                     reinterpret_cast<const uint8_t*>(base.data()), in.size(),
                     reinterpret_cast<uint8_t*>(out->data()));
  };
  run(CpuLevel::kPortable, &expected);
  for (const CpuLevel level : Levels()) {
    for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      std::vector<uint32_t> out(base.size());
      std::fesetround(rounding);
      run(level, &out);
      EXPECT_EQ(std::fegetround(), rounding);
      std::fesetround(FE_TONEAREST);
      EXPECT_EQ(out, expected);
    }
  }
}

TEST(ClassKernelTest, LevelsAgreeAndInvert) {
  for (const size_t num_thresholds : {1, 3, 7}) {
    U8 thresholds;
    for (size_t t = 0; t < num_thresholds; ++t) {
      thresholds.push_back(static_cast<uint8_t>(230 - 30 * t));
    }
    for (const size_t n : kSizes) {
      const U8 exponents = Random(n, n);
      const U8 data = Random(n, n + 1);
      for (const CpuLevel level : Levels()) {
        U8 classes = exponents;
        std::array<size_t, kMaxClasses> counts;
        ClassifyExponents(level, thresholds, classes.data(), n, &counts);
        std::array<size_t, kMaxClasses> expected{};
        for (size_t i = 0; i < n; ++i) {
          size_t wanted = 0;
          for (const uint8_t t : thresholds) wanted += exponents[i] < t;
          ASSERT_EQ(classes[i], wanted);
          ++expected[wanted];
        }
        ASSERT_EQ(counts, expected);
        std::vector<U8> parts(num_thresholds + 1);
        std::vector<uint8_t*> to;
        for (size_t c = 0; c < parts.size(); ++c) {
          parts[c].resize(counts[c] + kClassSlack);
          to.push_back(parts[c].data());
        }
        PartitionByClass(level, classes.data(), data.data(), n, to);
        std::vector<size_t> at(parts.size());
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(parts[classes[i]][at[classes[i]]++], data[i]);
        std::vector<const uint8_t*> from(to.begin(), to.end());
        U8 merged(n);
        MergeByClass(level, classes.data(), from, n, merged.data());
        ASSERT_EQ(merged, data) << n;
      }
    }
  }
}

TEST(ClassKernelTest, ClassifiesElementsAsTheirExponents) {
  const U8 thresholds = {200, 120, 40};
  for (const size_t element_bytes : {2, 4}) {
    const ExponentField field{
        .element_bytes = element_bytes, .shift = element_bytes == 2 ? 7 : 23, .mask = 0xFF};
    for (const size_t n : kSizes) {
      const U8 elements = Random(element_bytes * n, n);
      for (const CpuLevel level : Levels()) {
        U8 expected(n);
        std::array<size_t, kMaxClasses> expected_counts;
        ExtractExponents(level, field, elements.data(), n, expected.data());
        ClassifyExponents(level, thresholds, expected.data(), n, &expected_counts);
        U8 classes(n);
        std::array<size_t, kMaxClasses> counts;
        ClassifyElements(level, field, thresholds, elements.data(), n, classes.data(), &counts);
        ASSERT_EQ(classes, expected) << element_bytes << " " << n;
        ASSERT_EQ(counts, expected_counts) << element_bytes << " " << n;
      }
    }
  }
}

// Null parts are not written, and are zeros when merged.
TEST(ClassKernelTest, LeavesOutNullParts) {
  constexpr uint8_t kNumClasses = 5;
  for (size_t left_out = 0; left_out < size_t{1} << kNumClasses; ++left_out) {
    for (const size_t n : {31, 64, 1000}) {
      U8 classes = Random(n, n);
      for (uint8_t& id : classes) id = static_cast<uint8_t>(id % kNumClasses);
      U8 data = Random(n, n + 1);
      const auto is_out = [&](uint8_t id) { return ((left_out >> id) & 1) != 0; };
      for (const CpuLevel level : Levels()) {
        std::vector<U8> parts(kNumClasses, U8(n + kClassSlack));
        std::vector<uint8_t*> to;
        for (uint8_t c = 0; c < kNumClasses; ++c) to.push_back(is_out(c) ? nullptr : &parts[c][0]);
        PartitionByClass(level, classes.data(), data.data(), n, to);
        const std::vector<const uint8_t*> from(to.begin(), to.end());
        U8 merged(n, 0xEE);
        MergeByClass(level, classes.data(), from, n, merged.data());
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(merged[i], is_out(classes[i]) ? 0 : data[i]);
      }
    }
  }
}

TEST(ClassKernelTest, FindsClassesWithValues) {
  for (const size_t n : {1, 33, 4096, 4097, 10000}) {
    for (const CpuLevel level : Levels()) {
      U8 classes(n, 1);
      U8 data(n, 0);
      EXPECT_EQ(ClassesWithValues(level, classes.data(), data.data(), n), 0u);
      data[n - 1] = 4;
      EXPECT_EQ(ClassesWithValues(level, classes.data(), data.data(), n), 0b10u);
      classes[n - 1] = 7;
      EXPECT_EQ(ClassesWithValues(level, classes.data(), data.data(), n), 0b10000000u);
      data[0] = 0x80;
      EXPECT_EQ(ClassesWithValues(level, classes.data(), data.data(), n),
                n == 1 ? 0b10000000u : 0b10000010u);
    }
  }
}

TEST(ClassKernelTest, ExtractsExponents) {
  for (const CpuLevel level : Levels()) {
    for (const size_t n : kSizes) {
      const U8 elements = Random(4 * n, n);
      U8 exponents(n);
      ExtractExponents(level, {.element_bytes = 4, .shift = 23, .mask = 0xFF}, elements.data(), n,
                       exponents.data());
      for (size_t i = 0; i < n; ++i) {
        const int wanted = ((elements[4 * i + 3] & 0x7F) << 1) | (elements[4 * i + 2] >> 7);
        ASSERT_EQ(exponents[i], wanted);
      }
      ExtractExponents(level, {.element_bytes = 2, .shift = 10, .mask = 0x1F}, elements.data(), n,
                       exponents.data());
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(exponents[i], (elements[2 * i + 1] >> 2) & 0x1F);
    }
  }
}

TEST(SparseKernelTest, NonZerosAgreeAndInvert) {
  for (const double p0 : {0.0, 0.5, 0.95, 1.0}) {
    for (const size_t n : kSizes) {
      const U8 data = MostlySmall(n, p0, n);
      for (const CpuLevel level : Levels()) {
        U8 bitmap((n + 7) / 8);
        U8 values(n + kPackSlack);
        const size_t count = PackNonZeros(level, data.data(), n, bitmap.data(), values.data());
        size_t at = 0;
        for (size_t i = 0; i < n; ++i) {
          ASSERT_EQ((bitmap[i / 8] >> (i % 8)) & 1, data[i] != 0);
          if (data[i] == 0) continue;
          ASSERT_EQ(values[at++], data[i]);
        }
        ASSERT_EQ(count, at);
        ASSERT_EQ(CountNonZeros(level, bitmap.data(), n), count);
        ASSERT_TRUE(n % 8 == 0 || bitmap.back() >> (n % 8) == 0);
        U8 back(n);
        UnpackNonZeros(level, bitmap.data(), values.data(), n, back.data());
        ASSERT_EQ(back, data) << n;
      }
    }
  }
}

TEST(SparseKernelTest, NibblesAgreeAndInvert) {
  for (const double p0 : {0.0, 0.5, 0.95, 1.0}) {
    for (const size_t n : kSizes) {
      const U8 data = MostlySmall(n, p0, n);
      for (const CpuLevel level : Levels()) {
        U8 pairs((n + 1) / 2);
        U8 escapes(n + kPackSlack);
        const size_t count = PackNibbles(level, data.data(), n, pairs.data(), escapes.data());
        size_t at = 0;
        for (size_t i = 0; i < n; ++i) {
          ASSERT_EQ((pairs[i / 2] >> (4 * (i % 2))) & 15, std::min<int>(data[i], 15));
          if (data[i] < 15) continue;
          ASSERT_EQ(escapes[at++], data[i]);
        }
        ASSERT_EQ(count, at);
        ASSERT_EQ(CountEscapes(level, pairs.data(), n), count);
        U8 back(n);
        UnpackNibbles(level, pairs.data(), escapes.data(), n, back.data());
        ASSERT_EQ(back, data) << n;
      }
    }
  }
}

TEST(SparseKernelTest, HalvesAgreeAndInvert) {
  for (const size_t n : kSizes) {
    const U8 data = Random(n, n);
    for (const CpuLevel level : Levels()) {
      U8 low((n + 1) / 2);
      U8 high((n + 1) / 2);
      SplitHalves(level, data.data(), n, low.data(), high.data());
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ((low[i / 2] >> (4 * (i % 2))) & 15, data[i] & 15);
        ASSERT_EQ((high[i / 2] >> (4 * (i % 2))) & 15, data[i] >> 4);
      }
      U8 back(n);
      JoinHalves(level, low.data(), high.data(), n, back.data());
      ASSERT_EQ(back, data) << n;
    }
  }
}

}  // namespace

}  // namespace varve::internal
