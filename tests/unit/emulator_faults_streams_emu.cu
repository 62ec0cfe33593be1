// Mistakes between the blocks of a launch, between streams, and between them and the host.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "common/device/launch.h"
#include "common/device/memory.h"
#include "common/device/polled.h"
#include "tests/support/kernel_testing.h"
#include "tests/unit/emulator_faults.h"

namespace ref5d::testing {
namespace {

using emu::Fault;

constexpr std::int64_t kSize = 300;

// The last block to write wins.
template <bool kFaulty>
__global__ void one_cell_of_two_blocks(float* out) {
  if (threadIdx.x == 0) out[kFaulty ? 0 : blockIdx.x] = 1;
}

// A block reads what another one writes.
template <bool kFaulty>
__global__ void neighbours_result(float* out, const float* x) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, last = gridDim.x * blockDim.x - 1;
  out[i] = 2 * x[i];
  __syncthreads();
  if (threadIdx.x == 0 && i > 0 && kFaulty) out[i] += out[i - 1] + float(last) * 0;
}

// The bounds of what a block writes overlap by one element.
template <bool kFaulty>
__global__ void overlapping_blocks(float* out, std::int64_t n) {
  const std::int64_t begin = blockIdx.x * std::int64_t{100}, end = min(n, begin + 100 + (kFaulty ? 1 : 0));
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) out[i] = 1;
}

__global__ void fill(float* out, std::int64_t n, float value) {
  for (std::int64_t i : grid_range(n)) out[i] = value;
}
// Every thread reads the first element.
__global__ void spread(float* out, const float* x, std::int64_t n) {
  for (std::int64_t i : grid_range(n)) out[i] = x[0];
}
__global__ void add(float* out, const float* x, std::int64_t n, float value) {
  for (std::int64_t i : grid_range(n)) out[i] = x[i] + value;
}

Tensor fresh(Stream& s) { return Tensor::empty({kSize}, Dtype::kFp32, MemoryCategory::kWorkspace, s); }
void expect_all(const Tensor& t, Stream& s, double want) {
  for (double v : t.to_doubles(s)) ASSERT_EQ(v, want);
}
void fill_on(Stream& s, const Tensor& t, float value) { launch<fill>(s, 2, 64, t.data<float>(), kSize, value); }
void add_on(Stream& s, const Tensor& to, const Tensor& from, float value) {
  launch<add>(s, 2, 64, to.data<float>(), from.data<float>(), kSize, value);
}

// Two streams; `body` gets them in either order of creation, since the executor prefers the newer one.
std::function<void(bool)> on_two_streams(const std::function<void(bool faulty, Stream& first, Stream& second)>& body) {
  return [=](bool faulty) {
    for (const bool swapped : {false, true}) {
      Stream a("a"), b("b");
      body(faulty, swapped ? b : a, swapped ? a : b);
      device().synchronize();
    }
  };
}

// An operation that completes late, as communication does: it copies when the third poll asks for it.
void copy_late(Stream& s, const Tensor& to, const Tensor& from) {
  enqueue_polled(s, {"late copy", [] {},
                     [to = to.raw(), from = from.raw(), bytes = to.numel() * 4, polls = 0]() mutable {
                       if (++polls < 3) return false;
                       emu::device_reads(from, static_cast<std::size_t>(bytes));
                       emu::device_writes(to, static_cast<std::size_t>(bytes));
                       emu::move_bytes(to, from, static_cast<std::size_t>(bytes));
                       return true;
                     }});
}

void missing_wait(bool faulty, Stream& first, Stream& second) {
  const Tensor x = fresh(first), y = fresh(second);
  fill_on(first, x, 1);
  if (!faulty) order(first, second);
  add_on(second, y, x, 2);
  if (!faulty) expect_all(y, second, 3);
  second.synchronize();
  order(second, first);  // before x goes
}

// The event was recorded before the work that matters.
void event_recorded_too_early(bool faulty, Stream& first, Stream& second) {
  const Tensor x = fresh(first), y = fresh(second);
  fill_on(first, x, 1);
  Event event;
  event.record(first);
  add_on(first, x, x, 1);
  if (!faulty) event.record(first);
  wait(second, event);
  add_on(second, y, x, 2);
  if (!faulty) expect_all(y, second, 4);
  second.synchronize();
  order(second, first);
}

// The next micro-batch overwrites what the side stream still reads.
void overwritten_too_early(bool faulty, Stream& first, Stream& second) {
  const Tensor x = fresh(first), y = fresh(second);
  fill_on(first, x, 1);
  order(first, second);
  add_on(second, y, x, 2);
  if (!faulty) order(second, first);
  fill_on(first, x, 5);
  order(second, first);
  if (!faulty) expect_all(y, second, 3);
}

// Weights are read by three streams, with many threads, and then overwritten.
void overwritten_while_others_read(bool faulty, Stream& first, Stream& second) {
  Stream third("third");
  const Tensor x = fresh(first);
  fill_on(first, x, 1);
  std::vector<Tensor> out;
  for (Stream* s : {&first, &second, &third}) {
    order(first, *s);
    out.push_back(fresh(*s));
    launch<spread>(*s, 2, 64, out.back().data<float>(), x.data<float>(), kSize);
  }
  order(second, first);
  if (!faulty) order(third, first);
  fill_on(first, x, 5);
  order(third, first);
  if (!faulty) expect_all(out.back(), third, 1);
}

