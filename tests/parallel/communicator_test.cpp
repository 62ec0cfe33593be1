// Every operation over every number of ranks, in every dtype, with counts that divide and that do not.
#include "common/comm/communicator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <numeric>
#include <thread>

#include "common/comm/clock.h"
#include "common/comm/mpi_wait.h"
#include "common/device/polled.h"
#include "tests/support/parallel_testing.h"

namespace ref5d::testing {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16, Dtype::kInt32};

// A small whole number, so that sums are exact in every dtype.
double value_at(int rank, std::int64_t i) { return static_cast<double>((rank * 7 + i * 3) % 11 - 5); }

Tensor make(const std::vector<double>& values, Dtype dtype, Stream& stream) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  return Tensor::from_host(HostTensor::from_doubles(values, shape, dtype), dtype, MemoryCategory::kWorkspace, stream);
}

Tensor rank_values(int rank, std::int64_t n, Dtype dtype, Stream& stream) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(value_at(rank, i));
  return make(v, dtype, stream);
}

class Comm : public ParallelTest {
 protected:
  Mesh mesh_ = dp_mesh();
  Communicator& dp_ = mesh_["dp"];
  const int n_ = dp_.size();
  Stream& stream_ = device().compute();

  [[nodiscard]] double sum_at(std::int64_t i) const {
    double sum = 0;
    for (int r = 0; r < n_; ++r) sum += value_at(r, i);
    return sum;
  }
};

TEST_F(Comm, AllReduceSums) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t n : {0, 1, 2, 3, 7, 16, 31, 1000}) {
      const Tensor x = rank_values(dp_.rank(), n, dtype, stream_);
      dp_.all_reduce(stream_, x);
      const std::vector<double> got = x.to_doubles(stream_);
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(got[std::size_t(i)], sum_at(i)) << dtype_name(dtype) << " " << n;
    }
  }
}

TEST_F(Comm, AllReduceTakesTheMaximum) {
  for (Dtype dtype : kDtypes) {
    const Tensor x = rank_values(dp_.rank(), 23, dtype, stream_);
    dp_.all_reduce(stream_, x, ReduceOp::kMax);
    const std::vector<double> got = x.to_doubles(stream_);
    for (std::int64_t i = 0; i < 23; ++i) {
      double most = value_at(0, i);
      for (int r = 1; r < n_; ++r) most = std::max(most, value_at(r, i));
      ASSERT_EQ(got[std::size_t(i)], most);
    }
  }
}

TEST_F(Comm, ReduceScatterGivesEachRankItsPart) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t part : {0, 1, 3, 64, 5000}) {
      for (bool in_place : {false, true}) {
        const Tensor x = rank_values(dp_.rank(), part * n_, dtype, stream_);
        const Tensor own = x.rows(dp_.rank() * part, (dp_.rank() + 1) * part);
        const Tensor shard = in_place ? own : Tensor::empty({part}, dtype, MemoryCategory::kWorkspace, stream_);
        dp_.reduce_scatter(stream_, shard, x);
        const std::vector<double> got = shard.to_doubles(stream_);
        for (std::int64_t i = 0; i < part; ++i) ASSERT_EQ(got[std::size_t(i)], sum_at(dp_.rank() * part + i));
      }
    }
  }
}

TEST_F(Comm, AllGatherJoinsTheParts) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t part : {0, 1, 3, 64, 5000}) {
      for (bool in_place : {false, true}) {
        const Tensor x = Tensor::empty({part * n_}, dtype, MemoryCategory::kWorkspace, stream_);
        const Tensor own = rank_values(dp_.rank(), part, dtype, stream_);
        Tensor shard = own;
        if (in_place) {
          shard = x.rows(dp_.rank() * part, (dp_.rank() + 1) * part);
          copy_on_device(stream_, shard.raw(), own.raw(), own.bytes());
        }
        dp_.all_gather(stream_, x, shard);
        const std::vector<double> got = x.to_doubles(stream_);
        for (int r = 0; r < n_; ++r)
          for (std::int64_t i = 0; i < part; ++i) ASSERT_EQ(got[std::size_t(r * part + i)], value_at(r, i));
      }
    }
  }
}

