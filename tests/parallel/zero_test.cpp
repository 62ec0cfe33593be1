// ZeRO: what a shard holds, what it must not see, and what it costs.
#include <cmath>
#include <limits>

#include "02_ddp_zero/flat_group.h"
#include "tests/support/data_parallel_testing.h"

namespace ref5d::testing {
namespace {

class Zero : public ParallelTest {
 protected:
  Mesh mesh_ = dp_mesh();
  const int n_ = world().size();

  // Bytes that building a trainer and a step leave in a category.
  std::int64_t bytes_of_gradients(const TrainerOptions& options, const StrategyCase& s, const Dataset& data) {
    TrainerOptions o = options;
    data_parallel::apply(o, mesh_, s.options, s.shard_size);
    const std::int64_t before = device().memory().current(MemoryCategory::kGradients);
    Trainer trainer(o, data);
    (void)trainer.step();
    return device().memory().current(MemoryCategory::kGradients) - before;
  }
};

// Three micro-batches, added to whole gradients of which a shard is reduced at the end, or each reduced at once.
TEST_F(Zero, P10_WholeGradientsOrAReductionOfEachMicroBatch) {
  const TrainerOptions o = replicated_options(variant("llama_tied"), n_, {3, 1});
  const Dataset data = uneven_data(o.model, o.global_batch);
  const RunValues truth = train_alone(mesh_, o, data, 1);
  const Gpt gpt(o.model);
  StrategyCase s = strategy_case("zero2");
  EXPECT_EQ(departure(mesh_, train(mesh_, o, s, data, 1), truth), "");
  std::int64_t shards = 0;
  for (const auto& unit : data_parallel::make_units(gpt, false, n_)) shards += unit.shard_numel();
  EXPECT_EQ(bytes_of_gradients(o, s, data), 8 * shards);

  s.options.keep_full_gradients = true;
  EXPECT_EQ(departure(mesh_, train(mesh_, o, s, data, 1), truth), "");
  EXPECT_EQ(bytes_of_gradients(o, s, data), 8 * data_parallel::make_buckets(gpt, s.options.bucket_bytes, 8, n_).padded_numel());

  for (const StrategyCase& sharded : {strategy_case("zero2"), strategy_case("zero3"), strategy_case("hsdp", 1)}) {
    StrategyCase wrong = sharded;
    wrong.options.faults.last_micro_batch_only = true;
    const RunValues run = train(mesh_, o, wrong, data, 1);
    EXPECT_TRUE(mesh_.everyone().rank != 0 || !departure(mesh_, run, truth).empty()) << wrong.text();
  }
}

// The peak, too: between a unit's backward and its reduction, at most two units are whole.
TEST_F(Zero, P10_WholeGradientsGoAsTheyAreReduced) {
  TrainerOptions o = replicated_options(small(), n_, {2, 1});
  const Dataset data = uneven_data(o.model, o.global_batch);
  const StrategyCase s = strategy_case("zero2");
  const Gpt gpt(o.model);
  std::int64_t shards = 0;
  std::vector<std::int64_t> whole;
  for (const auto& unit : data_parallel::make_units(gpt, false, n_)) {
    shards += unit.shard_numel();
    whole.push_back(unit.padded_numel());
  }
  std::sort(whole.rbegin(), whole.rend());
  data_parallel::apply(o, mesh_, s.options, s.shard_size);
  Trainer trainer(o, data);
  const std::int64_t others = device().memory().current(MemoryCategory::kGradients) - 8 * shards;
  device().memory().reset_peaks();
  (void)trainer.step();
  EXPECT_LE(device().memory().peak(MemoryCategory::kGradients) - others, 8 * (shards + whole[0] + whole[1]));
  EXPECT_GT(device().memory().peak(MemoryCategory::kGradients) - others, 8 * shards);
}

class Sizes : public ParallelTest {
 protected:
  // Parameters of these sizes in one group over four ranks, its padding poisoned, each element with a value of its own.
  static void reduce_and_gather(Communicator& ranks, const std::vector<std::int64_t>& sizes, double padding) {
    Stream& stream = device().compute();
    std::vector<std::unique_ptr<Parameter>> parameters;
    data_parallel::FlatGroup group;
    group.ranks = ranks.size();
    for (std::int64_t n : sizes) {
      parameters.push_back(std::make_unique<Parameter>("of " + std::to_string(n), Shape{n}, Init::kZero, 0, false));
      group.append(*parameters.back());
    }
    const auto value = [](std::int64_t i, int rank) { return static_cast<double>(i * 10 + rank); };
    const Tensor flat = data_parallel::allocate_flat(group.padded_numel(), group.numel, padding, Dtype::kFp64,
                                                     MemoryCategory::kWorkspace, stream);
    for (const auto& m : group.members) {
      std::vector<double> values;
      for (std::int64_t i = m.begin; i < m.end(); ++i) values.push_back(value(i, ranks.rank()));
      group.whole_of(flat, m).copy_from(HostTensor::from_doubles(values, {m.end() - m.begin}, Dtype::kFp64), stream);
    }
    const Tensor shard = group.shard_of(flat, ranks.rank());
    ranks.reduce_scatter(stream, shard, flat);
    std::int64_t owned = 0;
    for (const auto& m : group.members) {
      const FlatRange range = group.range(m, ranks.rank());
      const std::vector<double> sums = group.part_of(shard, m, ranks.rank()).to_doubles(stream);
      EXPECT_EQ(static_cast<std::int64_t>(sums.size()), range.size());
      owned += range.size();
      for (std::int64_t i = 0; i < range.size(); ++i)
        EXPECT_EQ(sums[static_cast<std::size_t>(i)], 40.0 * static_cast<double>(m.begin + range.begin + i) + 6) << i;
    }
    EXPECT_EQ(owned, group.own_numel(ranks.rank()));
    ranks.all_gather(stream, flat, shard);
    for (const auto& m : group.members) {
      const std::vector<double> sums = group.whole_of(flat, m).to_doubles(stream);
      for (std::size_t i = 0; i < sums.size(); ++i)
        EXPECT_EQ(sums[i], 40.0 * static_cast<double>(m.begin + static_cast<std::int64_t>(i)) + 6);
    }
  }
};

TEST_F(Sizes, P11_UnevenSizesAndEmptyShards) {
  NEEDS_RANKS(4);
  auto mesh = slice_of(4);
  if (!mesh) return;
  Communicator& ranks = (*mesh)["dp"];
  for (const double padding : {0.0, 1e3, std::nan("")}) {
    reduce_and_gather(ranks, {1, 3, 5, 10}, padding);
    for (const std::int64_t alone : {1, 3, 5, 10}) reduce_and_gather(ranks, {alone}, padding);
  }
  data_parallel::FlatGroup one;  // an element over four ranks: three have none
  Parameter p("one", {1}, Init::kZero, 0, false);
  one.ranks = 4;
  one.append(p);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(one.own_numel(rank), rank == 0 ? 1 : 0);
}

// Every parameter alone in its bucket, so that some shards are empty; and units of them all.
TEST_F(Zero, P11_PaddingChangesNoBit) {
  NEEDS_RANK_ORDER;
  for (const char* model : {"llama", "gpt2"}) {
    const TrainerOptions o = replicated_options(variant(model), n_, {2, 1});
    const Dataset data = uneven_data(o.model, 2 * o.global_batch);
    for (StrategyCase s : sharded_strategies(n_)) {
      if (kEmulated && (s.options.kind == "hsdp") != (model[0] == 'g')) continue;
      s.options.bucket_bytes = 1;
      const RunValues clean = train(mesh_, o, s, data, 2);
      for (const double padding : {1e3, std::nan("")}) {
        s.options.padding = padding;
        EXPECT_TRUE(same_bits(mesh_, train(mesh_, o, s, data, 2), clean)) << s.text() << model << padding;
      }
    }
  }
}

// The gradient outside of a rank's shard is what zero1 left unreduced: it enters neither norm nor update.
TEST_F(Zero, P20_TheNormSeesTheReducedShardsOnly) {
  const TrainerOptions clean = replicated_options(small(), n_, {2, 1});
  const Dataset data = uneven_data(clean.model, 2 * clean.global_batch);
  const StrategyCase s = strategy_case("zero1");
  const RunValues expected = train(mesh_, clean, s, data, 2);
  for (const double poison : {1e6, std::nan("")}) {
    TrainerOptions o = clean;
    data_parallel::apply(o, mesh_, s.options, s.shard_size);
    const auto accumulate = o.accumulate;
    o.accumulate = [&](Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& batch) {
      accumulate(gpt, ctx, loader, batch);
      for (const Parameter* p : gpt.parameters()) {
        const std::int64_t n = p->local_numel();
        const FlatRange own = flat_range(p->placement, n);
        const Tensor gradient = p->final_gradient().view({n});
        if (own.begin > 0) fill_constant(ctx.stream, gradient.rows(0, own.begin), poison);
        if (own.end < n) fill_constant(ctx.stream, gradient.rows(own.end, n), poison);
      }
    };
    Trainer trainer(o, data);
    EXPECT_TRUE(same_bits(mesh_, values_of_steps(trainer, 2, false), expected)) << poison;
  }
}

TEST_F(Zero, P20_TheNormCountsEachGradientOnce) {
  NEEDS_RANKS(2);
  const TrainerOptions o = replicated_options(small(), n_, {1, 1});
  const Dataset data = uneven_data(o.model, o.global_batch);
  const RunValues truth = train_alone(mesh_, o, data, 1);
  const double norm =
      to_number(broadcast_on_host(mesh_.everyone(), to_bytes(truth.grad_norms.empty() ? 0 : truth.grad_norms[0])));
  for (StrategyCase s : strategies(n_)) {
    EXPECT_NEAR(train(mesh_, o, s, data, 1).grad_norms[0] / norm, 1, 1e-12) << s.text() << ", on every rank";
    const bool sharded = s.options.kind.starts_with("zero") || (s.options.kind == "hsdp" && s.shard_size > 1);
    (sharded ? s.options.faults.norm_of_own_shard : s.options.faults.norm_counts_replicas) = true;
    const double wrong = train(mesh_, o, s, data, 1).grad_norms[0] / norm;
    if (sharded) {
      EXPECT_LT(wrong, 0.999) << s.text();
    } else {
      EXPECT_NEAR(wrong, std::sqrt(n_), 1e-12) << s.text();
    }
  }
}

}  // namespace
}  // namespace ref5d::testing
