// Help for testing data parallelism: every strategy's runs beside a single device's, and strategies that are handed gradients
// instead of computing them.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/replicas.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/random.h"
#include "common/verify/run_checks.h"
#include "tests/support/model_testing.h"
#include "tests/support/parallel_testing.h"

namespace ref5d::testing {

using data_parallel::StrategyOptions;

struct StrategyCase {
  StrategyOptions options;
  int shard_size = 1;  // of hsdp
  [[nodiscard]] std::string text() const {
    return options.kind + (options.kind == "hsdp" ? " in shards of " + std::to_string(shard_size) : "");
  }
};

inline StrategyCase strategy_case(const std::string& kind, int shard_size = 1) {
  StrategyCase s;
  s.options.kind = kind;
  s.options.bucket_bytes = 1500;  // some buckets of one parameter, some of several
  s.shard_size = shard_size;
  return s;
}

// All of them on so many ranks, hsdp with every size of shard groups.
inline std::vector<StrategyCase> every_strategy(int ranks) {
  std::vector<StrategyCase> all;
  for (const std::string& kind : data_parallel::strategy_names()) {
    for (int shard_size = 1; shard_size <= (kind == "hsdp" ? ranks : 1); ++shard_size)
      if (ranks % shard_size == 0) all.push_back(strategy_case(kind, shard_size));
  }
  return all;
}

// In the emulator a step costs tens of milliseconds: there what does not depend on it is tested with fewer cases.
#ifdef REF5D_EMU
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

// All of them; in the emulator, hsdp with one size of its groups.
inline std::vector<StrategyCase> strategies(int ranks) {
  std::vector<StrategyCase> all = every_strategy(ranks);
  if (!kEmulated) return all;
  int middle = 1;
  for (int d = 1; d * d <= ranks; ++d)
    if (ranks % d == 0) middle = d;
  std::erase_if(all, [&](const StrategyCase& s) { return s.options.kind == "hsdp" && s.shard_size != middle; });
  return all;
}

// Those in which each rank updates a shard alone.
inline std::vector<StrategyCase> sharded_strategies(int ranks) {
  std::vector<StrategyCase> all = strategies(ranks);
  std::erase_if(all, [](const StrategyCase& s) { return s.options.kind == "naive" || s.options.kind == "ddp"; });
  return all;
}

// The world cut into groups of `size` ranks side by side: this rank's, if it is in a full one.
inline std::optional<Mesh> slice_of(int size) { return world_slice({.edp = size}); }

// Rows of which some have many labels and some few.
inline Dataset uneven_data(const GptConfig& c, std::int64_t count) {
  std::vector<Row> rows = some_rows(c, count);
  for (std::size_t r = 0; r < rows.size(); ++r)
    std::fill_n(rows[r].labels.begin(), r * 5 % static_cast<std::size_t>(c.seq), kIgnoreLabel);
  return Dataset(rows);
}

// Of a replica's share: how many rows, and how they are cut.
struct Accumulation {
  std::int64_t rows, micro_batch;
};

// The settings of a run on `ranks` replicas; alone, it takes the same global batch.
inline TrainerOptions replicated_options(const GptConfig& c, std::int64_t ranks, Accumulation a) {
  TrainerOptions o = options_for(c, ranks * a.rows, a.micro_batch);
  o.optimizer.adamw.lr = 0.02;
  o.optimizer.clip = 0.1;  // below the norms of these models, so that the norm counts
  return o;
}

using OnStep = std::function<void(Trainer&)>;

// What is compared of a run's steps. Gathering costs more than a step of such models, so the initial weights are left out where
// nothing reads them.
inline RunValues values_of_steps(Trainer& trainer, std::int64_t steps, bool initial, const OnStep& on_step = {}) {
  RunValues values;
  if (initial) values.initial = trainer.weights();
  for (std::int64_t s = 0; s < steps; ++s) {
    const StepResult result = trainer.step();
    values.losses.push_back(result.loss);
    values.grad_norms.push_back(result.grad_norm);
    if (s == 0) values.gradients = trainer.gradients();
    if (on_step) on_step(trainer);
  }
  values.final_weights = trainer.weights();
  values.epsilon = trainer.options().optimizer.epsilon_before_clip(values.grad_norms.at(0));
  return values;
}

// On the ranks of the mesh; tensors end up on its rank 0 alone, but for those that are whole everywhere.
inline RunValues train(Mesh& mesh, TrainerOptions o, const StrategyCase& s, const Dataset& data, std::int64_t steps,
                       const OnStep& on_step = {}) {
  data_parallel::apply(o, mesh, s.options, s.shard_size);
  Trainer trainer(o, data);
  return values_of_steps(trainer, steps, o.storage.dtype != Dtype::kFp64, on_step);
}
// The same on one device, the batch in one piece; nothing on ranks that would have nothing to compare.
inline RunValues train_alone(const Mesh& mesh, TrainerOptions o, const Dataset& data, std::int64_t steps) {
  if (mesh.everyone().rank != 0) return {};
  o.micro_batch = o.global_batch;
  o.recompute = Recompute::kNone;
  Trainer trainer(o, data);
  return values_of_steps(trainer, steps, true);
}

// What of a run departs from the fp64 truth; "" on ranks that have no tensors.
inline std::string departure(const Mesh& mesh, const RunValues& run, const RunValues& truth, Dtype dtype = Dtype::kFp64,
                             const RunValues* own = nullptr) {
  if (mesh.everyone().rank != 0) return "";
  Verdict verdict;
  check_run(verdict, dtype, run, truth, own);
  return verdict.pass() ? "" : checks_table(verdict.checks());
}
// That a mistake is noticed.
inline void expect_departs(const Mesh& mesh, const RunValues& run, const RunValues& truth, const std::string& what) {
  EXPECT_TRUE(mesh.everyone().rank != 0 || !departure(mesh, run, truth).empty()) << what;
}

// Losses, norms, gradients and weights in every bit, where they are.
inline bool same_bits(const Mesh& mesh, const RunValues& a, const RunValues& b) {
  const bool steps = a.losses == b.losses && a.grad_norms == b.grad_norms;
  return steps && (mesh.everyone().rank != 0 || (a.gradients == b.gradients && a.final_weights == b.final_weights));
}

// The first value that is not the expected one, or "". (An assertion would end the test on one rank, and leave the others
// waiting.)
inline std::string unlike(double expected, const std::vector<double>& values, double tolerance = 0) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!(std::abs(values[i] - expected) <= tolerance))
      return "element " + std::to_string(i) + " is " + std::to_string(values[i]);
  return "";
}