TEST_F(Comm, AllToAllExchangesRows) {
  for (Dtype dtype : kDtypes) {
    const Tensor sent = rank_values(dp_.rank(), 3 * n_, dtype, stream_);
    const Tensor received = Tensor::empty({3 * n_}, dtype, MemoryCategory::kWorkspace, stream_);
    dp_.all_to_all(stream_, received, sent);
    const std::vector<double> got = received.to_doubles(stream_);
    for (int r = 0; r < n_; ++r)
      for (int i = 0; i < 3; ++i) ASSERT_EQ(got[std::size_t(3 * r + i)], value_at(r, 3 * dp_.rank() + i));
  }
}

// Rank a sends b (a*5 + b*3) % 4 rows of two elements, so that some pairs exchange nothing in one direction.
TEST_F(Comm, P62_UnevenAllToAll) {
  const auto rows = [](int from, int to) -> std::int64_t { return (from * 5 + to * 3) % 4; };
  std::vector<std::int64_t> out, in;
  for (int r = 0; r < n_; ++r) {
    out.push_back(rows(dp_.rank(), r));
    in.push_back(rows(r, dp_.rank()));
  }
  std::vector<double> values;
  for (int r = 0; r < n_; ++r)
    for (std::int64_t i = 0; i < out[std::size_t(r)]; ++i) values.insert(values.end(), {100.0 * dp_.rank() + r, double(i)});
  const auto total_in = std::accumulate(in.begin(), in.end(), std::int64_t{0});
  const Tensor sent = make(values, Dtype::kFp32, stream_).view({std::int64_t(values.size()) / 2, 2});
  const Tensor received = Tensor::empty({total_in, 2}, Dtype::kFp32, MemoryCategory::kWorkspace, stream_);
  dp_.all_to_all(stream_, received, sent, in, out);
  const std::vector<double> got = received.to_doubles(stream_);
  std::size_t at = 0;
  for (int r = 0; r < n_; ++r) {
    for (std::int64_t i = 0; i < in[std::size_t(r)]; ++i, at += 2) {
      EXPECT_EQ(got[at], 100.0 * r + dp_.rank());
      EXPECT_EQ(got[at + 1], double(i));
    }
  }
  EXPECT_EQ(at, got.size());
}

// One rank alone has something to give.
TEST_F(Comm, P62_OneNonEmptyRank) {
  const int giver = n_ - 1;
  const std::vector<std::int64_t> nothing(std::size_t(n_), 0), five(std::size_t(n_), 5);
  std::vector<std::int64_t> in = nothing;
  in[std::size_t(giver)] = 5;
  const Tensor sent = rank_values(dp_.rank(), dp_.rank() == giver ? 5 * n_ : 0, Dtype::kFp32, stream_);
  const Tensor received = Tensor::empty({5}, Dtype::kFp32, MemoryCategory::kWorkspace, stream_);
  dp_.all_to_all(stream_, received, sent, in, dp_.rank() == giver ? five : nothing);
  const std::vector<double> got = received.to_doubles(stream_);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(got[std::size_t(i)], value_at(giver, 5 * dp_.rank() + i));
}

TEST_F(Comm, BroadcastFromEveryRoot) {
  for (Dtype dtype : kDtypes) {
    for (int root = 0; root < n_; ++root) {
      const Tensor x = rank_values(dp_.rank(), 9, dtype, stream_);
      dp_.broadcast(stream_, x, root);
      const std::vector<double> got = x.to_doubles(stream_);
      for (int i = 0; i < 9; ++i) ASSERT_EQ(got[std::size_t(i)], value_at(root, i));
    }
  }
}

