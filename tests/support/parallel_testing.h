// Tests that all ranks of a world run together, whatever its size.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <optional>
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

// Tests of layouts, which are tried on the ranks that they fit. One that has found none to try here is skipped, and not passed.
class LayoutTest : public ParallelTest {
 public:
  static void tries_one() { ++tried_; }

 protected:
  LayoutTest() { tried_ = 0; }
  void TearDown() override {
    ParallelTest::TearDown();
    if (tried_ == 0 && !IsSkipped() && !HasFailure()) GTEST_SKIP() << "needs other ranks or another mode";
  }

 private:
  static inline int tried_ = 0;
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

// The world cut into meshes side by side: this rank's, if it is in a full one.
[[nodiscard]] inline std::optional<Mesh> world_slice(const MeshSizes& sizes) {
  const int size = static_cast<int>(sizes.ranks()), begin = world().rank() / size * size;
  if (size <= world().size()) LayoutTest::tries_one();
  if (begin + size > world().size()) return std::nullopt;
  return std::optional<Mesh>(std::in_place, sizes, ranks_from(begin, begin + size));
}

// All ranks along dp.
[[nodiscard]] inline Mesh dp_mesh() { return Mesh({.edp = world().size()}, ranks_from(0, world().size())); }

}  // namespace ref5d::testing
