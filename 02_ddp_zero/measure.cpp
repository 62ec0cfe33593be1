#include "02_ddp_zero/measure.h"

#include <algorithm>

#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/replicas.h"
#include "common/app/output.h"
#include "common/app/parallel_program.h"
#include "common/app/settings.h"
#include "common/device/device.h"

namespace ref5d::data_parallel {

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

Measured measure(const Options& options, const StrategyOptions& strategy, int shard_size, std::int64_t steps, World& world,
                 Mesh& mesh) {
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  TrainerOptions settings = trainer_options(options, model, mesh["dp"].size());
  apply(settings, mesh, strategy, shard_size);
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
  m.report = new_report("02_ddp_zero", options, model);
  fill_report(m.report, options, model, record, Verdict());
  device().synchronize();
  gather_report(m.report, world, mesh, world.traffic());
  std::vector<HostTensor> weights;
  for (auto& [name, tensor] : trainer.global_weights()) weights.push_back(std::move(tensor));
  m.fingerprint = fingerprint(weights);
  return m;
}

}  // namespace ref5d::data_parallel