// The second number of a word, where the first one is another stream's affair.
void half_a_word_too_early(bool faulty, Stream& first, Stream& second) {
  const Tensor x = Tensor::empty({kSize}, Dtype::kBf16, MemoryCategory::kWorkspace, first);
  if (!faulty) order(first, second);
  fill_zero(second, x.raw(), 2);
  fill_zero(second, static_cast<std::byte*>(x.raw()) + 2, 2);
  order(second, first);
}

// The buffer goes back to its stream while another one uses it.
void freed_too_early(bool faulty, Stream& first, Stream& second) {
  Tensor x = fresh(first);
  const Tensor y = fresh(second);
  fill_on(first, x, 1);
  order(first, second);
  add_on(second, y, x, 2);
  if (!faulty) order(second, first);
  x = Tensor();
  if (!faulty) expect_all(y, second, 3);
}

// Memory of one stream exists in that stream's order.
void used_before_it_is_allocated(bool faulty, Stream& first, Stream& second) {
  fill_on(first, fresh(first), 1);
  const Tensor x = fresh(first);
  if (!faulty) order(first, second);
  fill_on(second, x, 1);
  order(second, first);
}

void communication_not_awaited(bool faulty, Stream& compute, Stream& comm) {
  const Tensor x = fresh(compute), sum = fresh(compute), y = fresh(compute);
  fill_on(compute, x, 1);
  fill_on(compute, sum, 0);
  order(compute, comm);
  copy_late(comm, sum, x);
  if (!faulty) order(comm, compute);
  add_on(compute, y, sum, 2);
  order(comm, compute);
  if (!faulty) expect_all(y, compute, 3);
}

void gradient_not_ready_for_communication(bool faulty, Stream& compute, Stream& comm) {
  const Tensor x = fresh(compute), sum = fresh(compute);
  fill_on(compute, sum, 0);
  fill_on(compute, x, 0);
  order(compute, comm);
  fill_on(compute, x, 1);
  if (!faulty) order(compute, comm);
  copy_late(comm, sum, x);
  order(comm, compute);
  if (!faulty) expect_all(sum, compute, 1);
}

void host_reads_too_early(bool faulty, Stream& first, Stream& second) {
  const Tensor x = fresh(first);
  fill_on(first, x, 1);
  std::array<float, kSize> host{};
  if (!faulty) order(first, second);
  copy_to_host(second, host.data(), x.raw(), sizeof host);
  for (float v : host) ASSERT_TRUE(faulty || v == 1);
}

Stream& compute() { return device().compute(); }

template <auto kRight, auto kWrong, typename... Args>
std::function<void(bool)> in_blocks(unsigned grid, std::int64_t n, double want, Args... args) {
  return [=](bool faulty) {
    const Tensor out = Tensor::empty({n}, Dtype::kFp32, MemoryCategory::kWorkspace, compute());
    faulty ? launch<kWrong>(compute(), grid, 64, out.data<float>(), args...)
           : launch<kRight>(compute(), grid, 64, out.data<float>(), args...);
    compute().synchronize();
    if (!faulty) expect_all(out, compute(), want);
  };
}

void neighbours(bool faulty) {
  const Tensor x = device_tensor(std::vector<double>(192, 1), {192}, Dtype::kFp32), out = poisoned({192}, Dtype::kFp32);
  faulty ? launch<neighbours_result<true>>(compute(), 3, 64, out.data<float>(), x.data<float>())
         : launch<neighbours_result<false>>(compute(), 3, 64, out.data<float>(), x.data<float>());
  compute().synchronize();
  if (!faulty) expect_all(out, compute(), 2);
}

}  // namespace

std::vector<PlantedFault> faults_between_streams() {
  const std::string line = "emulator_faults_streams_emu.cu:";
  return {
      {"TwoBlocksWriteOneCell", Fault::kRace, "nothing orders the blocks",
       in_blocks<one_cell_of_two_blocks<false>, one_cell_of_two_blocks<true>>(3, 3, 1)},
      {"ResultOfAnotherBlock", Fault::kRace, "nothing orders the blocks", neighbours},
      {"OverlappingBlocks", Fault::kRace, "nothing orders the blocks",
       in_blocks<overlapping_blocks<false>, overlapping_blocks<true>>(3, 250, 1, std::int64_t{250})},
      {"MissingEventWait", Fault::kStreamRace, line, on_two_streams(missing_wait)},
      {"EventRecordedTooEarly", Fault::kStreamRace, line, on_two_streams(event_recorded_too_early)},
      {"OverwrittenTooEarly", Fault::kStreamRace, line, on_two_streams(overwritten_too_early)},
      {"OverwrittenWhileOthersRead", Fault::kStreamRace, line, on_two_streams(overwritten_while_others_read)},
      {"HalfAWordTooEarly", Fault::kStreamRace, "it is allocated on stream", on_two_streams(half_a_word_too_early)},
      {"FreedTooEarly", Fault::kStreamRace, line, on_two_streams(freed_too_early), 1, Fault::kUseAfterFree},
      {"UsedBeforeItIsAllocated", Fault::kStreamRace, line, on_two_streams(used_before_it_is_allocated)},
      {"CommunicationNotAwaited", Fault::kStreamRace, "late copy", on_two_streams(communication_not_awaited)},
      {"GradientNotReadyForCommunication", Fault::kStreamRace, "late copy",
       on_two_streams(gradient_not_ready_for_communication)},
      {"HostReadsTooEarly", Fault::kStreamRace, "copy to host", on_two_streams(host_reads_too_early)},
  };
}

}  // namespace ref5d::testing
