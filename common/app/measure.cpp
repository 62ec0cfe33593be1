#include "common/app/measure.h"

#include <algorithm>

#include "common/app/output.h"
#include "common/app/parallel_program.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/io/trace.h"
#include "common/train/replicas.h"

namespace ref5d {

namespace {

// Every step enqueues the same work, so its entries correspond; what else ran beside them differs.
std::vector<TimelineEntry> medians(std::vector<std::vector<TimelineEntry>> steps) {
  std::vector<TimelineEntry> result = steps.back();
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::vector<double> us;
    for (const auto& step : steps)
      if (step.size() == result.size() && step[i].name == result[i].name) us.push_back(step[i].us);
    std::sort(us.begin(), us.end());
    result[i].us = us[us.size() / 2];
  }
  return result;
}

}  // namespace

Measured measure(const std::string& program, const Options& options, const TrainerOptions& settings, std::int64_t steps,
                 World& world, Mesh& mesh) {
  const Dataset data(dataset_options(options, settings.model));
  world.traffic().reset();
  Trainer trainer(settings, data);
  Measured m;
  std::vector<std::vector<TimelineEntry>> timelines;
  Timeline& timeline = device().timeline();
  timeline.start();
  const RunRecord record = record_run(trainer, steps, 0, [&](std::int64_t, const StepResult&) {
    timelines.push_back(timeline.entries());
    m.streams = timeline.streams();
    timeline.start();
  });
  timeline.stop();
  m.timeline = medians(std::move(timelines));
  m.step_ms = record.median_step_ms();
  m.report = new_report(program, options, settings.model);
  m.report.mesh = mesh.sizes();
  fill_report(m.report, options, settings.model, record, Verdict());
  device().synchronize();
  gather_report(m.report, world, mesh, world.traffic());
  std::vector<HostTensor> weights;
  for (auto& [name, tensor] : trainer.global_weights()) weights.push_back(std::move(tensor));
  m.fingerprint = fingerprint(weights);
  return m;
}

void write_virtual_trace(const std::string& path, const Measured& m, const VirtualRun& run) {
  std::vector<TraceSpan> spans;
  for (const VirtualSpan& s : run.spans) {
    spans.push_back({0,
                     m.streams[static_cast<std::size_t>(s.stream)],
                     s.name,
                     s.start_us,
                     s.duration_us,
                     s.communication ? "communication" : "compute",
                     {}});
  }
  write_trace(path, spans);
}

}  // namespace ref5d
