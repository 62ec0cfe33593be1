// A kernel must give the same bits every time and on any number of host threads.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/support/kernel_testing.h"

namespace ref5d::testing {

inline std::vector<std::byte> bits_of(const Tensor& t) { return t.to_host(device().compute()).data; }

// `run` makes its inputs anew, runs the kernel and returns an output.
inline void expect_repeatable(const std::function<Tensor()>& run) {
  const int threads = device().threads();
  device().set_threads(1);
  const auto first = bits_of(run());
  EXPECT_EQ(first, bits_of(run())) << "two runs differ";
  device().set_threads(2);
  EXPECT_EQ(first, bits_of(run())) << "two threads give other bits than one";
  device().set_threads(threads);
}

// Enough elements for several blocks of an element-wise kernel on the CPU, the last one not full.
inline constexpr std::int64_t kSeveralBlocks = 3 * 8192 + 5;
inline const std::vector<Dtype> kFloatDtypes = {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16};

}  // namespace ref5d::testing
