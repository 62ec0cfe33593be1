#include "common/app/parallel_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "common/app/program.h"
#include "common/comm/backend.h"
#include "common/comm/clock.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/io/json.h"

namespace ref5d {

namespace {

// Ranks that do different things wait for each other in vain, or compute what nobody asked for.
void expect_same_flags(World& world, const std::string& name, char** argv) {
  const std::vector<Bytes> names = all_gather_on_host(world.everyone(), to_bytes(name));
  for (std::size_t r = 1; r < names.size(); ++r)
    if (names[r] != names[0])
      throw InputError(fmt::format("rank 0 runs {} and rank {} runs {}; start one program on all ranks", to_text(names[0]), r,
                                   to_text(names[r])));
  Json flags = Json::array();
  for (char** flag = argv + 1; *flag != nullptr; ++flag) flags.push_back(std::string(*flag));
  const std::vector<Bytes> all = all_gather_on_host(world.everyone(), to_bytes(flags.dump()));
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      throw InputError(fmt::format("ranks 0 and {} were started with different flags, {} and {}; give all ranks the same", r,
                                   to_text(all[0]), to_text(all[r])));
}

}  // namespace

int run_parallel_program(const std::string& name, char** argv, const std::function<int(World&)>& body) {
  return run_program(name, argv, [&] {
    World world;
    device().set_threads(threads_per_process(world.local_size()));
    try {
      Device::select(world.local_rank());
      expect_same_flags(world, name, argv);
      const int status = body(world);
      world.order().finish(world.everyone());
      return static_cast<int>(to_number(broadcast_on_host(world.everyone(), to_bytes(static_cast<double>(status)), true)));
    } catch (...) {
      Failure failure = current_failure();
      const std::string by = world.is_root() ? "" : fmt::format("rank {}: ", world.rank());
      world.fail(failure.status, [&] { report_failure(name, {failure.status, by + failure.message}); });
      return failure.status;
    }
  });
}

MeshSizes mesh_sizes(const Options& options, int ranks) {
  std::map<std::string, std::int64_t> sizes;
  std::int64_t others = 1;
  std::string product;
  for (const auto& [axis, size] : options.axes) {
    sizes[axis] = size;
    if (axis != "ep") others *= axis == "dp" ? 1 : size;  // ep is part of dp
    if (axis != "ep") product += fmt::format("{}--{} {}", product.empty() ? "" : " x ", axis, size);
  }
  const auto size = [&](const char* axis) { return sizes.contains(axis) ? sizes[axis] : 1; };
  const std::int64_t dp = sizes.contains("dp") ? sizes["dp"] : ranks / others;
  if (dp * others != ranks)
    throw InputError(fmt::format("{} does not fit {} ranks; start {} ranks, or give sizes whose product is {}", product, ranks,
                                 std::max<std::int64_t>(dp, 1) * others, ranks));
  if (dp % size("ep") != 0)
    throw InputError(fmt::format("--ep {} does not divide the {} data-parallel ranks that it is part of; use a divisor of them",
                                 size("ep"), dp));
  return {size("pp"), dp / size("ep"), size("ep"), size("cp"), size("tp")};
}

void configure_communication(World& world, const Options& options) {
  world.set_timeout(options.timeout);
  if (options.ranks_per_node) world.set_ranks_per_node(*options.ranks_per_node);
  world.order().enable(options.check_order);
  const std::string chosen = choose_backend(options.comm);
  if (world.is_root() && !options.quiet && !chosen.empty()) fmt::print("{}\n", chosen);
}

namespace {

// While it exists, a thread of rank 0 tells the others that this process is alive.
class Heartbeat {
 public:
  explicit Heartbeat(World& world)
      : thread_([&world](const std::stop_token& stop) {
          using std::chrono::nanoseconds;
          const auto period =
              std::clamp<nanoseconds>(world.timeout() / 5, std::chrono::milliseconds(1), std::chrono::seconds(1));
          std::mutex mutex;
          std::unique_lock lock(mutex);
          while (!std::condition_variable_any().wait_for(lock, stop, period, [&] { return stop.stop_requested(); }))
            send_sign_of_life(world.everyone());
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace

std::string on_root(World& world, const std::function<std::string()>& work) {
  Failure outcome{kExitOk, ""};
  if (world.is_root()) {
    try {
      device().set_threads(threads_per_process(1));
      const Heartbeat heartbeat(world);
      outcome.message = work();
      device().set_threads(threads_per_process(world.local_size()));
    } catch (...) {
      outcome = current_failure();
    }
  }
  wait_while_alive(world.everyone());
  outcome.status =
      static_cast<int>(to_number(broadcast_on_host(world.everyone(), to_bytes(static_cast<double>(outcome.status)), true)));
  outcome.message = to_text(broadcast_on_host(world.everyone(), to_bytes(outcome.message), true));
  if (outcome.status == kExitBadInput) throw InputError(outcome.message);
  if (outcome.status != kExitOk) throw RunError(outcome.message);
  return outcome.message;
}

std::vector<TraceSpan> gather_spans(World& world, const std::vector<TraceSpan>& mine) {
  Json rows = Json::array();
  for (const TraceSpan& s : mine) {
    Json row = Json::array({Json(s.stream), Json(s.name), Json(s.start_us), Json(s.duration_us)});
    rows.push_back(std::move(row));
  }
  std::vector<TraceSpan> all;
  const std::vector<Bytes> everyones = gather_on_host(world.everyone(), to_bytes(rows.dump()));
  // Spans count from where their profiler began.
  const double origin = std::chrono::duration<double, std::micro>(device().profiler().origin().time_since_epoch()).count();
  const std::vector<Bytes> origins = gather_on_host(world.everyone(), to_bytes(origin + clock_offset_us(world.everyone())));
  for (std::size_t r = 0; r < everyones.size(); ++r) {
    const double shift = to_number(origins[r]) - to_number(origins[0]);
    for (const Json& row : Json::parse(to_text(everyones[r]), "a rank's trace").items()) {
      all.push_back({static_cast<int>(r),
                     row.at(std::size_t{0}).as_string(),
                     row.at(1).as_string(),
                     row.at(2).as_double() + shift,
                     row.at(3).as_double(),
                     "",
                     {}});
    }
  }
  return all;
}

namespace {

Json memory_to_json(const std::vector<MemoryRow>& memory) {
  Json rows = Json::array();
  for (const MemoryRow& m : memory) rows.push_back(Json::array({Json(m.category), Json(m.current_bytes), Json(m.peak_bytes)}));
  return rows;
}

Json traffic_to_json(const TrafficLedger& ledger) {
  Json rows = Json::array();
  for (const auto& [key, c] : ledger.counts()) {
    if (c == TrafficCount{}) continue;
    rows.push_back(Json::array(
        {Json(key.axis), Json(key.op), Json(key.phase), Json(c.calls), Json(c.payload), Json(c.wire), Json(c.between_nodes)}));
  }
  return rows;
}

void add_traffic(std::map<TrafficKey, TrafficRow>& rows, const Json& counts, bool is_root) {
  for (const Json& row : counts.items()) {
    const TrafficKey key{row.at(std::size_t{0}).as_string(), row.at(1).as_string(), row.at(2).as_string()};
    TrafficRow& t = rows[key];
    t.axis = key.axis;
    t.op = key.op;
    t.phase = key.phase;
    const std::int64_t calls = row.at(3).as_int(), payload = row.at(4).as_int(), wire = row.at(5).as_int();
    if (is_root) {
      t.calls = calls;
      t.payload_bytes = payload;
      t.wire_bytes = wire;
    }
    t.total_calls += calls;
    t.total_payload_bytes += payload;
    t.total_wire_bytes += wire;
    t.total_between_nodes_bytes += row.at(6).as_int();
  }
}

}  // namespace

void gather_report(Report& report, World& world, const Mesh& mesh, const TrafficLedger& ledger) {
  report.mesh = mesh.sizes();
  const Json mine = Json::array({memory_to_json(report.memory), traffic_to_json(ledger)});
  const std::vector<Bytes> all = gather_on_host(world.everyone(), to_bytes(mine.dump()));
  if (!world.is_root()) return;
  report.memory.clear();
  std::map<TrafficKey, TrafficRow> traffic;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Json of_rank = Json::parse(to_text(all[r]), "a rank's report");
    for (const Json& m : of_rank.at(std::size_t{0}).items()) {
      report.memory.push_back(
          {static_cast<std::int64_t>(r), m.at(std::size_t{0}).as_string(), m.at(1).as_int(), m.at(2).as_int()});
    }
    add_traffic(traffic, of_rank.at(1), r == 0);
  }
  for (auto& [key, row] : traffic) {
    row.wire_counted = transport_counts_wire();
    report.traffic.push_back(std::move(row));
  }
}

}  // namespace ref5d
