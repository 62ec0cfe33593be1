// What the sums add to a step, beside the weight gradients and before them. Ranks that share cores gain nothing from overlap on
// the clock, so the kernels' own times are replayed with a link of a stated speed (common/device/timeline.h).
#include <fmt/format.h>

#include "03_tensor_parallel/experiments.h"
#include "common/app/measure.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/verify/table.h"

namespace ref5d::tensor_parallel {

namespace {
constexpr const char* kNames[] = {"no-overlap", "overlap"};
std::string trace_name(const std::string& prefix, bool overlap) {
  return fmt::format("{}.{}.json", prefix, kNames[overlap ? 1 : 0]);
}
}  // namespace

std::vector<OutputFile> virtual_traces(const std::string& prefix) {
  if (prefix.empty()) return {};
  return {{"--virtual-trace", trace_name(prefix, false)}, {"--virtual-trace", trace_name(prefix, true)}};
}

void overlap_experiment(Experiment& e) {
  if (Device::mode() == "cuda")
    throw InputError("--experiment overlap replays times that MODE=cpu records; on GPUs --trace shows the overlap itself");
  if (e.mesh["tp"].size() == 1) {
    if (e.prints()) fmt::print("\noverlap: left out, since one rank sends nothing; --tp 2 shows it\n");
    return;
  }
  std::vector<std::vector<std::string>> table{
      {"sums of input gradients", "computation, us", "on the link, us", "exposed, us", "of it", "virtual step, us"}};
  double exposed[2] = {};
  std::string fingerprints[2];
  for (const bool overlap : {false, true}) {
    Lesson lesson = e.lesson;
    lesson.sabotage = nullptr;
    lesson.tensor.overlap = overlap;
    const TrainerOptions settings = layout_settings(e.options, lesson, e.world, e.mesh);
    const Measured m = measure("03_tensor_parallel", e.options, settings, 7, e.world, e.mesh);
    const VirtualRun run = replay(m.timeline, e.link);
    exposed[overlap ? 1 : 0] = run.exposed_us();
    fingerprints[overlap ? 1 : 0] = m.fingerprint;
    const double share = run.communication_us > 0 ? run.exposed_us() / run.communication_us : 0;
    table.push_back({overlap ? "beside weight gradients" : "before them", fmt::format("{:.0f}", run.compute_us),
                     fmt::format("{:.0f}", run.communication_us), fmt::format("{:.0f}", run.exposed_us()),
                     fmt::format("{:.0f}%", 100 * share), fmt::format("{:.0f}", run.total_us)});
    if (!e.virtual_trace.empty() && e.world.is_root()) write_virtual_trace(trace_name(e.virtual_trace, overlap), m, run);
  }
  if (!e.world.is_root()) return;
  if (e.default_link)
    e.report.claims.push_back(make_claim("exposed in virtual time: less with overlap than without", 1,
                                         exposed[1] < exposed[0] ? 1 : 0, 0, "",
                                         fmt::format("{:.0f} and {:.0f} us", exposed[1], exposed[0])));
  e.report.claims.push_back(
      make_claim("overlap: final weights that are the same bits", 1, fingerprints[0] == fingerprints[1] ? 1 : 0));
  if (e.prints())
    fmt::print("\nSums beside weight gradients, rank 0, on a link of {:.0f} Mbit/s with {} us per exchange\n{}",
               e.link.bytes_per_us * 8, e.link.latency_us, format_table(table, "lrrrrr"));
}

}  // namespace ref5d::tensor_parallel
