#include "02_ddp_zero/data_parallel.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "02_ddp_zero/expert_partials.h"
#include "02_ddp_zero/replicas.h"
#include "common/device/device.h"
#include "common/kernels/elementwise.h"
#include "common/train/gather_parts.h"

namespace ref5d::data_parallel {

GlobalBatch share_of_replica(const GlobalBatch& batch, std::int64_t rank, std::int64_t ranks) {
  const auto rows = static_cast<std::int64_t>(batch.rows.size()), each = rows / ranks;
  if (each * ranks != rows) {
    throw std::logic_error("a global batch of " + std::to_string(rows) + " rows cannot be shared equally by " +
                           std::to_string(ranks) + " replicas");
  }
  GlobalBatch own = batch;
  own.first_sample += rank * each;
  own.replicas = ranks;
  own.rows.assign(batch.rows.begin() + rank * each, batch.rows.begin() + (rank + 1) * each);
  return own;
}

namespace {

// One micro-batch after the other through the whole model.
class OneByOne : public Passes {
 public:
  explicit OneByOne(const Faults& faults, int replicas) : faults_(faults), replicas_(replicas) {}

  void run(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& share, std::int64_t micro_batch,
           Strategy& strategy) override {
    for_each_micro_batch(ctx, loader, share, micro_batch, [&](std::int64_t m, MicroBatch& b) {
      if (faults_.local_label_count) b.loss_scale = mean_of_means(share);
      strategy.begin_micro_batch(m);
      Saved saved;
      gpt.forward(ctx, {}, saved);
      gpt.backward(ctx, {}, saved);
      strategy.end_micro_batch(m);
    });
  }

 private:
  // A fault: the replica's own mean, averaged over the replicas.
  [[nodiscard]] double mean_of_means(const GlobalBatch& own) const {
    std::int64_t labels = 0;
    for (const Row& row : own.rows) labels += count_valid_labels(row);
    return labels == 0 ? 0 : 1.0 / static_cast<double>(labels * replicas_);
  }

  Faults faults_;
  int replicas_;
};

struct DataParallel {
  Communicator& replicas;   // that take different samples
  Communicator& gradients;  // over which gradients are summed: with context parallelism also the ranks of a replica
  Communicator& losses;
  StateRanks ordinary, experts;
  Communicator* ep;  // ranks with other experts; null where there are none
  StorageOptions storage;
  StrategyOptions options;
  std::int64_t micro_batch;
  std::shared_ptr<Passes> passes;
  std::unique_ptr<Strategy> strategy;

  void accumulate(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& batch) const {
    const GlobalBatch own = share_of_replica(batch, replicas.rank(), replicas.size());
    const std::int64_t micro_batches = (static_cast<std::int64_t>(own.rows.size()) + micro_batch - 1) / micro_batch;
    strategy->begin_step(passes->contributions(micro_batches));
    passes->run(gpt, ctx, loader, own, micro_batch, *strategy);
    strategy->end_step();
    const TrafficLedger::Phase phase(world().traffic(), "loss");
    losses.all_reduce(ctx.stream, ctx.loss_sum);
    if (gpt.config().has_experts()) losses.all_reduce(ctx.stream, ctx.aux_loss_sum);
  }

  // Every element counts once: a shard's where shards are summed, an expert's on the ep rank that has it (P19, T2).
  void reduce_partials(Stream& stream, const std::vector<OptimizerState>& states, const Tensor& partials) const {
    const TrafficLedger::Phase phase(world().traffic(), "norm");
    if (options.faults.norm_counts_replicas) return gradients.all_reduce(stream, partials);
    const bool sharded = strategy->shards_gradients() && !options.faults.norm_of_own_shard;
    const ExpertPartials of_experts(states, partials);
    const Tensor sums = of_experts.joined(stream);
    if (!of_experts.empty()) sum_over_experts(stream, sums, sharded);
    if (sharded) ordinary.shard.all_reduce(stream, partials);
    of_experts.replace(stream, sums);
  }

