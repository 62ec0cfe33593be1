#include "05_pipeline/run.h"

#include <fmt/format.h>

#include <algorithm>

#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/ddp_zero.h"
#include "02_ddp_zero/replicas.h"
#include "03_tensor_parallel/replica_check.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "04_seq_context_parallel/context_parallel.h"
#include "04_seq_context_parallel/run.h"
#include "05_pipeline/pipeline_parallel.h"
#include "common/app/layout_run.h"
#include "common/app/sabotage.h"
#include "common/app/settings.h"

namespace ref5d::pipeline {

Options with_all_micro_batches(const Options& options, const Plan& plan) {
  Options all = options;
  all.grad_accum *= plan.schedule.micro_batches;
  return all;
}

std::shared_ptr<Pipeline> apply(TrainerOptions& settings, Mesh& mesh, const std::shared_ptr<const Plan>& plan,
                                const Lesson& lesson, int shard_size) {
  seq_context_parallel::apply_cuts(settings, mesh, lesson.stage);
  std::shared_ptr<Pipeline> pipeline = apply(settings, mesh, plan, lesson.pipeline);
  data_parallel::apply(settings, mesh, lesson.stage.strategy, shard_size, pipeline);
  if (lesson.pipeline.faults.weights_after_reduction) {
    settings.accumulate = [pipeline, before = settings.accumulate](Gpt& gpt, Context& ctx, Loader& loader,
                                                                    const GlobalBatch& batch) {
      before(gpt, ctx, loader, batch);
      pipeline->add_late(ctx.stream);
    };
  }
  return pipeline;
}

Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const GptConfig model = model_config(options);
  const auto plan = make_plan(make_schedule(lesson.schedule), model.layers, lesson.pipeline.stage_layers);
  const Options all = with_all_micro_batches(options, *plan);
  const Dataset data(dataset_options(options, model));
  const auto dp = static_cast<int>(mesh.size("dp"));
  const TrainerOptions single = trainer_options(all, model, dp, mesh.everyone().size());
  TrainerOptions settings = single;
  const int shard_size = static_cast<int>(mesh.size(data_parallel::gradient_axes(mesh)));
  const auto pipeline = apply(settings, mesh, plan, lesson, shard_size);
  const LayoutRun run = run_layout(options, single, settings, data, world, mesh,
                                   tensor_parallel::ReplicaCheck(model, mesh, lesson.stage.strategy, shard_size));
  const Verdict verdict = compare_with_baseline(options, run, world);
  Report report = report_layout("05_pipeline", options, model, run, verdict, world, mesh);
  return report;
}

}  // namespace ref5d::pipeline