// A strategy over a small model that computes nothing: every gradient is given.
class HandFed {
 public:
  HandFed(Mesh& mesh, const StrategyCase& s, const StorageOptions& storage, const GptConfig& c) : gpt_(c) {
    const std::string axes = data_parallel::gradient_axes(mesh);
    Communicator *shard = &mesh[axes], *replicate = nullptr;
    if (s.options.kind == "hsdp") std::tie(shard, replicate) = mesh.split(axes, s.shard_size);
    strategy_ = data_parallel::make_strategy({gpt_, stream_, *shard, replicate, storage, s.options});
    gpt_.materialise(storage, stream_, [&](Parameter& p) { strategy_->shard(p); });
  }

  // A step in which every element of every gradient gets contributions[m] in micro-batch m.
  void step(const std::vector<double>& contributions) {
    const auto micro_batches = static_cast<std::int64_t>(contributions.size());
    strategy_->begin_step(micro_batches);
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      strategy_->begin_micro_batch(m);
      for (std::int64_t unit = gpt_.unit_count() - 1; unit >= 0; --unit) backward(unit, contributions[std::size_t(m)]);
      strategy_->end_micro_batch(m);
    }
    strategy_->end_step();
  }
  void update(Optimizer& optimizer) {
    optimizer.step(stream_);
    strategy_->after_update();
  }

  // Every element of what this rank holds of the final gradients.
  [[nodiscard]] std::vector<double> held_gradients() {
    std::vector<double> all;
    for (const Parameter* p : gpt_.parameters()) append(all, held_part(*p, p->final_gradient()));
    return all;
  }
  void append(std::vector<double>& all, const Tensor& t) {
    const std::vector<double> values = t.to_doubles(stream_);
    all.insert(all.end(), values.begin(), values.end());
  }
  [[nodiscard]] std::vector<Parameter*> parameters() const { return gpt_.parameters(); }
  [[nodiscard]] Stream& stream() { return stream_; }

 private:
  void backward(std::int64_t unit, double value) {
    for (UnitHooks* h : gpt_.hooks) h->before_backward(unit);
    for (UnitHooks* h : gpt_.hooks) h->before_weight_gradients(unit);
    auto parameters = gpt_.parameters_of(unit);
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
      const Parameter::Target target = (*p)->begin_contribution(stream_, true);
      const Tensor given = Tensor::empty(target.tensor.shape(), target.tensor.dtype(), MemoryCategory::kWorkspace, stream_);
      fill_constant(stream_, given, value / (*p)->uses);
      scaled_add(stream_, target.tensor, given, 1.0);
      (*p)->end_contribution(stream_);
    }
    for (auto h = gpt_.hooks.rbegin(); h != gpt_.hooks.rend(); ++h) (*h)->after_backward(unit);
  }

  Stream& stream_ = device().compute();
  Gpt gpt_;
  std::unique_ptr<data_parallel::Strategy> strategy_;
};

inline StorageOptions storage_of(Dtype dtype) {
  StorageOptions storage;
  storage.dtype = dtype;
  return storage;
}

}  // namespace ref5d::testing