  // Over the ranks that have shards of the same experts, and over those that have others.
  void sum_over_experts(Stream& stream, const Tensor& sums, bool sharded) const {
    if (sharded) experts.shard.all_reduce(stream, sums);
    if (ep != nullptr && !options.faults.experts_left_out_of_norm) ep->all_reduce(stream, sums);
  }
};

}  // namespace

void apply(TrainerOptions& options, Mesh& mesh, const StrategyOptions& strategy, int shard_size,
           std::shared_ptr<Passes> passes) {
  const bool without_cp = strategy.faults.without_cp;
  const auto axes = [&](const std::string& all) { return without_cp ? all.substr(0, all.find("*cp")) : all; };
  const std::string ordinary_axes = axes(gradient_axes(mesh));
  Communicator &replicas = mesh["dp"], &gradients = mesh[ordinary_axes];
  const bool over_cp = mesh.size("cp") > 1 && !without_cp, over_pp = passes && passes->has_stages();
  Communicator& losses = mesh[std::string(over_pp ? "pp*" : "") + (over_cp ? "dp*cp" : "dp")];
  if (passes && strategy.sync_every_micro_batch)
    throw std::logic_error("gradients of several stages cannot be reduced after every micro-batch; shard them for that");
  if (!passes) passes = std::make_shared<OneByOne>(strategy.faults, replicas.size());
  const StateRanks ordinary = state_ranks(mesh, strategy, ordinary_axes, shard_size);
  const StateRanks experts = state_ranks(mesh, strategy, axes(expert_axes(mesh)), expert_shard_size(mesh, shard_size));
  Communicator* ep = mesh.size("ep") > 1 ? &mesh["ep"] : nullptr;
  auto dp = std::make_shared<DataParallel>(DataParallel{replicas, gradients, losses, ordinary, experts, ep, options.storage,
                                                        strategy, options.micro_batch, passes, nullptr});
  // After whatever else is applied to the model: a strategy shards what that leaves.
  options.cut = [dp, before = options.cut](Gpt& gpt) {
    if (before) before(gpt);
    dp->strategy = make_strategy({gpt, device().compute(), dp->ordinary, dp->storage, dp->options, dp->experts});
  };
  options.shard = [dp](Parameter& p) { dp->strategy->shard(p); };
  options.accumulate = [dp](Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& batch) {
    dp->accumulate(gpt, ctx, loader, batch);
  };
  options.after_update = [dp, before = options.after_update](Gpt& gpt, Context& ctx) {
    if (before) before(gpt, ctx);
    dp->strategy->after_update();
    const bool last = dp->gradients.rank() + 1 == dp->gradients.size();
    if (!dp->options.faults.drift || !last) return;
    const double factor = 1 + (dp->storage.dtype == Dtype::kBf16 ? 0x1p-7 : 0x1p-20);  // more than rounding
    for (const Parameter* p : gpt.parameters()) scale(ctx.stream, p->weight, factor);
  };
  options.optimizer.reduce_partials = [dp, before = options.optimizer.reduce_partials](
                                          Stream& stream, const std::vector<OptimizerState>& states, const Tensor& partials) {
    if (before) before(stream, states, partials);
    dp->reduce_partials(stream, states, partials);
  };
  options.gather = gather_parts(mesh.everyone());
  const std::int64_t rows = options.global_batch / replicas.size() * options.model.seq, begin = replicas.rank() * rows;
  options.activation_part = [begin, rows, before = options.activation_part](const std::string& name, ActivationPart& part) {
    if (before) before(name, part);
    if (part.rows.empty()) part.rows = {{0, rows}};
    for (Segment& s : part.rows) s.begin += begin, s.end += begin;  // those of the replica
  };
  options.gather_activation = [everyone = mesh.everyone()](const HostTensor& mine, const ActivationPart& part) {
    return gather_activation(everyone, mine, part);
  };
}

}  // namespace ref5d::data_parallel
