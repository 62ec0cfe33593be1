#include "05_pipeline/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "02_ddp_zero/claims.h"
#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/ddp_zero.h"
#include "02_ddp_zero/replicas.h"
#include "03_tensor_parallel/cut.h"
#include "03_tensor_parallel/replica_check.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "04_seq_context_parallel/context_parallel.h"
#include "04_seq_context_parallel/run.h"
#include "05_pipeline/claims.h"
#include "05_pipeline/pipeline_parallel.h"
#include "05_pipeline/sabotage.h"
#include "common/app/cost_claims.h"
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
  (void)seq_context_parallel::apply_cuts(settings, mesh, lesson.stage);
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

namespace {

void check_memory(const Options& all, const Lesson& lesson, const Plan& plan, World& world, Mesh& mesh, int shard_size) {
  const int tp = mesh["tp"].size(), pp = mesh["pp"].rank();
  Gpt gpt(model_config(all));
  tensor_parallel::cut(gpt, tp, 0);
  cut(gpt, plan, pp);
  GptConfig part = gpt.config();
  part.vocab = tensor_parallel::share_of(part.vocab, tp, 0).size();
  part.seq = context_parallel::tokens_here(mesh, lesson.stage.context, part.seq);
  const auto ranks = static_cast<int>(mesh.size(data_parallel::gradient_axes(mesh)));
  const data_parallel::Layout layout = data_parallel::layout_of(all, gpt, lesson.stage.strategy, ranks, shard_size);
  data_parallel::check_memory(all, part, layout, lesson.stage.strategy, world, ", more of them along --pp, --cp or --tp");
}

void describe(ValueList& config, const Lesson& lesson, const Plan& plan, Mesh& mesh, int shard_size) {
  set_value(config, "ranks", std::int64_t{mesh.everyone().size()});
  set_value(config, "schedule", lesson.schedule.name);
  set_value(config, "micro-batches", std::int64_t{plan.schedule.micro_batches});
  set_value(config, "stages", std::int64_t{plan.schedule.stages});
  if (lesson.schedule.name == "interleaved") set_value(config, "chunks", std::int64_t{lesson.schedule.chunks});
  if (lesson.schedule.group > 0) set_value(config, "group", std::int64_t{lesson.schedule.group});
  if (!lesson.schedule.file.empty()) set_value(config, "schedule-file", lesson.schedule.file);
  set_value(config, "stage-layers", fmt::format("{}", fmt::join(plan.layers, ",")));
  set_value(config, "strategy", lesson.stage.strategy.kind);
  set_value(config, "sp", lesson.stage.sp);
  if (lesson.stage.sp) set_value(config, "sp-keep", lesson.stage.sequence.keep);
  if (mesh.size("cp") > 1) {
    set_value(config, "cp-kind", lesson.stage.context.kind);
    set_value(config, "cp-layout", lesson.stage.context.layout);
  }
  if (lesson.stage.strategy.kind == "hsdp") set_value(config, "shard-size", std::int64_t{shard_size});
}

void print_head(const Options& o, const Lesson& lesson, const Layout& l, const Dataset& data) {
  const Schedule& s = l.plan->schedule;
  const seq_context_parallel::Layout& stage = l.stage;
  fmt::print("{}\n{} parameters, pp {} ({}) x dp {} ({}) x cp {} x tp {}{}, {}\n", data.description(),
             stage.model.parameter_count(), l.ranks(), s.name, stage.dp, stage.strategy, stage.cp, stage.tp,
             stage.sp ? " with sequence parallelism" : "", dtype_name(o.dtype));
  fmt::print("{} micro-batches of {} sequences of {} for each replica{}, through {} stages of {} layers\n", s.micro_batches,
             o.micro_batch, stage.model.seq, o.grad_accum > 1 ? fmt::format(", {} times over", o.grad_accum) : "", s.stages,
             fmt::join(l.plan->layers, ", "));
  if (lesson.sabotage != nullptr) fmt::print("{}", sabotage_line(o, lesson.sabotage->breaks));
}

}  // namespace

LayoutPlan plan_layout(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const GptConfig model = model_config(options);
  auto plan = make_plan(make_schedule(lesson.schedule), model.layers, lesson.pipeline.stage_layers);
  if (lesson.pipeline.faults.receives_by_need) plan = with_receives_by_need(*plan);
  const Options all = with_all_micro_batches(options, *plan);
  mesh.mirror_stages(plan->assignment.copies() && !lesson.pipeline.faults.copies_unsummed);
  const int shard_size = data_parallel::shard_size_of(lesson.stage.strategy, lesson.stage.shard_size, world, mesh);
  const TrainerOptions single = trainer_options(all, model, mesh["dp"].size(), mesh.everyone().size());
  LayoutPlan l{plan, all, single, single, nullptr, shard_size};
  l.pipeline = apply(l.settings, mesh, plan, lesson, shard_size);
  return l;
}

Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  tensor_parallel::expect_cuttable(model, static_cast<int>(mesh.size("tp")));
  Lesson planted = lesson;
  if (lesson.sabotage != nullptr) lesson.sabotage->plant(planted);
  const LayoutPlan l = plan_layout(options, planted, world, mesh);
  check_memory(l.options, lesson, *l.plan, world, mesh, l.shard_size);
  const Layout layout{l.options, l.plan, lesson.schedule, options.grad_accum,
                      seq_context_parallel::layout_of(l.options, lesson.stage, mesh)};
  if (!options.quiet && world.is_root()) print_head(options, lesson, layout, data);

  tensor_parallel::ReplicaCheck replicas(model, mesh, lesson.stage.strategy, l.shard_size);
  if (model.tied && l.plan->is_cut()) replicas.add(Gpt(model).embedding->tokens->name);
  const LayoutRun run = run_layout(options, l.single, l.settings, data, world, mesh, replicas);
  Verdict verdict = compare_with_baseline(options, run, world);
  if (options.verify) check_norms(verdict, run.record, mesh);
  Report report = report_layout("05_pipeline", options, model, run, verdict, world, mesh);
  describe(report.config, lesson, *l.plan, mesh, l.shard_size);
  const FlopsLedger& flops = run.record.flops_per_step;
  const std::vector<RankCounts> counts =
      gather_counts(mesh.everyone(), count(*l.plan, mesh["pp"].rank(), l.pipeline->records().memory(),
                                           flops.count(FlopsKind::kBlockLinear) + flops.count(FlopsKind::kHead)));
  if (world.is_root()) claim_costs(report, layout, lesson.stage.strategy, l.shard_size, counts);
  return report;
}

}  // namespace ref5d::pipeline
