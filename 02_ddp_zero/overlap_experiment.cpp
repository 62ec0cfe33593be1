// What communication adds to a step. Ranks that share cores gain nothing from overlap on the clock, so the kernels' own times
// are replayed with a link of a stated speed (common/device/timeline.h).
#include <fmt/format.h>

#include <map>

#include "02_ddp_zero/experiments.h"
#include "02_ddp_zero/measure.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/verify/table.h"

namespace ref5d::data_parallel {

namespace {

struct OverlapVariant {
  const char* name;
  const char* kind;
  bool prefetch;
  [[nodiscard]] std::string trace(const std::string& prefix) const {
    return fmt::format("{}.{}{}.json", prefix, kind, prefetch ? "" : "-no-prefetch");
  }
};
constexpr OverlapVariant kVariants[] = {{"naive", "naive", true},
                                        {"ddp", "ddp", true},
                                        {"zero1", "zero1", true},
                                        {"zero2", "zero2", true},
                                        {"zero3, no prefetch", "zero3", false},
                                        {"zero3", "zero3", true},
                                        {"hsdp", "hsdp", true}};

void claim_less(Experiment& e, const std::map<std::string, VirtualRun>& runs, const char* a, const char* b) {
  e.report.claims.push_back(make_claim(fmt::format("exposed in virtual time: less with {} than with {}", a, b), 1,
                                       runs.at(a).exposed_us() < runs.at(b).exposed_us() ? 1 : 0, 0, "",
                                       fmt::format("{:.0f} and {:.0f} us", runs.at(a).exposed_us(), runs.at(b).exposed_us())));
}

}  // namespace

std::vector<OutputFile> virtual_traces(const std::string& prefix) {
  std::vector<OutputFile> files;
  if (prefix.empty()) return files;
  for (const OverlapVariant& v : kVariants) files.push_back({"--virtual-trace", v.trace(prefix)});
  return files;
}

void overlap_experiment(Experiment& e) {
  if (Device::mode() == "cuda")
    throw InputError("--experiment overlap replays times that MODE=cpu records; on GPUs --trace shows the overlap itself");
  const Link link{e.link_latency_us, e.link_mbit / 8};
  std::map<std::string, VirtualRun> runs;
  std::vector<std::vector<std::string>> table{
      {"strategy", "computation, us", "on the link, us", "exposed, us", "of it", "virtual step, us"}};
  for (const OverlapVariant& v : kVariants) {
    StrategyOptions s;
    s.kind = v.kind;
    s.prefetch = v.prefetch;
    s.bucket_bytes = e.lesson.strategy.bucket_bytes;
    s.reduce_dtype = e.lesson.strategy.reduce_dtype;
    const Measured m = measure(e.options, s, hsdp_shard_size(e.lesson.shard_size, e.world, e.mesh), 7, e.world, e.mesh);
    const VirtualRun run = replay(m.timeline, link);
    runs[v.name] = run;
    const double share = run.communication_us > 0 ? run.exposed_us() / run.communication_us : 0;
    table.push_back({v.name, fmt::format("{:.0f}", run.compute_us), fmt::format("{:.0f}", run.communication_us),
                     fmt::format("{:.0f}", run.exposed_us()), fmt::format("{:.0f}%", 100 * share),
                     fmt::format("{:.0f}", run.total_us)});
    if (!e.virtual_trace.empty() && e.world.is_root()) write_virtual_trace(v.trace(e.virtual_trace), m, run);
  }
  if (!e.world.is_root()) return;
  if (e.mesh["dp"].size() > 1 && e.claims_overlap) {
    claim_less(e, runs, "ddp", "naive");
    claim_less(e, runs, "zero3", "zero3, no prefetch");
  }
  if (e.prints())
    fmt::print("\nCommunication beside computation, rank 0, on a link of {} Mbit/s with {} us per exchange\n{}", e.link_mbit,
               e.link_latency_us, format_table(table, "lrrrrr"));
}

}  // namespace ref5d::data_parallel
