// Tests that all ranks of a world run together, whatever its size.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "common/comm/mesh.h"
#include "common/comm/world.h"
#include "common/device/device.h"

#ifndef REF5D_CUDA
#include "common/device/cpu/executor.h"
#endif

namespace ref5d::testing {

// A failure on any rank is one on rank 0, which alone prints.
class ParallelTest : public ::testing::Test {
 protected:
  void TearDown() override;
};

// Skips a test on fewer ranks. All ranks of the world do.
#define NEEDS_RANKS(n) \
  if (::ref5d::world().size() < (n)) GTEST_SKIP() << "needs " << (n) << " ranks"

// Skips a test of what MPI's transport does and NCCL does not: adding in the order of the ranks, and counting what is sent.
#define NEEDS_RANK_ORDER \
  if (!::ref5d::transport_counts_wire()) GTEST_SKIP() << "NCCL adds in an order of its own"

// In which order streams whose work is ready are served; 0: as it was given.
inline void set_order_seed([[maybe_unused]] std::uint64_t seed) {
#ifndef REF5D_CUDA
  cpu::set_order_seed(seed);
#endif
}

[[nodiscard]] inline std::vector<int> ranks_from(int begin, int end) {
  std::vector<int> ranks(static_cast<std::size_t>(end - begin));
  std::iota(ranks.begin(), ranks.end(), begin);
  return ranks;
}

// All ranks along dp.
[[nodiscard]] inline Mesh dp_mesh() { return Mesh({.edp = world().size()}, ranks_from(0, world().size())); }

}  // namespace ref5d::testing
