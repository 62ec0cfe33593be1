#include "04_seq_context_parallel/run.h"

#include <fmt/format.h>

#include <algorithm>

#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/ddp_zero.h"
#include "02_ddp_zero/replicas.h"
#include "03_tensor_parallel/replica_check.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "04_seq_context_parallel/claims.h"
#include "04_seq_context_parallel/context_parallel.h"
#include "04_seq_context_parallel/sabotage.h"
#include "common/app/cost_claims.h"
#include "common/app/layout_run.h"
#include "common/app/sabotage.h"
#include "common/app/settings.h"
#include "common/device/device.h"

namespace ref5d::seq_context_parallel {

namespace {

void check_memory(const Options& options, const Lesson& lesson, World& world, Mesh& mesh, int shard_size) {
  const int tp = mesh["tp"].size();
  Gpt gpt(model_config(options));
  tensor_parallel::cut(gpt, tp, 0);
  GptConfig part = gpt.config();
  part.vocab = tensor_parallel::share_of(part.vocab, tp, 0).size();
  part.seq = context_parallel::tokens_here(mesh, lesson.context, part.seq);
  const auto ranks = static_cast<int>(mesh.size(data_parallel::gradient_axes(mesh)));
  const data_parallel::Layout layout = data_parallel::layout_of(options, gpt, lesson.strategy, ranks, shard_size);
  data_parallel::check_memory(options, part, layout, lesson.strategy, world, ", more of them along --cp or --tp");
}

void describe(ValueList& config, const Lesson& lesson, Mesh& mesh, int shard_size) {
  set_value(config, "ranks", std::int64_t{mesh.everyone().size()});
  set_value(config, "strategy", lesson.strategy.kind);
  set_value(config, "overlap", lesson.tensor.overlap);
  set_value(config, "sp", lesson.sp);
  if (lesson.sp) set_value(config, "sp-keep", lesson.sequence.keep);
  if (mesh.size("cp") > 1) {
    set_value(config, "cp-kind", lesson.context.kind);
    set_value(config, "cp-layout", lesson.context.layout);
    if (lesson.context.ulysses_size > 0) set_value(config, "ulysses-size", std::int64_t{lesson.context.ulysses_size});
  }
  if (lesson.strategy.kind == "hsdp") set_value(config, "shard-size", std::int64_t{shard_size});
  if (lesson.memory_cap_mib > 0) set_value(config, "memory-cap", lesson.memory_cap_mib);
}

std::string tokens_of(const context_parallel::SequenceLayout& layout) {
  const std::int64_t least = layout.shortest();
  return least == layout.longest() ? fmt::format("{}", least) : fmt::format("{} or {}", layout.longest(), least);
}

void print_head(const Options& o, const Lesson& lesson, const Layout& l, const Dataset& data) {
  fmt::print("{}\n{} parameters, tp {}{} x cp {}{} x dp {} ({}), {} micro-batch{} of {} sequences of {} for each replica, {}\n",
             data.description(), l.model.parameter_count(), l.tp, l.sp ? " with sequence parallelism" : "", l.cp,
             l.cp > 1 ? fmt::format(" ({}, {})", l.context.kind, l.context.layout) : "", l.dp, l.strategy, o.grad_accum,
             o.grad_accum == 1 ? "" : "es", o.micro_batch, l.model.seq, dtype_name(o.dtype));
  if (l.cp > 1)
    fmt::print("a rank of the cp axis has {} of {} tokens of each sequence\n", tokens_of(l.sequences()), l.model.seq);
  if (lesson.sabotage != nullptr) fmt::print("{}", sabotage_line(o, lesson.sabotage->breaks));
}

// While it lives, a rank's ledger holds no more. (The baseline, which one device trains, is not held to it.)
class MemoryCap {
 public:
  explicit MemoryCap(double mib) {
    device().memory().set_cap(std::max<std::int64_t>(1, static_cast<std::int64_t>(mib * 0x1p20)));
  }
  ~MemoryCap() { device().memory().set_cap(0); }
  MemoryCap(const MemoryCap&) = delete;
  MemoryCap& operator=(const MemoryCap&) = delete;
};

}  // namespace

std::shared_ptr<tensor_parallel::Axis> apply_cuts(TrainerOptions& settings, Mesh& mesh, const Lesson& lesson) {
  std::shared_ptr<tensor_parallel::Axis> axis;
  if (mesh.size("tp") > 1) {
    axis = tensor_parallel::apply(settings, mesh, lesson.tensor);
    const context_parallel::SequenceLayout sequences =
        context_parallel::make_layout(lesson.context.layout, settings.model.seq, static_cast<int>(mesh.size("cp")));
    if (lesson.sp)
      sequence_parallel::apply(settings, mesh, axis, lesson.sequence, sequences.length(static_cast<int>(mesh.coordinate("cp"))),
                               sequences.shortest());
  }
  if (mesh.size("cp") > 1) context_parallel::apply(settings, mesh, lesson.context);
  return axis;
}

void apply(TrainerOptions& settings, Mesh& mesh, const Lesson& lesson, int shard_size) {
  (void)apply_cuts(settings, mesh, lesson);
  data_parallel::apply(settings, mesh, lesson.strategy, shard_size);
}

TrainerOptions layout_settings(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  TrainerOptions settings = trainer_options(options, model_config(options), mesh["dp"].size(), mesh.everyone().size());
  Lesson planted = lesson;
  if (lesson.sabotage != nullptr) lesson.sabotage->plant(settings, planted);
  apply(settings, mesh, planted, data_parallel::shard_size_of(lesson.strategy, lesson.shard_size, world, mesh));
  return settings;
}

Layout layout_of(const Options& options, const Lesson& lesson, const Mesh& mesh) {
  const auto size = [&](const char* axis) { return static_cast<int>(mesh.size(axis)); };
  return {options,   model_config(options), lesson.strategy.kind, lesson.context,
          lesson.sp, lesson.sequence.keep,  size("tp"),           size("cp"),
          size("dp")};
}

Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  const Layout layout = layout_of(options, lesson, mesh);
  const int shard_size = data_parallel::shard_size_of(lesson.strategy, lesson.shard_size, world, mesh);
  tensor_parallel::expect_cuttable(model, layout.tp);
  check_memory(options, lesson, world, mesh, shard_size);
  TrainerOptions settings = layout_settings(options, lesson, world, mesh);
  tensor_parallel::ActivationMeter meter(model.layers);
  std::unique_ptr<MemoryCap> cap;
  settings.cut = [&, before = settings.cut](Gpt& gpt) {
    if (lesson.memory_cap_mib > 0) cap = std::make_unique<MemoryCap>(lesson.memory_cap_mib);
    if (before) before(gpt);
    gpt.hooks.push_back(&meter);
  };
  if (!options.quiet && world.is_root()) print_head(options, lesson, layout, data);

  const TrainerOptions single = trainer_options(options, model, layout.dp, mesh.everyone().size());
  const LayoutRun run = run_layout(options, single, settings, data, world, mesh,
                                   tensor_parallel::ReplicaCheck(model, mesh, lesson.strategy, shard_size));
  cap.reset();
  const Verdict verdict = compare_with_baseline(options, run, world);
  Report report = report_layout("04_seq_context_parallel", options, model, run, verdict, world, mesh);
  describe(report.config, lesson, mesh, shard_size);
  const FlopsLedger& flops = run.record.flops_per_step;
  const std::vector<RankCounts> counts =
      gather_counts(mesh.everyone(), RankCounts{flops.count(FlopsKind::kBlockLinear) + flops.count(FlopsKind::kHead),
                                                flops.count(FlopsKind::kAttention), meter.bytes_per_layer()});
  if (world.is_root())
    claim_costs(report, layout, lesson.strategy, shard_size, counts, global_batch(data, 0, settings.global_batch));
  return report;
}

}  // namespace ref5d::seq_context_parallel
