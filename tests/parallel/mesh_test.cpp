#include "common/comm/mesh.h"

#include <cmath>

#include "tests/support/parallel_testing.h"

namespace ref5d::testing {
namespace {

class MeshTest : public ParallelTest {};

// Every way of writing the world's size as pp x edp x ep x cp x tp.
std::vector<MeshSizes> all_meshes(std::int64_t n) {
  std::vector<MeshSizes> all;
  for (std::int64_t pp = 1; pp <= n; ++pp)
    for (std::int64_t edp = 1; pp * edp <= n; ++edp)
      for (std::int64_t ep = 1; pp * edp * ep <= n; ++ep)
        for (std::int64_t cp = 1; pp * edp * ep * cp <= n; ++cp)
          for (std::int64_t tp = 1; pp * edp * ep * cp * tp <= n; ++tp)
            if (pp * edp * ep * cp * tp == n) all.push_back({pp, edp, ep, cp, tp});
  return all;
}

TEST_F(MeshTest, CoordinatesAndNeighbours) {
  const int n = world().size();
  for (const MeshSizes& s : all_meshes(n)) {
    Mesh mesh(s, ranks_from(0, n));
    std::int64_t rank = 0;
    for (const char* axis : kAxes) {
      EXPECT_EQ(mesh[axis].size(), mesh.size(axis));
      EXPECT_EQ(mesh[axis].rank(), mesh.coordinate(axis));
      rank = rank * mesh.size(axis) + mesh.coordinate(axis);
    }
    EXPECT_EQ(rank, world().rank());
    EXPECT_EQ(mesh.size("dp"), s.edp * s.ep);
    EXPECT_EQ(mesh["dp*cp"].size(), s.edp * s.ep * s.cp);
    EXPECT_EQ(mesh["dp*cp"].rank(), mesh.coordinate("dp") * s.cp + mesh.coordinate("cp"));
    EXPECT_EQ(mesh["world"].group().ranks, ranks_from(0, n));
    if (s.tp > 1) {  // neighbours along tp are neighbours in the world
      EXPECT_EQ(mesh["tp"].group().ranks[1], mesh["tp"].group().ranks[0] + 1);
    }
  }
  EXPECT_THROW((void)dp_mesh()["no such"], std::logic_error);
}

TEST_F(MeshTest, IsBuiltByItsOwnRanks) {
  const int n = world().size();
  EXPECT_THROW(Mesh({.edp = n + 1}, ranks_from(0, n)), std::logic_error);
  std::vector<int> others = ranks_from(0, n);
  others.erase(others.begin() + world().rank());
  EXPECT_THROW(Mesh({.edp = n - 1}, others), std::logic_error);
}

TEST_F(MeshTest, SplitsAnAxisIntoNeighboursAndTheirLike) {
  const int n = world().size(), me = world().rank();
  for (int inner = 1; inner <= n; ++inner) {
    Mesh mesh = dp_mesh();
    if (n % inner != 0) {
      EXPECT_THROW((void)mesh.split("dp", inner), std::logic_error);
      continue;
    }
    const auto [near, far] = mesh.split("dp", inner);
    EXPECT_EQ(near->size(), inner);
    EXPECT_EQ(far->size(), n / inner);
    EXPECT_EQ(near->group().ranks, ranks_from(me / inner * inner, (me / inner + 1) * inner));
    EXPECT_EQ(far->group().ranks[0], me % inner);
    EXPECT_EQ(near->axis(), "dp/inner");
  }
}

// One mesh may split an axis in several ways, whose operations do not meet even if both are in flight.
TEST_F(MeshTest, AnAxisMaySplitInSeveralWays) {
  const int n = world().size();
  Mesh mesh = dp_mesh();
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::pair<Tensor, double>> sums;
  for (int inner = 1; inner <= n; ++inner) {
    if (n % inner != 0) continue;
    const auto [near, far] = mesh.split("dp", inner);
    EXPECT_EQ(mesh.split("dp", inner), std::pair(near, far));
    for (Communicator* c : {near, far}) {
      EXPECT_EQ(c->size(), c == near ? inner : n / inner);
      streams.push_back(std::make_unique<Stream>("split"));
      const Tensor x = Tensor::from_host(HostTensor::from_doubles({inner + 0.5}, {1}, Dtype::kFp64), Dtype::kFp64,
                                         MemoryCategory::kWorkspace, *streams.back());
      c->all_reduce(*streams.back(), x);
      sums.emplace_back(x, (inner + 0.5) * c->size());
    }
  }
  device().synchronize();
  for (const auto& [x, expected] : sums) EXPECT_EQ(x.to_doubles(device().compute())[0], expected);
  sums.clear();
}

// Sums over several axes that are in flight together, on streams of their own: each is right, in whatever order they end.
void in_flight_together(std::uint64_t seed) {
  set_order_seed(seed);
  const int n = world().size();
  const std::vector<MeshSizes> meshes = all_meshes(n);
  for (std::size_t i = 0; i < meshes.size(); i += 1 + meshes.size() / 8) {
    Mesh mesh(meshes[i], ranks_from(0, n));
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<std::pair<Tensor, double>> sums;
    for (const char* axes : {"pp", "dp", "cp", "tp", "dp*cp", "edp*cp", "world"}) {
      streams.push_back(std::make_unique<Stream>(axes));
      Communicator& c = mesh[axes];
      double expected = 0;
      for (int r : c.group().ranks) expected += r + 1;
      for (int round = 0; round < 3; ++round) {
        const std::vector<double> mine(static_cast<std::size_t>(17 + round), world().rank() + 1.0);
        const Tensor x = Tensor::from_host(HostTensor::from_doubles(mine, {17 + round}, Dtype::kFp64), Dtype::kFp64,
                                           MemoryCategory::kWorkspace, *streams.back());
        c.all_reduce(*streams.back(), x);
        sums.emplace_back(x, expected);
      }
    }
    device().synchronize();
    for (const auto& [x, expected] : sums)
      for (double v : x.to_doubles(device().compute())) EXPECT_EQ(v, expected);
    sums.clear();
  }
  set_order_seed(0);
}

TEST_F(MeshTest, OperationsInFlightOnSeveralAxes) { in_flight_together(0); }
TEST_F(MeshTest, LateCompletionUnderSeeds) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) in_flight_together(seed);
}

