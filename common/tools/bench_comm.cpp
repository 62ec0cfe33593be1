// Speed of communication: time and bandwidth of each operation over all ranks, by size.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "common/app/command_line.h"
#include "common/app/parallel_program.h"
#include "common/device/device.h"
#include "common/device/error.h"

using namespace ref5d;

namespace {

struct Settings {
  std::int64_t min_bytes = 64, max_bytes = 16 << 20;
  std::int64_t repeats = 500;  // of one size, at most
  double seconds = 0.06;       // of one size, about
  std::string operation = "all";
};

// An operation over an array of `bytes`, prepared to be called again and again.
struct Operation {
  const char* name;
  // What travels over a rank's link at the least, as a share of the operation's bytes.
  double bus_factor;
  std::function<std::function<void()>(Communicator&, std::int64_t elements)> prepare;
};

Tensor array(std::int64_t elements) {
  return Tensor::zeros({elements}, Dtype::kFp32, MemoryCategory::kCommunication, device().compute());
}

// Zeros travel like any other numbers, and sums of them stay finite however often they are taken.
std::vector<Operation> operations(int ranks) {
  const double n = ranks, others = (n - 1) / n;
  Stream& s = device().compute();
  return {{"all_reduce", 2 * others,
           [&s](Communicator& c, std::int64_t elements) { return [&s, &c, x = array(elements)] { c.all_reduce(s, x); }; }},
          {"reduce_scatter", others,
           [&s](Communicator& c, std::int64_t elements) {
             return [&s, &c, x = array(elements), shard = array(elements / c.size())] { c.reduce_scatter(s, shard, x); };
           }},
          {"all_gather", others,
           [&s](Communicator& c, std::int64_t elements) {
             return [&s, &c, x = array(elements), shard = array(elements / c.size())] { c.all_gather(s, x, shard); };
           }},
          {"all_to_all", others,
           [&s](Communicator& c, std::int64_t elements) {
             return [&s, &c, to = array(elements), from = array(elements)] { c.all_to_all(s, to, from); };
           }},
          {"broadcast", 1,
           [&s](Communicator& c, std::int64_t elements) { return [&s, &c, x = array(elements)] { c.broadcast(s, x, 0); }; }},
          {"p2p", 1, [&s](Communicator& c, std::int64_t elements) {
             const int right = (c.rank() + 1) % c.size(), left = (c.rank() + c.size() - 1) % c.size();
             return [&s, &c, right, left, to = array(elements), from = array(elements)] {
               c.p2p_batch(s, {{from, right}}, {{to, left}});
             };
           }}};
}

// Every rank's x becomes the largest of them.
void take_largest(Communicator& ranks, std::vector<double>& x) {
  Stream& s = device().compute();
  const Shape shape{static_cast<std::int64_t>(x.size())};
  const Tensor t =
      Tensor::from_host(HostTensor::from_doubles(x, shape, Dtype::kFp64), Dtype::kFp64, MemoryCategory::kCommunication, s);
  ranks.all_reduce(s, t, ReduceOp::kMax);
  x = t.to_host(s).to_doubles();
}

// Microseconds of one call on this rank, which begins when all ranks are there.
double time_once(Communicator& ranks, const Tensor& gate, const std::function<void()>& call) {
  ranks.all_reduce(device().compute(), gate);
  device().synchronize();
  const auto begin = std::chrono::steady_clock::now();
  call();
  device().synchronize();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

struct Times {
  double median, best;  // microseconds
};

// Over calls, of the slowest rank's time. The first calls touch memory for the first time; the quickest
// decides how many are counted, which must be the same on all ranks.
Times time_calls(Communicator& ranks, const std::function<void()>& call, const Settings& settings) {
  const Tensor gate = array(1);
  std::vector<double> us(3);
  for (double& t : us) t = time_once(ranks, gate, call);
  take_largest(ranks, us);
  const double fit = settings.seconds * 1e6 / *std::min_element(us.begin(), us.end()),
               most = static_cast<double>(settings.repeats);
  us.resize(static_cast<std::size_t>(std::clamp(fit, std::min(10.0, most), most)));
  for (double& t : us) t = time_once(ranks, gate, call);
  take_largest(ranks, us);
  const auto middle = us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2);
  std::nth_element(us.begin(), middle, us.end());
  return {*middle, *std::min_element(us.begin(), us.end())};
}

void print_heading(World& world) {
  fmt::print("{} ranks on {} node{}, {}, fp32\n", world.size(), world.node_count(), world.node_count() == 1 ? "" : "s",
             Device::description());
  fmt::print("{:<16}{:>12}{:>14}{:>12}{:>14}{:>14}\n", "operation", "bytes", "median [us]", "best [us]", "alg [GB/s]",
             "bus [GB/s]");
}

void measure(World& world, Communicator& ranks, const Settings& settings) {
  if (world.is_root()) print_heading(world);
  for (const Operation& operation : operations(ranks.size())) {
    if (settings.operation != "all" && settings.operation != operation.name) continue;
    if (world.is_root()) fmt::print("\n");
    for (std::int64_t bytes = settings.min_bytes; bytes <= settings.max_bytes; bytes *= 4) {
      // Parts are equal, so the array is a multiple of the ranks.
      const std::int64_t share = (bytes / 4 + ranks.size() - 1) / ranks.size(), elements = share * ranks.size();
      const Times us = time_calls(ranks, operation.prepare(ranks, elements), settings);
      const double gb_per_s = static_cast<double>(elements * 4) / us.median / 1e3;
      if (!world.is_root()) continue;
      fmt::print("{:<16}{:>12}{:>14.1f}{:>12.1f}{:>14.4f}{:>14.4f}\n", operation.name, elements * 4, us.median, us.best,
                 gb_per_s, gb_per_s * operation.bus_factor);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_parallel_program("bench_comm", argv, [&](World& world) {
    CommandLine line("bench_comm", "Measures each operation of communication over all ranks; start it under mpiexec.");
    Settings settings;
    Options options;
    line.group("Bench");
    line.add_option("--min-bytes", settings.min_bytes, "smallest array; each next one is four times as large", {4, 1LL << 36});
    line.add_option("--max-bytes", settings.max_bytes, "largest array", {4, 1LL << 36});
    line.add_option("--repeats", settings.repeats, "calls of each size, at most", {1, 1000000});
    line.add_option("--seconds", settings.seconds, "time for each size, about", {.min = 0});
    std::vector<std::string> names{"all"};
    for (const Operation& operation : operations(world.size())) names.emplace_back(operation.name);
    line.add_choice("--operation", settings.operation, "what to measure", names);
    line.group("Communication");
    add_communication_flags(line, options);
    for (const char* flag : {"--reduce-dtype", "--check-order"}) line.forbid(flag, "bench_comm only measures, in fp32");
    if (line.parse(argc, argv, world.is_root() ? stdout : nullptr) == ParseOutcome::kEnd) return 0;
    if (world.size() < 2) throw InputError("one rank has nobody to talk to; start several, such as mpiexec -n 2 bench_comm");
    if (settings.max_bytes < settings.min_bytes)
      throw InputError(fmt::format("--max-bytes {} is less than --min-bytes {}", settings.max_bytes, settings.min_bytes));
    configure_communication(world, options);
    Mesh mesh({1, world.size(), 1, 1, 1}, world.everyone().ranks);
    measure(world, mesh["dp"], settings);
    return 0;
  });
}
