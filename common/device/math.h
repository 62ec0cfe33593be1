// exp for kernels. On the GPU it is the toolkit's; on the CPU fp32 has a branch-free form that vectorises (libm's does not
// without -ffast-math, which would break infinities), within 2 ulp; fp64 is libm's.
#pragma once

#include "common/device/kernel.h"

namespace ref5d {

#if defined(__CUDACC__)
__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ float exp_of_negative(float x) { return expf(x); }
#else
// Adding it leaves a rounded integer n as n + 127, an exponent's bits, in the low bits: 1.5 * 2^23 + 127.
inline constexpr float kExpRound = 12583039.0f;
// exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2. Gives exp(r), and n + kExpRound in `shifted`. ln 2 is
// subtracted in two parts so that r is exact to the last bit, and exp(r) is its Taylor polynomial with minimax coefficients
// (Cephes).
__forceinline__ float exp_of_rest(float x, float& shifted) {
  constexpr float kLog2e = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  shifted = x * kLog2e + kExpRound;
  const float n = shifted - kExpRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + r + 1.0f;
}
// The factor 2^n is applied in two halves, so that results may be denormal, zero or infinite.
__forceinline__ float exp_of(float x) {
  x = x < -105.0f ? -105.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float shifted;
  const float p = exp_of_rest(x, shifted);
  const std::int32_t i =
      static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kExpRound));
  const std::int32_t half = i >> 1;
  const float first = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = std::bit_cast<float>(static_cast<std::uint32_t>(i - half + 127) << 23);
  return p * first * second;
}
// For a softmax: half the work where x is at most a little above 0 and a result below the least normal number may be 0. All
// others are exp_of's, bit by bit.
__forceinline__ float exp_of_negative(float x) {
  float shifted;
  const float p = exp_of_rest(x, shifted);
  return x < -87.3f ? 0.0f : p * std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23);
}
#endif
__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ double exp_of_negative(double x) { return exp(x); }

}  // namespace ref5d
