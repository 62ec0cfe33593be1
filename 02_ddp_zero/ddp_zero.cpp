#include "02_ddp_zero/ddp_zero.h"

#include <fmt/format.h>

#include "02_ddp_zero/claims.h"
#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/replicas.h"
#include "common/app/layout_run.h"
#include "common/app/sabotage.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/train/host_memory.h"
#include "common/train/replicas.h"

namespace ref5d::data_parallel {

bool groups_are_within_nodes(const World& world, const std::vector<int>& ranks, int size) {
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (world.node(ranks[i]) != world.node(ranks[i - i % static_cast<std::size_t>(size)])) return false;
  return true;
}

int hsdp_shard_size(std::int64_t asked_for, World& world, Mesh& mesh) {
  const std::string axes = gradient_axes(mesh);
  const int ranks = static_cast<int>(mesh.size(axes));
  if (asked_for > 0) {
    if (ranks % asked_for == 0) return static_cast<int>(asked_for);
    throw InputError(fmt::format("--shard-size {} does not divide the {} data-parallel ranks{}; use a divisor of them",
                                 asked_for, ranks, axes == "dp" ? "" : ", with those along cp"));
  }
  const int nodes = world.node_count();
  const std::vector<int>& replicas = mesh[axes].group().ranks;
  if (nodes > 1 && ranks % nodes == 0 && groups_are_within_nodes(world, replicas, ranks / nodes)) return ranks / nodes;
  for (int prime = 2; prime <= ranks; ++prime)
    if (ranks % prime == 0) return ranks / prime;
  return 1;
}

int shard_size_of(const StrategyOptions& strategy, std::int64_t asked_for, World& world, Mesh& mesh) {
  if (strategy.kind == "hsdp") return hsdp_shard_size(asked_for, world, mesh);
  return static_cast<int>(mesh.size(gradient_axes(mesh)));
}

void check_memory(const Options& options, const GptConfig& model, const Layout& layout, const StrategyOptions& strategy,
                  const World& world, const std::string& other_help) {
  if (Device::mode() == "cuda") return;
  const RankMemory m = expected_memory(layout, strategy, 0);
  const std::int64_t logits = options.micro_batch * model.seq * model.vocab * layout.weight_bytes;
  const double rank =
      static_cast<double>(m.parameters_peak + m.master + m.gradients_peak + m.accumulation_peak + m.optimizer + logits);
  const double needed = rank * world.local_size(), memory = physical_memory_bytes();
  if (needed <= memory) return;
  throw InputError(
      fmt::format("{} ranks of this model need at least {:.1f} GiB on a machine that has {:.1f}; use a smaller --model, "
                  "fewer ranks{}, or a --strategy that shards more",
                  world.local_size(), needed / 0x1p30, memory / 0x1p30, other_help));
}

namespace {

void describe(ValueList& config, const StrategyOptions& s, int ranks, int shard_size) {
  set_value(config, "ranks", std::int64_t{ranks});
  set_value(config, "strategy", s.kind);
  set_value(config, "bucket-mb", s.bucket_bytes / 0x1p20);
  set_value(config, "unit", std::string(s.whole_model_unit ? "model" : "block"));
  for (const auto& [key, on] : {std::pair{"overlap", s.overlap},
                                {"prefetch", s.prefetch},
                                {"sync-every-micro-batch", s.sync_every_micro_batch},
                                {"keep-full-gradients", s.keep_full_gradients},
                                {"all-reduce-gradients", s.all_reduce_gradients}})
    set_value(config, key, on);
  if (s.kind == "hsdp") set_value(config, "shard-size", std::int64_t{shard_size});
}

std::string counted(std::int64_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : std::string_view(what).ends_with("h") ? "es" : "s");
}

// Parameters, gradients and moments are cut; what the micro-batch computes is not.
void claim_activations(Verdict& verdict, const RunRecord& run, const RunRecord& big, const Options& options, int replicas) {
  if (options.recompute != "none" || options.attention != "flash") return;
  const auto parts = static_cast<double>(options.grad_accum * replicas);
  verdict.claim(make_claim("activation peak of rank 0: the big batch's / micro-batches of all ranks",
                           static_cast<double>(big.peak(MemoryCategory::kActivations)) / parts,
                           static_cast<double>(run.peak(MemoryCategory::kActivations)), 0.02, "bytes"));
}

void print_head(const Options& options, const Lesson& lesson, const GptConfig& model, const Dataset& data, int ranks,
                int shard_size) {
  fmt::print("{}\n{} parameters, {} with {} of {} sequences of {} each, {}, {}{}\n", data.description(),
             model.parameter_count(), counted(ranks, "rank"), counted(options.grad_accum, "micro-batch"), options.micro_batch,
             model.seq, dtype_name(options.dtype), lesson.strategy.kind,
             lesson.strategy.kind == "hsdp"
                 ? fmt::format(" with {}, {}", counted(shard_size, "shard"), counted(ranks / shard_size, "replica"))
                 : "");
  if (lesson.sabotage != nullptr) fmt::print("{}", sabotage_line(options, lesson.sabotage->breaks));
}

}  // namespace

Report run(const Options& options, const Lesson& lesson, World& world, Mesh& mesh) {
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  const int ranks = mesh["dp"].size(), shard_size = hsdp_shard_size(lesson.shard_size, world, mesh);
  TrainerOptions settings = trainer_options(options, model, ranks);
  const TrainerOptions single = settings;
  StrategyOptions strategy = lesson.strategy;
  const Layout layout = layout_of(options, model, strategy, ranks, strategy.kind == "hsdp" ? shard_size : ranks);
  check_memory(options, model, layout, strategy, world);
  if (lesson.sabotage != nullptr && strategy.kind == "hsdp") check_shows(*lesson.sabotage, shard_size, ranks / shard_size);
  if (lesson.sabotage != nullptr) lesson.sabotage->plant(settings, strategy.faults, world.rank());
  apply(settings, mesh, strategy, shard_size);
  if (!options.quiet && world.is_root()) print_head(options, lesson, model, data, ranks, shard_size);

  const Group holders = holders_of_the_same(mesh, strategy, shard_size);
  const auto agree = [&](Trainer& trainer) {
    std::vector<Tensor> weights;
    for (const Parameter* p : trainer.gpt().parameters()) weights.push_back(p->weight);
    return equal_on_all(holders, weights, trainer.stream());
  };
  const LayoutRun run =
      run_layout(options, single, settings, data, world, mesh, holders.size() > 1 ? agree : std::function<bool(Trainer&)>());
  Verdict verdict = compare_with_baseline(options, run, world);
  if (options.verify && world.is_root()) claim_activations(verdict, run.record, run.baseline(), options, ranks);
  Report report = report_layout("02_ddp_zero", options, model, run, verdict, world, mesh);
  describe(report.config, strategy, ranks, shard_size);
  if (world.is_root()) claim_costs(report, {layout}, strategy);
  return report;
}

}  // namespace ref5d::data_parallel