// Everyone sends to both neighbours of a ring at once; with two ranks these are one, and messages must not swap.
TEST_F(Comm, BatchesOfMessagesGoRoundARing) {
  dp_.p2p_batch(stream_, {}, {});
  NEEDS_RANKS(2);
  const int next = (dp_.rank() + 1) % n_, previous = (dp_.rank() + n_ - 1) % n_;
  const Tensor to_next = rank_values(dp_.rank(), 40000, Dtype::kFp64, stream_),
               to_previous = rank_values(100 + dp_.rank(), 3, Dtype::kFp64, stream_);
  const Tensor from_next = Tensor::empty({3}, Dtype::kFp64, MemoryCategory::kWorkspace, stream_),
               from_previous = Tensor::empty({40000}, Dtype::kFp64, MemoryCategory::kWorkspace, stream_);
  dp_.p2p_batch(stream_, {{to_next, next}, {to_previous, previous}}, {{from_previous, previous}, {from_next, next}});
  EXPECT_EQ(from_previous.to_doubles(stream_)[17], value_at(previous, 17));
  EXPECT_EQ(from_next.to_doubles(stream_)[2], value_at(100 + next, 2));
}

// Reductions add in rank order and round once: 256 + 1 + 1 is 258 in bf16, whose spacing there is 2, and not 256.
TEST_F(Comm, P13_Bf16SumsRoundOnce) {
  NEEDS_RANK_ORDER;
  const Tensor x = make({dp_.rank() == 0 ? 256.0 : 1.0}, Dtype::kBf16, stream_);
  dp_.all_reduce(stream_, x);
  const double exact = 256.0 + (n_ - 1);
  const double rounded = HostTensor::from_doubles({exact}, {1}, Dtype::kBf16).to_doubles()[0];
  EXPECT_EQ(x.to_doubles(stream_)[0], rounded);
}

TEST_F(Comm, SumsAreTheSameEveryTimeAndOnEveryRank) {
  std::vector<double> values;
  for (int i = 0; i < 1001; ++i) values.push_back(std::sin(i * 0.37 + dp_.rank()) * std::pow(10.0, i % 9));
  Bytes first;
  for (int run = 0; run < 3; ++run) {
    const Tensor x = make(values, Dtype::kFp32, stream_);
    dp_.all_reduce(stream_, x);
    const Bytes bytes = x.to_host(stream_).data;
    if (run == 0) first = bytes;
    EXPECT_EQ(bytes, first);
  }
  for (const Bytes& other : all_gather_on_host(dp_.group(), first)) EXPECT_EQ(other, first);
}

// What a rank sends, added up over the ranks: exactly the ring algorithms' bytes, padding or not.
TEST_F(Comm, TrafficEqualsTheFormulas) {
  NEEDS_RANK_ORDER;
  const auto sent_by_all = [&](const char* op) {
    device().synchronize();
    const TrafficCount mine = world().traffic().total("dp", op, "formula");
    double sum = 0;
    for (const Bytes& b : all_gather_on_host(dp_.group(), to_bytes(double(mine.wire)))) sum += to_number(b);
    return sum;
  };
  const TrafficLedger::Phase phase(world().traffic(), "formula");
  world().traffic().reset();
  for (std::int64_t n : {1, 10, 1001}) dp_.all_reduce(stream_, rank_values(dp_.rank(), n, Dtype::kFp32, stream_));
  EXPECT_EQ(sent_by_all("all_reduce"), 2.0 * (1 + 10 + 1001) * 4 * (n_ - 1));
  EXPECT_EQ(world().traffic().total("dp", "all_reduce", "formula").payload, (1 + 10 + 1001) * 4);
  EXPECT_EQ(world().traffic().total("dp", "all_reduce", "formula").calls, 3);

  const Tensor x = rank_values(dp_.rank(), 6 * n_, Dtype::kBf16, stream_);
  const Tensor shard = Tensor::empty({6}, Dtype::kBf16, MemoryCategory::kWorkspace, stream_);
  dp_.reduce_scatter(stream_, shard, x);
  dp_.all_gather(stream_, x, shard);
  device().synchronize();
  EXPECT_EQ(world().traffic().total("dp", "reduce_scatter", "").wire, 6 * 2 * (n_ - 1));  // of each rank
  EXPECT_EQ(world().traffic().total("dp", "all_gather", "").wire, 6 * 2 * (n_ - 1));
}

