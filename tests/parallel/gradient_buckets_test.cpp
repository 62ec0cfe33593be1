// Buckets: whatever their size, and whatever runs meanwhile, the gradients are those of one reduction at the end.
#include "02_ddp_zero/gradient_buckets.h"

#include <chrono>
#include <set>
#include <thread>

#include "tests/support/data_parallel_testing.h"

namespace ref5d::testing {
namespace {

class Buckets : public ParallelTest {
 protected:
  Mesh mesh_ = dp_mesh();
  const int n_ = world().size();
  const TrainerOptions options_ = replicated_options(variant("llama_tied"), n_, {2, 1});
  const Dataset data_ = uneven_data(options_.model, 2 * options_.global_batch);

  static StrategyCase with_capacity(const char* kind, std::int64_t elements) {
    StrategyCase s = strategy_case(kind);
    s.options.bucket_bytes = static_cast<double>(elements) * 8;
    return s;
  }
};

// The sizes of the model's parameters, and one element more or less.
std::set<std::int64_t> awkward_capacities(const GptConfig& c) {
  std::set<std::int64_t> all{1, c.parameter_count()};
  const Gpt gpt(c);
  for (const Parameter* p : gpt.parameters())
    for (std::int64_t more : {-1, 0, 1}) all.insert(p->local_numel() + more);
  return all;
}

// One that a parameter alone fills exactly.
std::int64_t capacity_of_a_full_bucket(const GptConfig& c) {
  const Gpt gpt(c);
  for (const Parameter* p : gpt.parameters()) {
    for (const auto& bucket : data_parallel::make_buckets(gpt, static_cast<double>(p->local_numel()) * 8, 8, 1))
      if (bucket.members.size() == 1 && bucket.numel == p->local_numel()) return bucket.numel;
  }
  ADD_FAILURE() << "no parameter fills a bucket";
  return 1;
}

TEST_F(Buckets, P07_ParametersOfTheBucketsSizeAreReduced) {
  NEEDS_RANK_ORDER;
  const RunValues naive = train(mesh_, options_, strategy_case("naive"), data_, 1);
  for (const std::int64_t capacity : awkward_capacities(options_.model)) {
    for (const char* kind : {"ddp", "zero1"}) {
      if (kEmulated && (capacity % 3 != 0 || (capacity % 2 == 0) == (kind[0] == 'd'))) continue;  // some of them
      const RunValues run = train(mesh_, options_, with_capacity(kind, capacity), data_, 1);
      EXPECT_TRUE(!world().is_root() || run.gradients == naive.gradients) << kind << " with buckets of " << capacity;
    }
  }
  if (n_ == 1) return;
  StrategyCase wrong = with_capacity("ddp", capacity_of_a_full_bucket(options_.model));
  wrong.options.faults.skip_full_bucket = true;
  const RunValues unreduced = train(mesh_, options_, wrong, data_, 1);
  EXPECT_TRUE(!world().is_root() || unreduced.gradients != naive.gradients);
}

// A capacity between two sizes: the last bucket is not full, and every parameter is in one.
TEST_F(Buckets, P07_BucketsHoldEveryParameterOnce) {
  const Gpt gpt(options_.model);
  for (const std::int64_t capacity : awkward_capacities(options_.model)) {
    const auto buckets = data_parallel::make_buckets(gpt, static_cast<double>(capacity) * 8, 8, n_);
    std::vector<const Parameter*> found;
    for (const auto& bucket : buckets) {
      std::int64_t at = 0;
      for (const auto& m : bucket.members) {
        EXPECT_EQ(m.begin, at);
        at = m.end();
        found.push_back(m.parameter);
      }
      EXPECT_EQ(bucket.numel, at);
      EXPECT_GE(bucket.padded_numel(), at);
      EXPECT_LT(bucket.padded_numel(), at + n_);
    }
    std::vector<Parameter*> all = gpt.parameters();
    std::reverse(all.begin(), all.end());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), all.begin(), all.end())) << capacity;
  }
}

TEST_F(Buckets, P08_NothingDependsOnTheirSize) {
  NEEDS_RANK_ORDER;
  RunValues first;
  for (const std::int64_t capacity : {1, 145, 1000, 1000000}) {
    for (const bool overlap : {true, false}) {
      StrategyCase s = with_capacity("ddp", capacity);
      s.options.overlap = overlap;
      const RunValues run = train(mesh_, options_, s, data_, 2);
      if (first.losses.empty()) first = run;
      EXPECT_TRUE(same_bits(mesh_, run, first)) << capacity << (overlap ? " overlapped" : " at the end");
    }
  }
}

