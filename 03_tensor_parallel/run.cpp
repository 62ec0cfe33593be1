#include "03_tensor_parallel/run.h"

#include <fmt/format.h>

#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/ddp_zero.h"
#include "03_tensor_parallel/claims.h"
#include "03_tensor_parallel/kept_activations.h"
#include "03_tensor_parallel/replica_check.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/app/cost_claims.h"
#include "common/app/layout_run.h"
#include "common/app/sabotage.h"
#include "common/app/settings.h"

namespace ref5d::tensor_parallel {

namespace {

void check_memory(const Options& options, const Lesson& lesson, World& world, Mesh& mesh, int shard_size) {
  Gpt gpt(model_config(options));
  cut(gpt, mesh["tp"].size(), 0);
  GptConfig part = gpt.config();
  part.vocab = share_of(part.vocab, mesh["tp"].size(), 0).size();
  const data_parallel::Layout layout = data_parallel::layout_of(options, gpt, lesson.strategy, mesh["dp"].size(), shard_size);
  data_parallel::check_memory(options, part, layout, lesson.strategy, world, ", more of them along --tp");
}

void describe(ValueList& config, const Lesson& lesson, Mesh& mesh, int shard_size) {
  set_value(config, "ranks", std::int64_t{mesh.everyone().size()});
  set_value(config, "strategy", lesson.strategy.kind);
  set_value(config, "overlap", lesson.tensor.overlap);
  if (lesson.strategy.kind == "hsdp") set_value(config, "shard-size", std::int64_t{shard_size});
}

std::string sizes_of(std::int64_t n, int ranks) {
  const std::int64_t most = share_of(n, ranks, 0).size(), least = share_of(n, ranks, ranks - 1).size();
  return most == least ? fmt::format("{}", most) : fmt::format("{} or {}", most, least);
}

std::string kv_heads_of(const GptConfig& c, int ranks) {
  std::int64_t held = 0;
  for (int r = 0; r < ranks; ++r) held += heads_of(c, ranks, r).kv.size();
  return held == c.kv_heads ? "" : fmt::format(" ({} copies of {})", held, c.kv_heads);
}

void print_head(const Options& o, const Lesson& lesson, const GptConfig& c, const Dataset& data, int tp, int dp) {
  fmt::print("{}\n{} parameters, tp {} x dp {} ({}), {} micro-batch{} of {} sequences of {} for each replica, {}\n",
             data.description(), c.parameter_count(), tp, dp, lesson.strategy.kind, o.grad_accum, o.grad_accum == 1 ? "" : "es",
             o.micro_batch, c.seq, dtype_name(o.dtype));
  fmt::print(
      "a rank of the tp axis has {} of {} query heads with their kv heads{}, {} of {} columns of the MLP, {} of {} "
      "entries of the vocabulary\n",
      sizes_of(c.heads, tp), c.heads, kv_heads_of(c, tp), sizes_of(c.ffn, tp), c.ffn, sizes_of(c.vocab, tp), c.vocab);
  if (lesson.sabotage != nullptr) fmt::print("{}", sabotage_line(o, lesson.sabotage->breaks));
}

}  // namespace

TrainerOptions layout_settings(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const std::int64_t replicas = mesh["dp"].size();
  TrainerOptions settings = trainer_options(options, model_config(options), replicas, mesh.everyone().size());
  TensorParallelOptions tensor = lesson.tensor;
  if (lesson.sabotage != nullptr) lesson.sabotage->plant(settings, tensor.faults, mesh["tp"].rank());
  (void)apply(settings, mesh, tensor);
  data_parallel::apply(settings, mesh, lesson.strategy,
                       data_parallel::shard_size_of(lesson.strategy, lesson.shard_size, world, mesh));
  return settings;
}

Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  const int tp = mesh["tp"].size(), dp = mesh["dp"].size(),
            shard_size = data_parallel::shard_size_of(lesson.strategy, lesson.shard_size, world, mesh);
  expect_cuttable(model, tp);
  check_memory(options, lesson, world, mesh, shard_size);
  TrainerOptions settings = layout_settings(options, lesson, world, mesh);
  ActivationMeter meter(model.layers);
  RankCounts counts;
  settings.cut = [&, before = settings.cut](Gpt& gpt) {
    before(gpt);
    gpt.hooks.push_back(&meter);
    for (const Parameter* p : gpt.parameters()) counts.parameters += p->local_numel();
  };
  if (!options.quiet && world.is_root()) print_head(options, lesson, model, data, tp, dp);

  const LayoutRun run = run_layout(options, trainer_options(options, model, dp, tp * dp), settings, data, world, mesh,
                                   ReplicaCheck(model, mesh, lesson.strategy, shard_size));
  const Verdict verdict = compare_with_baseline(options, run, world);
  Report report = report_layout("03_tensor_parallel", options, model, run, verdict, world, mesh);
  describe(report.config, lesson, mesh, shard_size);
  counts.linear_flops =
      run.record.flops_per_step.count(FlopsKind::kBlockLinear) + run.record.flops_per_step.count(FlopsKind::kHead);
  counts.bytes_per_layer = meter.bytes_per_layer();
  const std::vector<RankCounts> all = gather_counts(mesh.everyone(), counts);
  if (world.is_root()) claim_costs(report, options, lesson.strategy, world, mesh, shard_size, all);
  return report;
}

}  // namespace ref5d::tensor_parallel
