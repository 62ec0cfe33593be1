// bfloat16: the upper half of an fp32 number. Conversion rounds to nearest, ties to even, and keeps NaN a NaN.
// One definition for every build, host and device, so that the same bits come out everywhere.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define REF5D_HD __host__ __device__
#else
#define REF5D_HD
#endif

namespace ref5d {

struct bf16 {
  std::uint16_t bits;

  bf16() = default;
  REF5D_HD explicit bf16(float f) {
    std::uint32_t u;
    memcpy(&u, &f, 4);
    // Adding 0x7fff plus the lowest kept bit rounds to nearest even; a NaN keeps its sign and a non-zero mantissa.
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
  }
  REF5D_HD explicit bf16(double d) : bf16(rounded_to_odd(d)) {}
  REF5D_HD explicit operator float() const {
    const std::uint32_t u = static_cast<std::uint32_t>(bits) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
  }
  REF5D_HD explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }

 private:
  // fp64 to bf16 is one rounding. Through a float rounded to nearest it would be two, and miss ties by a hair. So the float is
  // rounded to odd: an inexact value keeps a set last bit, which the second rounding never takes for a tie.
  REF5D_HD static float rounded_to_odd(double d) {
    float nearest = static_cast<float>(d);
    const double back = nearest;
    std::uint32_t u;
    memcpy(&u, &nearest, 4);
    const bool inexact = back != d && d == d, away_from_zero = (back < 0 ? -back : back) > (d < 0 ? -d : d);
    if (inexact && (u & 1u) == 0) u = away_from_zero ? u - 1 : u + 1;
    memcpy(&nearest, &u, 4);
    return nearest;
  }
};
static_assert(sizeof(bf16) == 2);

// The type that sums over elements of T are carried in.
template <typename T>
struct AccOf {
  using type = float;
};
template <>
struct AccOf<double> {
  using type = double;
};
template <typename T>
using Acc = typename AccOf<T>::type;

}  // namespace ref5d
