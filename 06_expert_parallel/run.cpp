#include "06_expert_parallel/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/ddp_zero.h"
#include "02_ddp_zero/replicas.h"
#include "03_tensor_parallel/cut.h"
#include "03_tensor_parallel/replica_check.h"
#include "04_seq_context_parallel/context_parallel.h"
#include "04_seq_context_parallel/run.h"
#include "05_pipeline/run.h"
#include "06_expert_parallel/claims.h"
#include "06_expert_parallel/expert_parallel.h"
#include "06_expert_parallel/load.h"
#include "06_expert_parallel/parts.h"
#include "06_expert_parallel/route_file.h"
#include "06_expert_parallel/sabotage.h"
#include "common/app/cost_claims.h"
#include "common/app/layout_run.h"
#include "common/app/sabotage.h"
#include "common/app/settings.h"
#include "common/train/checkpoint.h"

namespace ref5d::expert_parallel {

namespace {

using SequenceOptions = std::optional<sequence_parallel::SequenceParallelOptions>;

// Every dimension of the mesh, in their order: tensor, sequence, context, expert, pipeline, data.
void apply_all(LayoutPlan& l, const Lesson& lesson, Mesh& mesh) {
  const seq_context_parallel::Lesson& stage = lesson.pipeline.stage;
  const auto tensor = seq_context_parallel::apply_cuts(l.settings, mesh, stage);
  (void)apply(l.settings, mesh, lesson.expert,
              {tensor, stage.sp ? SequenceOptions(stage.sequence) : std::nullopt,
               context_parallel::tokens_here(mesh, stage.context, l.settings.model.seq)});
  std::shared_ptr<pipeline::Pipeline> passes;
  if (l.plan) passes = pipeline::apply(l.settings, mesh, l.plan, lesson.pipeline.pipeline);
  data_parallel::apply(l.settings, mesh, stage.strategy, l.shard_size, passes);
}

RankCounts count(const RunRecord& record, const GptConfig& model) {
  RankCounts counts{.expert_flops = record.flops_per_step.count(FlopsKind::kExperts)};
  const auto experts = static_cast<std::size_t>(model.moe.experts);
  for (std::size_t i = 0; i < record.router_load.size(); ++i) {
    const auto n = static_cast<std::int64_t>(record.router_load[i]);
    if (i / experts % 3 == 0) counts.choices += n;
    if (i / experts % 3 == 2) counts.sent += n;
  }
  return counts;
}

// Of this rank, and so of the largest: the first places have the larger shares.
void check_memory(const Layout& layout, const Parts& parts, const data_parallel::StrategyOptions& strategy, World& world,
                  Mesh& mesh) {
  const auto at = [&](const char* axis) { return static_cast<int>(mesh.coordinate(axis)); };
  GptConfig part = layout.model;
  part.vocab = tensor_parallel::share_of(part.vocab, layout.tokens.tp, at("tp")).size();
  part.seq = layout.tokens.sequences.length(at("cp"));
  data_parallel::check_memory(layout.options, part, parts.of({at("pp"), at("edp"), at("ep"), at("cp"), at("tp")}), strategy,
                              world, ", more of them along --ep, --pp, --cp or --tp");
}

// Beside what lesson 03 knows of: routers, and experts that are whole on several ranks along tp.
tensor_parallel::ReplicaCheck replica_check(const Layout& layout, const LayoutPlan& plan, const Lesson& lesson, Mesh& mesh) {
  tensor_parallel::ReplicaCheck check(layout.model, mesh, lesson.pipeline.stage.strategy, plan.shard_size);
  if (layout.model.tied && plan.plan && plan.plan->is_cut()) check.add(Gpt(layout.model).embedding->tokens->name);
  if (layout.tokens.tp == 1) return check;
  Gpt gpt(layout.model);
  cut(gpt, {0, layout.model.moe.experts}, false, layout.tokens.expert_tp, layout.tokens.tp, 0);
  for (const Parameter* p : gpt.parameters())
    for (const Segment& s : p->placement.segments)
      if (s.replicas > 1) check.add(p->name);
  return check;
}

void describe(ValueList& config, const Lesson& lesson, const LayoutPlan& plan, Mesh& mesh) {
  const seq_context_parallel::Lesson& stage = lesson.pipeline.stage;
  set_value(config, "ranks", std::int64_t{mesh.everyone().size()});
  if (mesh.size("ep") > 1) set_value(config, "dispatcher", lesson.expert.dispatcher);
  if (mesh.size("tp") > 1) set_value(config, "expert-tp", lesson.expert.expert_tp);
  set_value(config, "route-replay", lesson.routes);
  set_value(config, "overlap", lesson.expert.overlap);
  set_value(config, "strategy", stage.strategy.kind);
  if (stage.strategy.kind == "hsdp") set_value(config, "shard-size", std::int64_t{plan.shard_size});
  set_value(config, "sp", stage.sp);
  if (stage.sp) set_value(config, "sp-keep", stage.sequence.keep);
  if (mesh.size("cp") > 1) {
    set_value(config, "cp-kind", stage.context.kind);
    set_value(config, "cp-layout", stage.context.layout);
  }
  if (!plan.plan) return;
  set_value(config, "schedule", lesson.pipeline.schedule.name);
  set_value(config, "micro-batches", std::int64_t{plan.plan->schedule.micro_batches});
  set_value(config, "stage-layers", fmt::format("{}", fmt::join(plan.plan->layers, ",")));
}

void print_head(const Options& o, const Lesson& lesson, const Layout& l, const LayoutPlan& plan, const Dataset& data) {
  const MoeConfig& m = l.model.moe;
  const std::string along_tp = l.tokens.tp == 1 ? "" : lesson.expert.expert_tp ? " (experts cut)" : " (whole experts)";
  fmt::print(
      "{}\n{} parameters, of which a token uses {} beside the embedding: {} experts, {} of them and {} shared for each token\n",
      data.description(), l.model.parameter_count(), l.model.matmul_parameter_count(), m.experts, m.top_k, m.shared_experts);
  fmt::print("pp {}{} x edp {} x ep {}{} ({}) x cp {} x tp {}{}{}, {}\n", l.pp,
             plan.plan ? fmt::format(" ({})", lesson.pipeline.schedule.name) : "", l.edp, l.tokens.ep,
             l.tokens.ep > 1 ? fmt::format(" ({})", lesson.expert.dispatcher) : "", lesson.pipeline.stage.strategy.kind, l.cp,
             l.tokens.tp, along_tp, l.sp ? " with sequence parallelism" : "", dtype_name(o.dtype));
  const std::int64_t micro_batches = plan.options.grad_accum;
  fmt::print("{} micro-batch{} of {} sequences of {} for each of {} replicas\n", micro_batches, micro_batches == 1 ? "" : "es",
             o.micro_batch, l.model.seq, l.tokens.dp);
  if (lesson.expert.dispatcher == "hierarchical" && l.tokens.ep > 1 &&
      std::all_of(l.tokens.nodes.begin(), l.tokens.nodes.end(), [](const auto& nodes) { return nodes.size() == 1; }))
    fmt::print(
        "all ranks along ep are on one node, so every token goes straight to its experts (--ranks-per-node sets nodes)\n");
  if (!o.verify) fmt::print("without the baseline no choices are kept: claims that follow from them are left out\n");
  if (lesson.sabotage != nullptr) fmt::print("{}", sabotage_line(o, lesson.sabotage->breaks));
}

// Where choices are not replayed, rounding alone makes some of them others.
void report_other_choices(Report& report, const Options& o, const Lesson& lesson, const LayoutRun& run) {
  if (lesson.routes != "own" || o.dtype == Dtype::kFp64 || !o.verify) return;
  std::int64_t all = 0;
  for (const auto& [key, choices] : run.baseline_routes.chosen) all += std::ssize(choices);
  const std::int64_t others = run.routes.differences(run.baseline_routes);
  set_value(report.values, "compared-choices", all);
  set_value(report.values, "other-choices", others);
  if (!o.quiet) fmt::print("{} of {} choices are not those of the fp64 baseline\n", others, all);
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
  l.shard_size = data_parallel::shard_size_of(lesson.pipeline.stage.strategy, lesson.pipeline.stage.shard_size, world, mesh);
  l.single = trainer_options(l.options, model, mesh["dp"].size(), mesh.everyone().size());
  l.settings = l.single;
  if (lesson.expert.faults.other_weights) l.settings.model.moe.renormalise = !model.moe.renormalise;
  apply_all(l, lesson, mesh);
  return l;
}

Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  tensor_parallel::expect_cuttable(model, static_cast<int>(mesh.size("tp")));
  Lesson planted = lesson;
  if (lesson.sabotage != nullptr) lesson.sabotage->plant(planted, static_cast<int>(mesh.size("ep")));
  LayoutPlan l = plan_layout(options, planted, world, mesh);
  const Layout layout = layout_of(l, lesson, mesh);
  const data_parallel::StrategyOptions& strategy = lesson.pipeline.stage.strategy;
  const Parts parts(layout, l, mesh, strategy);
  check_memory(layout, parts, strategy, world, mesh);
  if (!options.quiet && world.is_root()) print_head(options, lesson, layout, l, data);

