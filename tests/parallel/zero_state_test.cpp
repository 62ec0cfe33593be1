// The optimizer on shards of weights, and shards in checkpoints.
#include <cmath>

#include "02_ddp_zero/flat_group.h"
#include "common/io/safetensors.h"
#include "common/train/checkpoint.h"
#include "tests/support/data_parallel_testing.h"
#include "tests/support/io_testing.h"

namespace ref5d::testing {
namespace {

class ZeroState : public ParallelTest {
 protected:
  Mesh mesh_ = dp_mesh();
  const int n_ = world().size();

  // A folder that rank 0 makes and all ranks see.
  class SharedDir {
   public:
    SharedDir() : path_(to_text(broadcast_on_host(world().everyone(), to_bytes(dir_.path("ck"))))) {}
    [[nodiscard]] const std::string& path() const { return path_; }

   private:
    TempDir dir_;
    std::string path_;
  };

  // What each rank holds of weights, masters, moments and gradients.
  static std::vector<std::vector<double>> state_of(Trainer& t) {
    std::vector<std::vector<double>> all;
    for (const OptimizerState& s : t.optimizer().states()) {
      for (const Tensor& x : {s.parameter->weight, s.parameter->master, s.m, s.v, s.parameter->final_gradient()})
        all.push_back(x ? held_part(*s.parameter, x).to_doubles(t.stream()) : std::vector<double>{});
    }
    return all;
  }
};

// Saved by four ranks, taken up by three and then by five (or as many as there are): the run that never stopped, on one device.
TEST_F(ZeroState, P11_CheckpointsGoFromFourRanksToThreeToFive) {
  const std::int64_t rows = n_ < 5 ? 12 : 60;  // so that they all can share them
  TrainerOptions o = replicated_options(small(), 1, {rows, 5});
  const Dataset data = uneven_data(o.model, 2 * o.global_batch);
  const RunValues truth = train_alone(mesh_, o, data, 3);
  std::vector<std::string> kinds = {"ddp", "zero1", "zero2", "zero3", "hsdp"};
  for (const std::string& kind : kinds) {
    const SharedDir dir;
    std::vector<double> losses, norms;
    NamedValues weights;
    for (const int wanted : {4, 3, 5}) {
      const int ranks = std::min(wanted, n_);
      if (world().rank() < ranks) {
        Mesh mesh({.edp = ranks}, ranks_from(0, ranks));
        StrategyCase s = strategy_case(kind, ranks % 2 == 0 ? 2 : ranks);
        s.options.padding = 1e3;
        TrainerOptions sharded = o;
        data_parallel::apply(sharded, mesh, s.options, s.shard_size);
        Trainer trainer(sharded, data);
        if (wanted != 4) resume(trainer, dir.path());
        const StepResult result = trainer.step();
        losses.push_back(result.loss);
        norms.push_back(result.grad_norm);
        save(trainer, dir.path(), world().is_root());
        weights = trainer.weights();
      }
      barrier_on_host(world().everyone());
    }
    if (!world().is_root()) continue;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(losses[i] / truth.losses[i], 1, 1e-11) << kind << " step " << i;
      EXPECT_NEAR(norms[i] / truth.grad_norms[i], 1, 1e-11) << kind << " step " << i;
    }
    for (const NamedError& e : compare_sets(weights, truth.final_weights, CompareKind::kParameter))
      EXPECT_LE(e.error.relative, 1e-11) << kind << " " << e.name;
  }
}

// bf16 weights with fp32 masters of the shard alone: a run that stops and resumes is the one that does not, in every bit.
TEST_F(ZeroState, P14_Bf16ResumesInEveryBit) {
  TrainerOptions o = replicated_options(variant("llama_tied"), n_, {2, 1});
  o.storage.dtype = Dtype::kBf16;
  const Dataset data = uneven_data(o.model, 3 * o.global_batch);
  for (const StrategyCase& s : sharded_strategies(n_)) {
    const SharedDir dir;
    TrainerOptions sharded = o;
    data_parallel::apply(sharded, mesh_, s.options, s.shard_size);
    std::vector<std::vector<double>> expected;
    double norm = 0;
    {
      Trainer trainer(sharded, data);
      for (int i = 0; i < 2; ++i) (void)trainer.step();
      save(trainer, dir.path(), world().is_root());
      norm = trainer.step().grad_norm;
      expected = state_of(trainer);
    }
    barrier_on_host(world().everyone());
    Trainer trainer(sharded, data);
    resume(trainer, dir.path());
    EXPECT_EQ(trainer.step().grad_norm, norm) << s.text();
    EXPECT_TRUE(state_of(trainer) == expected) << s.text();
    barrier_on_host(world().everyone());
  }
}

// A norm's weight of 1 and ten updates of 1e-3: the master sees them all, the bf16 weight is its rounding.
TEST_F(ZeroState, P14_MastersOfAShardKeepSmallUpdates) {
  for (const StrategyCase& s : strategies(n_)) {
    HandFed fed(mesh_, s, storage_of(Dtype::kBf16), small());
    OptimizerOptions o;
    o.adamw.lr = 1e-3;
    o.adamw.weight_decay = 0;
    o.clip = 0;
    Optimizer optimizer(fed.parameters(), o, fed.stream());
    for (int step = 0; step < 10; ++step) {
      fed.step({1.0 / 64});
      fed.update(optimizer);
    }
    std::int64_t masters = 0;
    for (const Parameter* p : fed.parameters()) {
      if (p->init != Init::kOne) continue;
      const Tensor master = held_part(*p, p->master);
      masters += master.numel();
      EXPECT_EQ(unlike(0.99, master.to_doubles(fed.stream()), 1e-6), "") << s.text();
      // Under zero1 and zero2 other ranks' updates have arrived, too.
      EXPECT_EQ(unlike(0.98828125, p->weight.to_doubles(fed.stream())), "") << s.text();
    }
    double of_all_ranks = 0;
    for (const Bytes& b : all_gather_on_host(mesh_["dp"].group(), to_bytes(static_cast<double>(masters))))
      of_all_ranks += to_number(b);
    EXPECT_GT(of_all_ranks, 0) << s.text();
  }
}

// Without a gradient, decay alone: matrices shrink, norms and biases stay, though a shard's flat array holds both.
TEST_F(ZeroState, P15_DecayOfAFlatArrayIsForMatrices) {
  TrainerOptions o = replicated_options(variant("llama_biases"), n_, {1, 1});
  o.optimizer.adamw.lr = o.optimizer.adamw.weight_decay = 0.1;
  std::vector<Row> rows = some_rows(o.model, o.global_batch);
  for (Row& row : rows) std::fill(row.labels.begin(), row.labels.end(), kIgnoreLabel);
  const Dataset data(rows);
  const SharedDir dir;
  NamedValues start;
  if (world().is_root()) {  // biases that are not zero, or decay would not show
    Trainer trainer(o, data);
    NamedTensors weights = trainer.global_weights();
    for (auto& [name, tensor] : weights) {
      start[name] = tensor.to_doubles();
      for (double& w : start[name]) w += 0.5;
      tensor = HostTensor::from_doubles(start[name], tensor.shape, tensor.dtype);
    }
    write_safetensors(dir.path(), weights);
  }
  barrier_on_host(world().everyone());
  o.load = dir.path();
  const Gpt gpt(o.model);
  for (StrategyCase s : sharded_strategies(n_)) {
    s.options.bucket_bytes = 1e9;
    s.options.whole_model_unit = true;
    for (const bool decay_all : {false, true}) {
      o.optimizer.decay_all = decay_all;
      const RunValues run = train(mesh_, o, s, data, 1);
      if (!world().is_root()) continue;
      for (const Parameter* p : gpt.parameters()) {
        std::vector<double> ratios = run.final_weights.at(p->name);
        for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] /= start[p->name][i];
        const bool shrinks = p->decay || decay_all;
        EXPECT_EQ(unlike(shrinks ? 0.99 : 1, ratios, shrinks ? 1e-14 : 0), "") << s.text() << p->name;
      }
    }
  }
}