// One communicator, two streams: its operations start as they were enqueued, whatever the streams do.
TEST_F(MeshTest, P57_OneCommunicatorOnTwoStreams) {
  for (std::uint64_t seed = 0; seed <= 10; ++seed) {
    set_order_seed(seed);
    Mesh mesh = dp_mesh();
    Stream a("a"), b("b");
    std::vector<Tensor> tensors;
    for (int i = 0; i < 8; ++i) {
      Stream& s = i % 2 == 0 ? a : b;
      const std::vector<double> values(10, i + 10.0 * world().rank());
      tensors.push_back(
          Tensor::from_host(HostTensor::from_doubles(values, {10}, Dtype::kFp64), Dtype::kFp64, MemoryCategory::kWorkspace, s));
      mesh["dp"].all_reduce(s, tensors.back());
    }
    device().synchronize();
    const double n = world().size();
    for (int i = 0; i < 8; ++i)
      EXPECT_EQ(tensors[std::size_t(i)].to_doubles(device().compute())[3], n * i + 10 * n * (n - 1) / 2);
    tensors.clear();
  }
  set_order_seed(0);
}

TEST_F(MeshTest, MeshesSideBySide) {
  NEEDS_RANKS(2);
  const int n = world().size(), half = n / 2;
  const bool low = world().rank() < half;
  const std::vector<int> ranks = low ? ranks_from(0, half) : ranks_from(half, n);
  Mesh mesh({.edp = static_cast<std::int64_t>(ranks.size())}, ranks);
  const Tensor x = Tensor::from_host(HostTensor::from_doubles({1.0}, {1}, Dtype::kFp32), Dtype::kFp32,
                                     MemoryCategory::kWorkspace, device().compute());
  for (int i = 0; i < (low ? 1 : 3); ++i) mesh["dp"].all_reduce(device().compute(), x);
  EXPECT_EQ(x.to_doubles(device().compute())[0], low ? half : std::pow(n - half, 3));
}

TEST_F(MeshTest, NodesFromRanksPerNode) {
  NEEDS_RANK_ORDER;
  world().set_ranks_per_node(2);
  EXPECT_EQ(world().node_count(), (world().size() + 1) / 2);
  const TrafficLedger::Phase phase(world().traffic(), "nodes");
  Mesh mesh = dp_mesh();
  const Tensor x = Tensor::zeros({2 * world().size()}, Dtype::kFp64, MemoryCategory::kWorkspace, device().compute());
  mesh["dp"].all_gather(device().compute(), x, x.rows(2 * world().rank(), 2 * world().rank() + 2));
  device().synchronize();
  const bool paired = (world().rank() ^ 1) < world().size();
  EXPECT_EQ(world().traffic().total("", "", "nodes").between_nodes, 16 * (world().size() - (paired ? 2 : 1)));
  world().set_ranks_per_node(world().size());
}

}  // namespace
}  // namespace ref5d::testing
