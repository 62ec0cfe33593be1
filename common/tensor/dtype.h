// The element types of the suite.
#pragma once

#include <cstddef>
#include <string>

namespace ref5d {

enum class Dtype { kFp64, kFp32, kBf16, kInt32 };

// Bytes of one element.
[[nodiscard]] constexpr std::size_t dtype_size(Dtype d) {
  switch (d) {
    case Dtype::kFp64: return 8;
    case Dtype::kFp32: return 4;
    case Dtype::kBf16: return 2;
    case Dtype::kInt32: return 4;
  }
  return 0;
}

// The name used by flags, reports and pages: "fp64", "fp32", "bf16", "int32".
[[nodiscard]] constexpr const char* dtype_name(Dtype d) {
  switch (d) {
    case Dtype::kFp64: return "fp64";
    case Dtype::kFp32: return "fp32";
    case Dtype::kBf16: return "bf16";
    case Dtype::kInt32: return "int32";
  }
  return "?";
}

// The type that sums are carried in: fp64 for fp64, fp32 for fp32 and bf16.
[[nodiscard]] constexpr Dtype accumulator_of(Dtype d) { return d == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32; }

}  // namespace ref5d
