#include "06_expert_parallel/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/ddp_zero.h"
#include "02_ddp_zero/replicas.h"
#include "03_tensor_parallel/cut.h"
#include "03_tensor_parallel/replica_check.h"
#include "04_seq_context_parallel/run.h"
#include "05_pipeline/run.h"
#include "06_expert_parallel/claims.h"
#include "06_expert_parallel/expert_parallel.h"
#include "06_expert_parallel/sabotage.h"
#include "common/app/cost_claims.h"
#include "common/app/layout_run.h"
#include "common/app/sabotage.h"
#include "common/app/settings.h"

namespace ref5d::expert_parallel {

namespace {

using SequenceOptions = std::optional<sequence_parallel::SequenceParallelOptions>;

int shard_size_of(const Lesson& lesson, World& world, Mesh& mesh) {
  const seq_context_parallel::Lesson& stage = lesson.pipeline.stage;
  const bool hsdp = stage.strategy.kind == "hsdp";
  return hsdp ? data_parallel::hsdp_shard_size(stage.shard_size, world, mesh)
              : static_cast<int>(mesh.size(data_parallel::gradient_axes(mesh)));
}

// Every dimension of the mesh, in their order: tensor, sequence, context, expert, pipeline, data.
void apply_all(LayoutPlan& l, const Lesson& lesson, Mesh& mesh) {
  const seq_context_parallel::Lesson& stage = lesson.pipeline.stage;
  const auto tensor = seq_context_parallel::apply_cuts(l.settings, mesh, stage);
  (void)apply(l.settings, mesh, lesson.expert, {tensor, stage.sp ? SequenceOptions(stage.sequence) : std::nullopt});
  std::shared_ptr<pipeline::Pipeline> passes;
  if (l.plan) passes = pipeline::apply(l.settings, mesh, l.plan, lesson.pipeline.pipeline);
  data_parallel::apply(l.settings, mesh, stage.strategy, l.shard_size, passes);
}

RankCounts count(const RunRecord& record, const GptConfig& model) {
  RankCounts counts{.expert_flops = record.flops_per_step.count(FlopsKind::kExperts)};
  const auto experts = static_cast<std::size_t>(model.moe.experts);
  for (const StepResult& step : record.steps) {
    for (std::size_t i = 0; i < step.router_load.size(); ++i) {
      const auto n = static_cast<std::int64_t>(step.router_load[i]);
      if (i / experts % 3 == 0) counts.choices += n;
      if (i / experts % 3 == 2) counts.sent += n;
    }
  }
  return counts;
}

}  // namespace

LayoutPlan plan_layout(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const GptConfig model = model_config(options);
  LayoutPlan l{options, nullptr, {}, {}, 1};
  if (mesh.size("pp") > 1) {
    l.plan = pipeline::make_plan(pipeline::make_schedule(lesson.pipeline.schedule), model.layers,
                                 lesson.pipeline.pipeline.stage_layers);
    l.options = pipeline::with_all_micro_batches(options, *l.plan);
    mesh.mirror_stages(l.plan->assignment.copies());
  }
  l.shard_size = shard_size_of(lesson, world, mesh);
  l.single = trainer_options(l.options, model, mesh["dp"].size(), mesh.everyone().size());
  l.settings = l.single;
  apply_all(l, lesson, mesh);
  return l;
}

Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  tensor_parallel::expect_cuttable(model, static_cast<int>(mesh.size("tp")));
  const LayoutPlan l = plan_layout(options, lesson, world, mesh);
  const seq_context_parallel::Lesson& stage = lesson.pipeline.stage;
  tensor_parallel::ReplicaCheck replicas(model, mesh, stage.strategy, l.shard_size);
  const LayoutRun run = run_layout(l.options, l.single, l.settings, data, world, mesh, replicas);
  Verdict verdict = compare_with_baseline(l.options, run, world);
  Report report = report_layout("06_expert_parallel", options, model, run, verdict, world, mesh);
  const std::vector<RankCounts> counts = gather_counts(mesh.everyone(), count(run.record, model));
  const Layout layout = layout_of(l.options, lesson, mesh);
  if (world.is_root() && options.verify) claim_routing(report, layout, run.routes, counts);
  return report;
}

}  // namespace ref5d::expert_parallel