// Messages longer than MPI's int can count go in pieces.
TEST_F(Comm, P62_LongMessagesGoInPieces) {
  const std::size_t before = mpi::set_piece_bytes(1000);
  const Tensor x = rank_values(dp_.rank(), 12345, Dtype::kFp32, stream_);
  dp_.all_reduce(stream_, x);
  const std::vector<double> got = x.to_doubles(stream_);
  for (std::int64_t i = 0; i < 12345; ++i) ASSERT_EQ(got[std::size_t(i)], sum_at(i));
  mpi::set_piece_bytes(before);
}

// A kernel that takes long, then communication on another stream that waits for it: it must not send what is not yet there.
TEST_F(Comm, P59_WaitsForTheStream) {
  Stream comm("comm");
  const Tensor x = rank_values(dp_.rank(), 5000, Dtype::kFp64, stream_);
  const Tensor y = Tensor::zeros({5000}, Dtype::kFp64, MemoryCategory::kWorkspace, stream_);
  host_task(stream_, "delay", [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  copy_on_device(stream_, y.raw(), x.raw(), x.bytes());
  order(stream_, comm);
  dp_.all_reduce(comm, y);
  order(comm, stream_);
  EXPECT_EQ(y.to_doubles(stream_)[4999], sum_at(4999));
}

// Who waits for a rank that is late leaves it the cores.
TEST_F(Comm, P60_WaitingTakesLittleProcessorTime) {
  const auto processor_ms = [] { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const Tensor x = rank_values(dp_.rank(), 1000, Dtype::kFp32, stream_);
  barrier_on_host(dp_.group());
  const double before = processor_ms();
  if (dp_.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  dp_.all_reduce(stream_, x);
  device().synchronize();
  EXPECT_LT(processor_ms() - before, 200);
}

// Who gives the others what they need to begin does not go on before they have it. (The ranks are on one host, which has one
// clock; they need not have begun together.)
TEST_F(Comm, P61_TheRootWaitsUntilAllHaveIt) {
  NEEDS_RANKS(2);
  if (dp_.rank() == n_ - 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const double ready = steady_us();
  EXPECT_EQ(to_text(share_on_host(dp_.group(), to_bytes(dp_.rank() == 0 ? "id" : ""))), "id");
  const double after = steady_us();
  const std::vector<Bytes> all = all_gather_on_host(dp_.group(), to_bytes(ready));
  EXPECT_GE(after, to_number(all.back()));
}

// Every rank's clock is an hour ahead of the one before it.
TEST_F(Comm, ClocksAreCompared) {
  const double ahead = 3.6e9 * dp_.rank();
  EXPECT_NEAR(clock_offset_us(dp_.group(), [&] { return steady_us() + ahead; }), -ahead, 1e5);
}

TEST_F(Comm, MisuseIsAnError) {
  const Tensor x = rank_values(0, 4, Dtype::kFp32, stream_);
  const Tensor wrong = rank_values(0, 3, Dtype::kFp32, stream_);
  EXPECT_THROW(dp_.p2p_batch(stream_, {{x, dp_.rank()}}, {}), std::logic_error);
  EXPECT_THROW(dp_.broadcast(stream_, x, n_), std::logic_error);
  EXPECT_THROW(dp_.all_to_all(stream_, wrong, x, {1}, {2, 3, 4}), std::logic_error);
  EXPECT_THROW(dp_.reduce_scatter(stream_, wrong, x), std::logic_error);
  EXPECT_THROW(dp_.all_gather(stream_, x, wrong), std::logic_error);
  const std::vector<std::int64_t> rows(std::size_t(n_), 2);
  const Tensor singles = rank_values(0, 2 * n_, Dtype::kFp32, stream_), doubles = rank_values(0, 2 * n_, Dtype::kFp64, stream_),
               pairs = rank_values(0, 4 * n_, Dtype::kFp32, stream_).view({2 * n_, 2});
  EXPECT_THROW(dp_.all_to_all(stream_, doubles, singles, rows, rows), std::logic_error);
  EXPECT_THROW(dp_.all_to_all(stream_, pairs, singles, rows, rows), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