// The test above means something only if ranks hold matrices and others in one array, and some are cut between two ranks.
TEST_F(ZeroState, P15_FlatArraysMixMatricesAndOthers) {
  const Gpt gpt(variant("llama_biases"));
  const data_parallel::FlatGroups units = data_parallel::make_units(gpt, true, n_);
  int mixed = 0, cut = 0;
  for (int rank = 0; rank < n_; ++rank) {
    bool decays = false, stays = false;
    for (const auto& m : units[0].members) {
      const std::int64_t size = units[0].range(m, rank).size();
      if (size > 0) (m.parameter->decay ? decays : stays) = true;
      cut += size > 0 && size < m.parameter->local_numel() ? 1 : 0;
    }
    mixed += decays && stays ? 1 : 0;
  }
  EXPECT_GT(mixed, 0);
  EXPECT_TRUE(cut > 0 || n_ == 1);
}

// A first gradient as large as epsilon moves a weight by half the learning rate.
TEST_F(ZeroState, P16_EpsilonIsOutsideOfTheRootOnShardsToo) {
  const std::pair<AdamwOptions::Epsilon, double> cases[] = {{AdamwOptions::Epsilon::kOutside, 0.5},
                                                            {AdamwOptions::Epsilon::kInsideRoot, 1e-4},
                                                            {AdamwOptions::Epsilon::kBeforeCorrection, 0.03065}};
  for (const StrategyCase& s : strategies(n_)) {
    for (const auto& [epsilon, expected] : cases) {
      if (kEmulated && expected != 0.5 && s.options.kind != "zero1") continue;
      HandFed fed(mesh_, s, storage_of(Dtype::kFp64), small());
      OptimizerOptions o;
      o.adamw = {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0, .epsilon = epsilon};
      o.clip = 0;
      Optimizer optimizer(fed.parameters(), o, fed.stream());
      std::vector<double> before, after;
      for (const Parameter* p : fed.parameters()) fed.append(before, p->weight);
      fed.step({world().is_root() ? 1e-8 : 0.0});
      fed.update(optimizer);
      for (const Parameter* p : fed.parameters()) fed.append(after, p->weight);
      for (std::size_t i = 0; i < after.size(); ++i) after[i] = (before[i] - after[i]) / expected;
      EXPECT_EQ(unlike(1, after, epsilon == AdamwOptions::Epsilon::kOutside ? 1e-12 : 1e-3), "") << s.text();
    }
  }
}

}  // namespace
}  // namespace ref5d::testing