  Routes given;
  RouteLog replay(given, RouteLog::Mode::kReplay);
  if (lesson.routes_from_file()) {
    const std::int64_t taken = options.resume.empty() ? 0 : steps_taken_at(options.resume);
    given = read_routes(lesson.routes, model, taken * l.single.global_batch, options.steps * l.single.global_batch);
    l.single.routes = l.settings.routes = &replay;
  }
  const LayoutRun run = run_layout(l.options, l.single, l.settings, data, world, mesh, replica_check(layout, l, lesson, mesh));
  Verdict verdict = compare_with_baseline(l.options, run, world);
  if (options.verify) check_norms(verdict, run.record, mesh);
  Report report = report_layout("06_expert_parallel", options, model, run, verdict, world, mesh);
  describe(report.config, lesson, l, mesh);
  if (world.is_root()) report_other_choices(report, l.options, lesson, run);
  report.experts = gather_load(run.record, layout.tokens, mesh);
  const std::vector<RankCounts> counts = gather_counts(mesh.everyone(), count(run.record, model));
  if (world.is_root() && options.verify) claim_routing(report, layout, lesson.routes_from_file() ? given : run.routes, counts);
  if (world.is_root()) parts.claim_costs(report);
  return report;
}

}  // namespace ref5d::expert_parallel
