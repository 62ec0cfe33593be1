// A collective costs a fixed time and a time per byte. The bytes of all gradients are the same however they are bundled, the
// number of collectives is not.
#include <fmt/format.h>

#include <set>

#include "02_ddp_zero/claims.h"
#include "02_ddp_zero/experiments.h"
#include "02_ddp_zero/measure.h"
#include "common/app/settings.h"
#include "common/verify/table.h"

namespace ref5d::data_parallel {

void buckets_experiment(Experiment& e) {
  constexpr std::int64_t kSteps = 3;
  const Link link{e.link_latency_us, e.link_mbit / 8};
  std::vector<std::vector<std::string>> table{
      {"bucket", "reductions", "sent per rank and step", "on the link, us", "exposed, us", "virtual step, us", "ms here"}};
  std::set<std::string> fingerprints;
  std::set<std::int64_t> sent;
  for (double kib : {0.0, 16.0, 64.0, 256.0, 1024.0 * 1024}) {
    StrategyOptions s;
    s.kind = "ddp";
    s.bucket_bytes = kib * 1024;
    s.reduce_dtype = e.lesson.strategy.reduce_dtype;
    const Measured m = measure(e.options, s, 1, kSteps, e.world, e.mesh);
    if (!e.world.is_root()) continue;
    fingerprints.insert(m.fingerprint);
    const int ranks = e.mesh["dp"].size();
    const Layout layout = layout_of(e.options, model_config(e.options), s, ranks, ranks);
    std::int64_t calls = 0;
    for (const TrafficRow& t : m.report.traffic)
      if (t.phase == "gradients") calls += t.calls / kSteps;
    sent.insert(measured_traffic(m.report, kSteps).gradients);
    const std::string bucket = kib == 0 ? "a parameter" : kib > 1e5 ? "everything" : fmt::format("{} KiB", kib);
    e.report.claims.push_back(make_claim(fmt::format("buckets of {}: reductions in a step", bucket),
                                         static_cast<double>(layout.groups.size()), static_cast<double>(calls)));
    const VirtualRun run = replay(m.timeline, link);
    table.push_back({bucket, fmt::format("{}", calls), grouped_digits(measured_traffic(m.report, kSteps).gradients / ranks),
                     fmt::format("{:.0f}", run.communication_us), fmt::format("{:.0f}", run.exposed_us()),
                     fmt::format("{:.0f}", run.total_us), fmt::format("{:.1f}", m.step_ms)});
  }
  if (!e.world.is_root()) return;
  e.report.claims.push_back(make_claim("bucket sizes: different numbers of bytes", 1, static_cast<double>(sent.size())));
  if (transport_counts_wire())  // NCCL's order of additions depends on an element's place in the bucket
    e.report.claims.push_back(
        make_claim("bucket sizes: different final weights", 1, static_cast<double>(fingerprints.size()), 0, "", "bit by bit"));
  if (e.prints())
    fmt::print("\nBuckets, on a link of {} Mbit/s with {} us per exchange\n{}", e.link_mbit, e.link_latency_us,
               format_table(table, "lrrrrrr"));
}

}  // namespace ref5d::data_parallel
