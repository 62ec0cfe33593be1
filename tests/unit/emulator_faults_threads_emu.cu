// Mistakes between the threads of a block.
#include <gtest/gtest.h>

#include <utility>

#include "common/device/launch.h"
#include "tests/support/kernel_testing.h"
#include "tests/unit/emulator_faults.h"

namespace ref5d::testing {
namespace {

using emu::Fault;

constexpr unsigned kThreads = 96;  // three warps

// The sum of 64 numbers; each step halves the threads that add.
template <bool kFaulty>
__global__ void tree_reduction(double* out, const double* x) {
  double* sums = shared<double, 64>();
  sums[threadIdx.x] = x[threadIdx.x];
  for (unsigned half = 32; half > 0; half /= 2) {
    if (!kFaulty || half != 16) __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[0] = sums[0];
}

// A tile is filled row by row and read column by column. (It holds zeros before; or the read would be of what nobody wrote.)
template <bool kFaulty>
__global__ void transpose_tile(double* out, const double* x) {
  double* tile = shared<double, 64>();
  const unsigned row = threadIdx.x / 8, column = threadIdx.x % 8;
  tile[threadIdx.x] = 0;
  __syncthreads();
  tile[row * 8 + column] = x[threadIdx.x];
  if (!kFaulty) __syncthreads();
  out[threadIdx.x] = tile[column * 8 + row];
}

// The tile of the next step overwrites what a slow thread still reads.
template <bool kFaulty>
__global__ void walk_in_tiles(double* out, const double* x) {
  double* tile = shared<double, kThreads>();
  double sum = 0;
  for (int step = 0; step < 3; ++step) {
    tile[threadIdx.x] = x[step * kThreads + threadIdx.x];
    __syncthreads();
    sum += tile[kThreads - 1 - threadIdx.x];
    if (!kFaulty) __syncthreads();
  }
  out[threadIdx.x] = sum;
}

// Two reductions in a row: the second begins while the first is still read.
template <bool kFaulty>
__global__ void two_reductions(double* out, const double* x) {
  double* first = shared<double, 3, 0>();
  double total = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const double sum = warp_sum(x[pass * kThreads + threadIdx.x]);
    if (threadIdx.x % kWarpSize == 0) first[threadIdx.x / kWarpSize] = sum;
    __syncthreads();
    for (unsigned w = 0; w < 3; ++w) total += first[w];
    if (!kFaulty) __syncthreads();
  }
  out[threadIdx.x] = total;
}

// Lanes hand numbers on through shared memory: shuffles order nothing there.
template <bool kFaulty>
__global__ void within_a_warp(double* out, const double* x) {
  double* slot = shared<double, kThreads>();
  slot[threadIdx.x] = x[threadIdx.x];
  if (kFaulty) {
    (void)warp_sum(1);
  } else {
    __syncwarp();
  }
  out[threadIdx.x] = slot[threadIdx.x ^ 1u];
}

// The barrier of some threads is not the barrier of the others.
template <bool kFaulty>
__global__ void barrier_in_a_branch(double* out, const double* x) {
  double* slot = shared<double, kThreads>();
  slot[threadIdx.x] = x[threadIdx.x];
  if (kFaulty && threadIdx.x < 40) {  // NOLINT(bugprone-branch-clone)
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = slot[kThreads - 1 - threadIdx.x];
}

// Both branches call the same function, whose barrier is the same line.
template <bool kFaulty>
__global__ void reduction_in_a_branch(double* out, const double* x) {
  double sum = 0;
  if (kFaulty && threadIdx.x < 2 * kWarpSize) {  // NOLINT(bugprone-branch-clone)
    sum = block_sum(x[threadIdx.x]);
  } else {
    sum = block_sum(x[threadIdx.x]);
  }
  out[threadIdx.x] = sum;
}

template <bool kFaulty>
__global__ void leaves_before_the_barrier(double* out, const double* x, unsigned n) {
  double* slot = shared<double, kThreads>();
  const bool mine = threadIdx.x < n;
  if (kFaulty && !mine) return;
  if (mine) slot[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (mine) out[threadIdx.x] = slot[n - 1 - threadIdx.x];
}

// One barrier more for some threads than for the others.
template <bool kFaulty>
__global__ void one_barrier_too_many(double* out, const double* x) {
  for (unsigned step = 0; step < (kFaulty ? 1 + threadIdx.x / 64 : 1); ++step) __syncthreads();
  out[threadIdx.x] = x[threadIdx.x];
}

template <bool kFaulty>
__global__ void shuffle_without_a_lane(double* out, const double* x, unsigned n) {
  if (kFaulty && threadIdx.x >= n) return;
  const double sum = warp_sum(threadIdx.x < n ? x[threadIdx.x] : 0.0);
  if (threadIdx.x < n) out[threadIdx.x] = sum;
}

template <bool kFaulty>
__global__ void shuffle_in_a_branch(double* out, const double* x) {
  double other = 0;
  if (!kFaulty || threadIdx.x % 2 == 0) other = __shfl_down_sync(kAllLanes, x[threadIdx.x], 1);
  out[threadIdx.x] = threadIdx.x % kWarpSize == kWarpSize - 1 ? 0 : other;
}

template <bool kFaulty>
__global__ void shuffle_from_outside_of_the_mask(double* out, const double* x) {
  if (threadIdx.x % kWarpSize >= 16) return;
  out[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], kFaulty ? 16 : 15);
}

template <bool kFaulty>
__global__ void ballot_without_a_lane(int* out) {
  const bool stays = threadIdx.x % kWarpSize < 20;
  const unsigned mask = __ballot_sync(kAllLanes, stays);
  if (!stays) return;
  const unsigned even = __ballot_sync(kFaulty ? kAllLanes : mask, threadIdx.x % 2 == 0);
  out[threadIdx.x] = static_cast<int>(even);
}

// A warp that is not full: 48 threads.
template <bool kFaulty>
__global__ void warp_that_is_not_full(double* out, const double* x) {
  const unsigned mask = kFaulty || threadIdx.x < kWarpSize ? kAllLanes : 0xffffu;
  out[threadIdx.x] = __shfl_xor_sync(mask, x[threadIdx.x], 1);
}

// A counter beside a plain store.
template <bool kFaulty>
__global__ void atomic_beside_a_store(int* counter) {
  if (kFaulty && threadIdx.x == 7) {
    counter[0] = counter[0] + 1;
  } else {
    atomicAdd(counter, 1);
  }
}

// A counter that is read while others still count.
template <bool kFaulty>
__global__ void counter_read_too_early(int* out) {
  int* counter = shared<int, 1>();
  if (threadIdx.x == 0) counter[0] = 0;
  __syncthreads();
  atomicAdd(counter, 2);
  if (!kFaulty) __syncthreads();
  if (threadIdx.x == 0) out[0] = counter[0];
}

// A thread waits for a flag that another one raises; or one that nobody raises.
template <bool kFaulty, unsigned kWaiter>
__global__ void waits_for_a_flag(int* out) {
  int* flag = shared<int, 1>();
  if (threadIdx.x == 0) flag[0] = 0;
  __syncthreads();
  if (threadIdx.x == kWaiter) {
    while (atomicAdd(flag, 0) == 0) continue;
    out[0] = 1;
  } else if (threadIdx.x == kThreads - 1 - kWaiter && !kFaulty) {
    atomicExch(flag, 1);
  }
}

// Two lanes of a warp and one of another read; their warp's barrier orders the two alone with the write.
template <bool kFaulty>
__global__ void written_behind_a_warps_barrier(double* out, const double* x) {
  double* slot = shared<double, 1>();
  if (threadIdx.x == 0) slot[0] = x[0];
  __syncthreads();
  out[threadIdx.x] = slot[0];
  if (kFaulty) {
    __syncwarp();
  } else {
    __syncthreads();
  }
  if (threadIdx.x == 0) slot[0] = 1;
}

// Segments of eight lanes; those that would reach beyond theirs keep their own value.
template <bool kFaulty>
__global__ void shuffles_in_segments(double* out, const double* x) {
  const double v = x[threadIdx.x];
  const double down = __shfl_down_sync(kAllLanes, v, 3, 8), up = __shfl_up_sync(kAllLanes, v, 3, 8);
  const double at = __shfl_sync(kFaulty && threadIdx.x < 8 ? 0xffu : kAllLanes, v, -1, 8);
  out[threadIdx.x] = down + 10 * up + 100 * at;
}

// A row of 40 bytes at a time, of which the last one has fewer.
template <bool kFaulty>
__global__ void library_copy(double* out, const double* x, std::size_t n) {
  const std::size_t begin = threadIdx.x * std::size_t{5}, count = kFaulty ? 5 : min(std::size_t{5}, n - begin);
  if (begin < n) memcpy(out + begin, x + begin, count * sizeof(double));
}

// Two numbers to a word.
template <bool kFaulty>
__global__ void shared_halves(double* out, const double* x) {
  bf16* halves = shared<bf16, 64>();
  halves[threadIdx.x] = bf16(x[0]);
  if (!kFaulty) __syncthreads();
  out[threadIdx.x] = double(halves[63 - threadIdx.x]) - double(bf16(x[0]));
}

// A function that is called as such, from two branches.
[[gnu::noinline]] double with_a_barrier(double v) {
  __syncthreads();
  return v;
}
template <bool kFaulty>
__global__ void calls_in_a_branch(double* out, const double* x) {
  if (kFaulty && threadIdx.x < 2 * kWarpSize) {
    out[threadIdx.x] = with_a_barrier(x[threadIdx.x]) + 1;
  } else {
    out[threadIdx.x] = with_a_barrier(x[threadIdx.x]);
  }
}

std::vector<double> numbers(std::size_t n) { return random_values(static_cast<std::int64_t>(n), 1); }

// Runs a kernel on `n` numbers and expects what `want` says of each output.
template <auto kRight, auto kWrong, typename... Args>
std::function<void(bool)> run(unsigned threads, std::size_t inputs, std::size_t outputs,
                              const std::function<double(const std::vector<double>&, std::size_t)>& want, Args... args) {
  return [=](bool faulty) {
    Stream& s = device().compute();
    const std::vector<double> x = numbers(inputs);
    const Tensor in = device_tensor(x, {static_cast<std::int64_t>(inputs)}, Dtype::kFp64);
    const Tensor out = device_tensor(std::vector<double>(outputs, -1), {static_cast<std::int64_t>(outputs)}, Dtype::kFp64);
    if (faulty) {
      launch<kWrong>(s, 1, threads, out.data<double>(), in.data<double>(), args...);
    } else {
      launch<kRight>(s, 1, threads, out.data<double>(), in.data<double>(), args...);
    }
    s.synchronize();
    const std::vector<double> y = values_of(out);
    for (std::size_t i = 0; !faulty && i < outputs; ++i) EXPECT_NEAR(y[i], want(x, i), 1e-12) << i;
  };
}
// The same for kernels of integers, which all come out as `want`.
template <auto kRight, auto kWrong>
std::function<void(bool)> run_ints(unsigned threads, const std::vector<std::int32_t>& first,
                                   const std::function<int(std::size_t)>& want) {
  return [=](bool faulty) {
    Stream& s = device().compute();
    const Tensor out = device_ints(first, {static_cast<std::int64_t>(first.size())});
    if (faulty) {
      launch<kWrong>(s, 1, threads, out.data<std::int32_t>());
    } else {
      launch<kRight>(s, 1, threads, out.data<std::int32_t>());
    }
    s.synchronize();
    const std::vector<double> y = values_of(out);
    for (std::size_t i = 0; !faulty && i < first.size(); ++i) EXPECT_EQ(y[i], want(i)) << i;
  };
}

template <unsigned kWaiter>
void run_flags(bool faulty) {
  const std::uint64_t before = std::exchange(emu::max_accesses, 100000);
  const Tensor out = device_ints({0}, {1});
  faulty ? launch<waits_for_a_flag<true, kWaiter>>(device().compute(), 1, kThreads, out.data<std::int32_t>())
         : launch<waits_for_a_flag<false, kWaiter>>(device().compute(), 1, kThreads, out.data<std::int32_t>());
  try {
    device().compute().synchronize();
  } catch (...) {
    emu::max_accesses = before;
    throw;
  }
  emu::max_accesses = before;
  EXPECT_EQ(values_of(out)[0], 1);
}

double sum_of(const std::vector<double>& x, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += x[i];
  return sum;
}

}  // namespace

std::vector<PlantedFault> faults_between_threads() {
  using V = const std::vector<double>&;
  const std::string line = "emulator_faults_threads_emu.cu:";
  return {
      {"MissingBarrierInATreeReduction", Fault::kRace, line,
       run<tree_reduction<false>, tree_reduction<true>>(64, 64, 1, [](V x, std::size_t) { return sum_of(x, 0, 64); })},
      {"RacyTile", Fault::kRace, line,
       run<transpose_tile<false>, transpose_tile<true>>(64, 64, 64, [](V x, std::size_t i) { return x[i % 8 * 8 + i / 8]; })},
      {"TileOverwrittenTooEarly", Fault::kRace, line,
       run<walk_in_tiles<false>, walk_in_tiles<true>>(
           kThreads, 3 * kThreads, kThreads,
           [](V x, std::size_t i) { return x[kThreads - 1 - i] + x[2 * kThreads - 1 - i] + x[3 * kThreads - 1 - i]; })},
      {"SecondReductionTooEarly", Fault::kRace, line,
       run<two_reductions<false>, two_reductions<true>>(kThreads, 2 * kThreads, kThreads,
                                                        [](V x, std::size_t) { return sum_of(x, 0, 2 * kThreads); })},
      {"ShuffleTakenForABarrier", Fault::kRace, line,
       run<within_a_warp<false>, within_a_warp<true>>(kThreads, kThreads, kThreads,
                                                      [](V x, std::size_t i) { return x[i ^ 1u]; })},
      {"DivergentBarrier", Fault::kBarrierDivergence, line,
       run<barrier_in_a_branch<false>, barrier_in_a_branch<true>>(kThreads, kThreads, kThreads,
                                                                  [](V x, std::size_t i) { return x[kThreads - 1 - i]; })},
      {"DivergentCallsOfOneFunction", Fault::kBarrierDivergence, line,
       run<reduction_in_a_branch<false>, reduction_in_a_branch<true>>(kThreads, kThreads, kThreads,
                                                                      [](V x, std::size_t) { return sum_of(x, 0, kThreads); })},
      {"EarlyExit", Fault::kEarlyExit, "threads 50-95 gone",
       run<leaves_before_the_barrier<false>, leaves_before_the_barrier<true>>(
           kThreads, 50, 50, [](V x, std::size_t i) { return x[49 - i]; }, 50u)},
      {"OneBarrierTooMany", Fault::kEarlyExit, line,
       run<one_barrier_too_many<false>, one_barrier_too_many<true>>(kThreads, kThreads, kThreads,
                                                                    [](V x, std::size_t i) { return x[i]; })},
      {"ShuffleWithoutALane", Fault::kMissingLane, "threads 50-63 gone",
       run<shuffle_without_a_lane<false>, shuffle_without_a_lane<true>>(
           64, 50, 50, [](V x, std::size_t i) { return i < 32 ? sum_of(x, 0, 32) : sum_of(x, 32, 50); }, 50u)},
      {"ShuffleInABranch", Fault::kMissingLane, line,
       run<shuffle_in_a_branch<false>, shuffle_in_a_branch<true>>(
           64, 64, 64, [](V x, std::size_t i) { return i % 32 == 31 ? 0 : x[i + 1]; })},
      {"ShuffleFromOutsideOfTheMask", Fault::kMissingLane, "lane 16",
       run<shuffle_from_outside_of_the_mask<false>, shuffle_from_outside_of_the_mask<true>>(
           32, 32, 16, [](V x, std::size_t) { return x[15]; })},
      {"BallotWithoutALane", Fault::kMissingLane, line,
       run_ints<ballot_without_a_lane<false>, ballot_without_a_lane<true>>(32, std::vector<std::int32_t>(20, 0),
                                                                           [](std::size_t) { return 0x55555; })},
      {"WarpThatIsNotFull", Fault::kMissingLane, "48 threads",
       run<warp_that_is_not_full<false>, warp_that_is_not_full<true>>(48, 48, 48,
                                                                      [](V x, std::size_t i) { return x[i ^ 1u]; })},
      {"AtomicBesideAStore", Fault::kRace, line,
       run_ints<atomic_beside_a_store<false>, atomic_beside_a_store<true>>(kThreads, {0},
                                                                           [](std::size_t) { return int(kThreads); })},
      {"CounterReadTooEarly", Fault::kRace, line,
       run_ints<counter_read_too_early<false>, counter_read_too_early<true>>(kThreads, {0},
                                                                             [](std::size_t) { return 2 * int(kThreads); })},
      {"FlagThatNobodyRaises", Fault::kEndless, line, run_flags<0>},
      {"FlagThatNobodyRaisesLast", Fault::kEndless, line, run_flags<kThreads - 1>},
      {"WrittenBehindAWarpsBarrier", Fault::kRace, line,
       run<written_behind_a_warps_barrier<false>, written_behind_a_warps_barrier<true>>(kThreads, 1, kThreads,
                                                                                        [](V x, std::size_t) { return x[0]; })},
      {"ShufflesInSegments", Fault::kMissingLane, line,
       run<shuffles_in_segments<false>, shuffles_in_segments<true>>(64, 64, 64,
                                                                    [](V x, std::size_t i) {
                                                                      return x[i % 8 < 5 ? i + 3 : i] +
                                                                             10 * x[i % 8 < 3 ? i : i - 3] +
                                                                             100 * x[i / 8 * 8 + 7];
                                                                    })},
      {"DivergentCallsOfAFunction", Fault::kBarrierDivergence, line,
       run<calls_in_a_branch<false>, calls_in_a_branch<true>>(kThreads, kThreads, kThreads,
                                                              [](V x, std::size_t i) { return x[i]; })},
      {"SharedHalves", Fault::kUninitialized, line,
       run<shared_halves<false>, shared_halves<true>>(64, 1, 64, [](V, std::size_t) { return 0.0; })},
      {"LibraryCopyTooFar", Fault::kOutOfBounds, line,
       run<library_copy<false>, library_copy<true>>(
           32, 23, 23, [](V x, std::size_t i) { return x[i]; }, std::size_t{23})},
  };
}

}  // namespace ref5d::testing
