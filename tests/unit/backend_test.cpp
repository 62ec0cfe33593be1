#include "common/comm/backend.h"

#include <gtest/gtest.h>

#include "common/device/error.h"

namespace ref5d::testing {
namespace {

const std::vector<Bytes> kOwn{to_bytes("a"), to_bytes("b"), to_bytes("c")},
    kShared{to_bytes("a"), to_bytes("b"), to_bytes("b")};

TEST(Backend, NcclWhereEveryRankHasAGpu) {
  EXPECT_TRUE(backend_for("auto", kOwn).nccl);
  EXPECT_TRUE(backend_for("nccl", kOwn).nccl);
  EXPECT_FALSE(backend_for("mpi", kOwn).nccl);
}

TEST(Backend, P58_RanksThatShareAGpuUseMpiAndSaySo) {
  const Backend chosen = backend_for("auto", kShared);
  EXPECT_FALSE(chosen.nccl);
  EXPECT_NE(chosen.why.find("ranks 1 and 2 share a GPU"), std::string::npos) << chosen.why;
  EXPECT_FALSE(backend_for("mpi", kShared).nccl);
  EXPECT_THROW((void)backend_for("nccl", kShared), InputError);
}

}  // namespace
}  // namespace ref5d::testing
