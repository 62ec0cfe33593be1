// HSDP's two groups, replicas that stay equal, and axes of one rank.
#include "02_ddp_zero/replicas.h"
#include "common/train/replicas.h"
#include "tests/support/data_parallel_testing.h"

namespace ref5d::testing {
namespace {

class Hsdp : public ParallelTest {
 protected:
  const int n_ = world().size();
};

// Two shard groups of two: gradients 1, 2, 3, 4, then 10, 20, 30, 40.
TEST_F(Hsdp, P06_T3_EarlierMicroBatchesCountOnce) {
  NEEDS_RANKS(4);
  auto mesh = slice_of(4);
  if (!mesh) return;
  const double rank = (*mesh)["dp"].rank() + 1;
  for (const StrategyCase& s : every_strategy(4)) {
    for (const char* model : {"llama", "llama_tied"}) {
      HandFed fed(*mesh, s, storage_of(Dtype::kFp64), variant(model));
      for (int step = 0; step < 2; ++step) {  // the second begins at zero again
        fed.step({rank, 10 * rank});
        EXPECT_EQ(unlike(110.0, fed.held_gradients()), "") << s.text() << " " << model;
      }
      fed.step({rank / 4, 10 * rank / 4});  // the loss divided by the four ranks' equal share
      EXPECT_EQ(unlike(27.5, fed.held_gradients()), "") << s.text() << " " << model;
    }
  }
  // Reduced after each micro-batch, the running sum of the first, 10, is there twice when the second comes.
  StrategyCase wrong = strategy_case("hsdp", 2);
  wrong.options.faults.reduce_before_summing = true;
  HandFed fed(*mesh, wrong, storage_of(Dtype::kFp64), small());
  fed.step({rank, 10 * rank});
  EXPECT_EQ(unlike(120.0, fed.held_gradients()), "");
}

TEST_F(Hsdp, P06_ReducingTheRunningSumIsNoticed) {
  NEEDS_RANKS(2);
  Mesh mesh = dp_mesh();
  const TrainerOptions o = replicated_options(small(), n_, {3, 1});
  const Dataset data = uneven_data(o.model, o.global_batch);
  const RunValues truth = train_alone(mesh, o, data, 1);
  StrategyCase s = strategy_case("hsdp", 1);
  EXPECT_EQ(departure(mesh, train(mesh, o, s, data, 1), truth), "");
  s.options.faults.reduce_before_summing = true;
  expect_departs(mesh, train(mesh, o, s, data, 1), truth, "the running sum reduced");
}

// What each rank has of weights and moments is on all ranks that should have the same.
class Replicas : public ParallelTest {
 protected:
  Mesh mesh_ = dp_mesh();
  const int n_ = world().size();

  // After how many of the steps they are not.
  int unequal_steps(const StrategyCase& s, const TrainerOptions& o, const Dataset& data) {
    int unequal = 0;
    (void)train(mesh_, o, s, data, 3, [&](Trainer& t) {
      std::vector<Tensor> same;
      for (const Parameter* p : t.gpt().parameters()) same.push_back(p->weight);
      if (s.options.kind == "naive" || s.options.kind == "ddp" || s.options.kind == "hsdp") {
        for (const OptimizerState& state : t.optimizer().states()) same.insert(same.end(), {state.m, state.v});
      }
      if (!equal_on_all(data_parallel::holders_of_the_same(mesh_, s.options, s.shard_size), same, t.stream())) ++unequal;
    });
    return unequal;
  }
};

TEST_F(Replicas, P12_AreEqualAfterEveryStep) {
  TrainerOptions o = replicated_options(small(), n_, {2, 1});
  const Dataset data = uneven_data(o.model, 3 * o.global_batch);
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
    o.storage.dtype = dtype;
    for (const StrategyCase& s : strategies(n_)) {
      if (kEmulated && dtype == Dtype::kFp32) continue;
      EXPECT_EQ(unequal_steps(s, o, data), 0) << s.text() << dtype_name(dtype);
    }
  }
  if (n_ == 1) return;
  for (const StrategyCase& s : {strategy_case("ddp"), strategy_case("hsdp", 1)}) {
    TrainerOptions own_seed = o;
    own_seed.storage.seed += static_cast<std::uint64_t>(world().rank());
    EXPECT_EQ(unequal_steps(s, own_seed, data), 3) << s.text() << ", weights of one's own";
  }
  StrategyCase s = strategy_case("zero1");
  s.options.faults.no_weight_gather = true;
  EXPECT_EQ(unequal_steps(s, o, data), 3) << "weights that nobody hands round";
}

// Shard groups of one rank still reduce: hsdp is ddp then, and with one group of all it is zero3.
TEST_F(Replicas, P12_ShardGroupsOfOneAreReduced) {
  NEEDS_RANK_ORDER;
  const TrainerOptions o = replicated_options(small(), n_, {1, 1});
  const Dataset data = uneven_data(o.model, 2 * o.global_batch);
  const RunValues truth = train_alone(mesh_, o, data, 2);
  const RunValues ones = train(mesh_, o, strategy_case("hsdp", 1), data, 2);
  EXPECT_EQ(departure(mesh_, ones, truth), "");
  EXPECT_TRUE(same_bits(mesh_, ones, train(mesh_, o, strategy_case("ddp"), data, 2)));
  const RunValues all = train(mesh_, o, strategy_case("hsdp", n_), data, 2);
  EXPECT_EQ(departure(mesh_, all, truth), "");
  EXPECT_TRUE(same_bits(mesh_, all, train(mesh_, o, strategy_case("zero3"), data, 2)));
}

// The ranks along another axis: each is a data-parallel group of one, and none adds to another. (But for cp, whose ranks have
// other tokens of the same samples: gradients are summed over dp x cp, as ContextParallel.P04 has it.)
TEST_F(Replicas, P12_AnAxisOfOneRankTrainsAlone) {
  for (const MeshSizes& sizes : {MeshSizes{.pp = n_}, MeshSizes{.tp = n_}, MeshSizes{.ep = n_}}) {
    Mesh mesh(sizes, ranks_from(0, n_));
    const int ranks = mesh["dp"].size();
    const TrainerOptions o = replicated_options(small(), ranks, {2, 1});
    const Dataset data = uneven_data(o.model, o.global_batch);
    const RunValues truth = train_alone(mesh, o, data, 1);
    for (const StrategyCase& s : every_strategy(ranks)) {
      if (kEmulated && ranks > 1) continue;
      EXPECT_EQ(departure(mesh, train(mesh, o, s, data, 1), truth), "") << s.text() << " on " << ranks << " of " << n_;
    }
  }
}

}  // namespace
}  // namespace ref5d::testing
