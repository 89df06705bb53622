// SPDX-License-Identifier: Apache-2.0
//
// Compiled with -ffp-contract=off: scale * base is one IEEE multiplication on every machine.
#include "codec/planes/residual_kernel.h"

#include <cstring>
#include <type_traits>

#include "codec/planes/float_environment.h"

namespace varve::internal {

namespace {

template <typename T>
constexpr int kTopBit = 8 * static_cast<int>(sizeof(T)) - 1;

// Elements are read and written through memcpy, since chunks need not be aligned.
template <typename T>
VARVE_INLINE inline T Get(const uint8_t* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
VARVE_INLINE inline void Set(uint8_t* to, size_t i, T value) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

// All ones when the top bit is set, else zero.
template <typename T>
VARVE_INLINE inline T SignMask(T u) {
  using Signed = std::make_signed_t<T>;
  return static_cast<T>(static_cast<Signed>(u) >> kTopBit<T>);
}

// Maps the bits of floats to integers in the order of their values, with -0 just below +0. It is an
// involution.
template <typename T>
VARVE_INLINE inline T Ord(T u) {
  return static_cast<T>(u ^ (SignMask(u) & static_cast<T>(~(T{1} << kTopBit<T>))));
}
template <typename T>
VARVE_INLINE inline T Zigzag(T d) {
  return static_cast<T>(static_cast<T>(d << 1) ^ SignMask(d));
}
template <typename T>
VARVE_INLINE inline T Unzigzag(T z) {
  return static_cast<T>((z >> 1) ^ static_cast<T>(T{0} - static_cast<T>(z & 1)));
}

// Returns the bits of scale * base. A NaN stays itself, because machines disagree on its payload.
VARVE_INLINE inline uint32_t ScaledBits(float scale, uint32_t base) {
  float value;
  std::memcpy(&value, &base, sizeof(value));
  const float product = scale * value;
  uint32_t bits;
  std::memcpy(&bits, &product, sizeof(bits));
  // Returns all ones for a NaN. A condition would keep the compiler from multiplying whole vectors.
  const uint32_t is_nan = SignMask<uint32_t>(0x7F800000u - (base & 0x7FFFFFFFu));
  return (base & is_nan) | (bits & ~is_nan);
}

template <typename T>
void Forward(CpuLevel level, const TransformArgs& args, const uint8_t* in, const uint8_t* base,
             size_t n, uint8_t* out) {
  switch (args.transform) {
    case Transform::kPlain:
      std::memmove(out, in, n * sizeof(T));
      return;
    case Transform::kRotate:
      return RunAt(
          level,
          [](In from, size_t count, Out to) VARVE_INLINE {
            for (size_t i = 0; i < count; ++i) {
              const T x = Get<T>(from, i);
              Set<T>(to, i, static_cast<T>(static_cast<T>(x << 1) | (x >> kTopBit<T>)));
            }
          },
          in, n, out);
    case Transform::kSubtract:
      return RunAt(
          level,
          [](In from, In base_from, size_t count, Out to) VARVE_INLINE {
            for (size_t i = 0; i < count; ++i) {
              Set<T>(to, i, Zigzag<T>(static_cast<T>(Get<T>(from, i) - Get<T>(base_from, i))));
            }
          },
          in, base, n, out);
    default:
      return RunAt(
          level,
          [](In from, In base_from, size_t count, Out to) VARVE_INLINE {
            for (size_t i = 0; i < count; ++i) {
              Set<T>(to, i,
                     Zigzag<T>(static_cast<T>(Ord(Get<T>(from, i)) - Ord(Get<T>(base_from, i)))));
            }
          },
          in, base, n, out);
  }
}

template <typename T>
void Inverse(CpuLevel level, const TransformArgs& args, const uint8_t* in, const uint8_t* base,
             size_t n, uint8_t* out) {
  switch (args.transform) {
    case Transform::kPlain:
      std::memmove(out, in, n * sizeof(T));
      return;
    case Transform::kRotate:
      return RunAt(
          level,
          [](In from, size_t count, Out to) VARVE_INLINE {
            for (size_t i = 0; i < count; ++i) {
              const T x = Get<T>(from, i);
              Set<T>(to, i, static_cast<T>((x >> 1) | static_cast<T>(x << kTopBit<T>)));
            }
          },
          in, n, out);
    case Transform::kSubtract:
      return RunAt(
          level,
          [](In from, In base_from, size_t count, Out to) VARVE_INLINE {
            for (size_t i = 0; i < count; ++i) {
              Set<T>(to, i, static_cast<T>(Unzigzag(Get<T>(from, i)) + Get<T>(base_from, i)));
            }
          },
          in, base, n, out);
    default:
      return RunAt(
          level,
          [](In from, In base_from, size_t count, Out to) VARVE_INLINE {
            for (size_t i = 0; i < count; ++i) {
              Set<T>(to, i,
                     Ord(static_cast<T>(Unzigzag(Get<T>(from, i)) + Ord(Get<T>(base_from, i)))));
            }
          },
          in, base, n, out);
  }
}

void ForwardScaled(CpuLevel level, float scale, const uint8_t* in, const uint8_t* base, size_t n,
                   uint8_t* out) {
  const DefaultFloatEnvironment environment;
  RunAt(
      level,
      [](float scale_by, In from, In base_from, size_t count, Out to) VARVE_INLINE {
        for (size_t i = 0; i < count; ++i) {
          const uint32_t prediction = ScaledBits(scale_by, Get<uint32_t>(base_from, i));
          Set<uint32_t>(to, i, Zigzag(Ord(Get<uint32_t>(from, i)) - Ord(prediction)));
        }
      },
      scale, in, base, n, out);
}

void InverseScaled(CpuLevel level, float scale, const uint8_t* in, const uint8_t* base, size_t n,
                   uint8_t* out) {
  const DefaultFloatEnvironment environment;
  RunAt(
      level,
      [](float scale_by, In from, In base_from, size_t count, Out to) VARVE_INLINE {
        for (size_t i = 0; i < count; ++i) {
          const uint32_t prediction = ScaledBits(scale_by, Get<uint32_t>(base_from, i));
          Set<uint32_t>(to, i, Ord(Unzigzag(Get<uint32_t>(from, i)) + Ord(prediction)));
        }
      },
      scale, in, base, n, out);
}

}  // namespace

void ForwardTransform(CpuLevel level, const TransformArgs& args, const uint8_t* in,
                      const uint8_t* base, size_t num_elements, uint8_t* out) {
  if (num_elements == 0) return;
  if (args.transform == Transform::kSubtractScale) {
    return ForwardScaled(level, args.scale, in, base, num_elements, out);
  }
  switch (args.element_bytes) {
    case 1:
      return Forward<uint8_t>(level, args, in, base, num_elements, out);
    case 2:
      return Forward<uint16_t>(level, args, in, base, num_elements, out);
    case 4:
      return Forward<uint32_t>(level, args, in, base, num_elements, out);
    default:
      return Forward<uint64_t>(level, args, in, base, num_elements, out);
  }
}

void InverseTransform(CpuLevel level, const TransformArgs& args, const uint8_t* in,
                      const uint8_t* base, size_t num_elements, uint8_t* out) {
  if (num_elements == 0) return;
  if (args.transform == Transform::kSubtractScale) {
    return InverseScaled(level, args.scale, in, base, num_elements, out);
  }
  switch (args.element_bytes) {
    case 1:
      return Inverse<uint8_t>(level, args, in, base, num_elements, out);
    case 2:
      return Inverse<uint16_t>(level, args, in, base, num_elements, out);
    case 4:
      return Inverse<uint32_t>(level, args, in, base, num_elements, out);
    default:
      return Inverse<uint64_t>(level, args, in, base, num_elements, out);
  }
}

}  // namespace varve::internal