// Where a shard ends within a block of the norm, the block's sum is split: the norm may differ in its last bit, and so does
// what it clips. Nothing else does.
TEST_F(Buckets, P08_NorDoesZero1) {
  NEEDS_RANK_ORDER;
  TrainerOptions o = options_;
  o.optimizer.clip = 0;
  const RunValues ddp = train(mesh_, o, with_capacity("ddp", 145), data_, 2);
  for (const std::int64_t capacity : {1, 145, 1000, 1000000}) {
    const RunValues run = train(mesh_, o, with_capacity("zero1", capacity), data_, 2);
    EXPECT_EQ(run.losses, ddp.losses) << capacity;
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(run.grad_norms[i] / ddp.grad_norms[i], 1, 1e-14) << capacity;
    if (!world().is_root()) continue;
    EXPECT_TRUE(run.gradients == ddp.gradients) << capacity;
    EXPECT_TRUE(run.final_weights == ddp.final_weights) << capacity;
  }
}

TEST_F(Buckets, P08_OverlapChangesNoBitOfZero1) {
  StrategyCase s = with_capacity("zero1", 300);
  const RunValues overlapped = train(mesh_, options_, s, data_, 2);
  s.options.overlap = false;
  EXPECT_TRUE(same_bits(mesh_, train(mesh_, options_, s, data_, 2), overlapped));
}

// Backward is held up before every unit, so that whoever does not wait for it reduces what is not there yet.
class SlowBackward : public UnitHooks {
 public:
  void before_backward(std::int64_t) override {
    host_task(device().compute(), "delay", [] { std::this_thread::sleep_for(std::chrono::microseconds(500)); });
  }
};

RunValues train_slowly(Mesh& mesh, TrainerOptions o, const StrategyCase& s, const Dataset& data) {
  SlowBackward slow;
  data_parallel::apply(o, mesh, s.options, s.shard_size);
  const auto cut = o.cut;
  o.cut = [&](Gpt& gpt) {
    cut(gpt);
    gpt.hooks.push_back(&slow);
  };
  Trainer trainer(o, data);
  return values_of_steps(trainer, 2, false);
}

TEST_F(Buckets, P09_ReductionsWaitForTheGradients) {
  for (const char* kind : {"ddp", "zero1"}) {
    StrategyCase s = with_capacity(kind, 145);
    s.options.overlap = false;
    const RunValues at_the_end = train(mesh_, options_, s, data_, 2);
    s.options.overlap = true;
    EXPECT_TRUE(same_bits(mesh_, train_slowly(mesh_, options_, s, data_), at_the_end)) << kind;
    for (std::uint64_t seed = 1; seed <= (kEmulated ? 2 : 5); ++seed) {
      set_order_seed(seed);
      EXPECT_TRUE(same_bits(mesh_, train(mesh_, options_, s, data_, 2), at_the_end)) << kind << ", seed " << seed;
    }
    set_order_seed(0);
    if (n_ == 1 || kEmulated) continue;  // the emulator reports the fault as an error
    s.options.faults.no_stream_wait = true;
    const RunValues wrong = train_slowly(mesh_, options_, s, data_);
    EXPECT_TRUE(!world().is_root() || wrong.gradients != at_the_end.gradients) << kind;
  }
}

// The same of the strategies that reduce unit by unit and gather weights ahead.
TEST_F(Buckets, P09_UnitsWaitForTheGradients) {
  for (const char* kind : {"zero2", "zero3"}) {
    const StrategyCase s = strategy_case(kind);
    const RunValues first = train(mesh_, options_, s, data_, 2);
    EXPECT_TRUE(same_bits(mesh_, train_slowly(mesh_, options_, s, data_), first)) << kind;
    for (std::uint64_t seed = 1; seed <= (kEmulated ? 2 : 5); ++seed) {
      set_order_seed(seed);
      EXPECT_TRUE(same_bits(mesh_, train(mesh_, options_, s, data_, 2), first)) << kind << ", seed " << seed;
    }
    set_order_seed(0);
  }
}

}  // namespace
}  // namespace ref5d::testing
