// Every strategy trains as a single device does, whatever the model, the accumulation and its options.
#include "02_ddp_zero/data_parallel.h"

#include "tests/support/data_parallel_testing.h"

namespace ref5d::testing {
namespace {

class DataParallel : public ParallelTest {
 protected:
  Mesh mesh_ = dp_mesh();
  const int n_ = world().size();

  void expect_trains_as_alone(const TrainerOptions& o, const std::vector<StrategyCase>& cases, const std::string& what) {
    const Dataset data = uneven_data(o.model, 2 * o.global_batch);
    const RunValues truth = train_alone(mesh_, o, data, 3);
    for (const StrategyCase& s : cases)
      EXPECT_EQ(departure(mesh_, train(mesh_, o, s, data, 3), truth), "") << s.text() << ", " << what;
  }
};

// Micro-batches of a replica: one; three; three, of which the last is smaller.
constexpr Accumulation kOne{1, 1}, kThree{3, 1}, kLastSmaller{5, 2};

TEST_F(DataParallel, EveryStrategyTrainsAsASingleDevice) {
  const std::vector<Accumulation> accumulations = kEmulated ? std::vector{kOne} : std::vector{kOne, kThree, kLastSmaller};
  for (const Accumulation& a : accumulations)
    expect_trains_as_alone(replicated_options(small(), n_, a), every_strategy(n_), std::to_string(a.rows) + " rows each");
}

TEST_F(DataParallel, EveryModelTrainsAsOnASingleDevice) {
  std::size_t i = 0;
  for (const char* name : {"llama_tied", "llama_biases", "llama_qk_norm", "llama_dropout", "gpt2", "llama_mixed"}) {
    std::vector<StrategyCase> cases;
    for (const char* kind : {"naive", "ddp", "zero1", "zero2", "zero3"}) cases.push_back(strategy_case(kind));
    for (int shard_size = 2; shard_size < n_; ++shard_size)
      if (n_ % shard_size == 0) cases.push_back(strategy_case("hsdp", shard_size));
    if (kEmulated) cases = {cases[i % cases.size()]};
    expect_trains_as_alone(replicated_options(variant(name), n_, i++ % 2 == 0 && !kEmulated ? kThree : kOne), cases, name);
  }
}

std::vector<StrategyCase> every_option(int ranks) {
  std::vector<StrategyCase> all;
  const auto add = [&](const char* kind, const std::function<void(StrategyOptions&)>& set) {
    all.push_back(strategy_case(kind, ranks));
    set(all.back().options);
  };
  for (const char* kind : {"ddp", "zero1"}) {
    add(kind, [](StrategyOptions& s) { s.overlap = false; });
    add(kind, [](StrategyOptions& s) { s.sync_every_micro_batch = true; });
    add(kind, [](StrategyOptions& s) { s.sync_every_micro_batch = s.all_reduce_gradients = true; });
    add(kind, [](StrategyOptions& s) { s.sync_every_micro_batch = true, s.overlap = false; });
  }
  add("zero1", [](StrategyOptions& s) { s.all_reduce_gradients = true; });
  add("zero2", [](StrategyOptions& s) { s.keep_full_gradients = true; });
  for (const char* kind : {"zero2", "zero3", "hsdp"}) add(kind, [](StrategyOptions& s) { s.whole_model_unit = true; });
  for (const char* kind : {"zero3", "hsdp"}) add(kind, [](StrategyOptions& s) { s.prefetch = false; });
  return all;
}

// All ranks of a run make the same calls in the same order, too.
TEST_F(DataParallel, EveryOptionTrainsAsASingleDevice) {
  world().order().enable(true);
  std::vector<StrategyCase> cases = every_option(n_);
  if (kEmulated) cases = {cases[6], cases[9], cases[10]};
  expect_trains_as_alone(replicated_options(variant("llama_tied"), n_, kThree), cases, "");
  for (const Recompute recompute : {Recompute::kFull, Recompute::kSelective}) {
    if (kEmulated) break;
    TrainerOptions o = replicated_options(small(), n_, {2, 1});
    o.recompute = recompute;
    expect_trains_as_alone(o, {strategy_case("zero2"), strategy_case("zero3")}, "recomputing");
  }
  EXPECT_NO_THROW(world().order().finish(world().everyone()));
  world().order() = OrderLedger();
}

// bf16 with its sums beside its gradients and without gradients of its own, and fp32: no more rounding than on one device.
TEST_F(DataParallel, EveryStrategyKeepsThePrecision) {
  TrainerOptions o = replicated_options(small(), n_, {2, 1});
  const Dataset data = uneven_data(o.model, 2 * o.global_batch);
  const RunValues truth = train_alone(mesh_, o, data, 1);
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
    for (const GradientMode mode : {GradientMode::kSeparate, GradientMode::kFused}) {
      if (mode == GradientMode::kFused && (kEmulated || dtype == Dtype::kFp32)) continue;
      o.storage.dtype = dtype;
      o.storage.bf16_gradients = mode;
      const RunValues own = train_alone(mesh_, o, data, 1);
      for (const StrategyCase& s : strategies(n_))
        EXPECT_EQ(departure(mesh_, train(mesh_, o, s, data, 1), truth, dtype, &own), "") << s.text() << dtype_name(dtype);
    }
  }
}

// With one micro-batch the ranks' gradients are added in the same order by all but groups of replicas.
TEST_F(DataParallel, StrategiesAgreeInEveryBitOfAGradient) {
  NEEDS_RANK_ORDER;
  const TrainerOptions o = replicated_options(small(), n_, kOne);
  const Dataset data = uneven_data(o.model, o.global_batch);
  const RunValues naive = train(mesh_, o, strategy_case("naive"), data, 1);
  for (const StrategyCase& s : every_strategy(n_)) {
    if (s.options.kind == "hsdp" && s.shard_size > 1 && s.shard_size < n_) continue;
    const RunValues run = train(mesh_, o, s, data, 1);
    EXPECT_TRUE(!world().is_root() || run.gradients == naive.gradients) << s.text();
  }
}

// Two runs give the same bits, in whatever order the streams' work becomes ready.
TEST_F(DataParallel, TwoRunsAreEqualInEveryBit) {
  const TrainerOptions o = replicated_options(variant("llama_tied"), n_, {2, 1});
  const Dataset data = uneven_data(o.model, 2 * o.global_batch);
  for (const StrategyCase& s : strategies(n_)) {
    const RunValues first = train(mesh_, o, s, data, 2);
    for (std::uint64_t seed = kEmulated ? 1 : 0; seed < 2; ++seed) {
      set_order_seed(seed);
      EXPECT_TRUE(same_bits(mesh_, train(mesh_, o, s, data, 2), first)) << s.text() << " seed " << seed;
    }
    set_order_seed(0);
  }
}

TEST_F(DataParallel, ABatchThatDoesNotDivideIsRefused) {
  TrainerOptions o = replicated_options(small(), n_, {2, 1});
  o.global_batch = 2 * n_ + 1;
  data_parallel::apply(o, mesh_, {}, 1);
  const Dataset data = uneven_data(o.model, o.global_batch);
  Trainer trainer(o, data);
  if (n_ > 1) {
    EXPECT_THROW(trainer.accumulate(), std::logic_error);
  } else {
    EXPECT_NO_THROW(trainer.accumulate());
  }
}

}  // namespace
}  // namespace ref5d::testing
