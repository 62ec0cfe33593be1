// Labels are counted over all ranks and micro-batches, and the loss is divided by them once.
#include "tests/support/data_parallel_testing.h"

namespace ref5d::testing {
namespace {

class LossNormalisation : public ParallelTest {
 protected:
  Mesh mesh_ = dp_mesh();
  const int n_ = world().size();

  // Of a replica's rows, the labels of those that `ignored` says are all ignored.
  static Dataset data_without(const TrainerOptions& o, const std::function<bool(std::int64_t row)>& ignored) {
    std::vector<Row> rows = some_rows(o.model, o.global_batch);
    for (std::size_t r = 0; r < rows.size(); ++r)
      if (ignored(static_cast<std::int64_t>(r))) std::fill(rows[r].labels.begin(), rows[r].labels.end(), kIgnoreLabel);
    return Dataset(rows);
  }
};

// Four micro-batches on two ranks with 5, 0, 1 and 2 labels, whose tokens' gradients are 1, -, 7 and 2: 16 / 8.
TEST_F(LossNormalisation, P01_P02_T1_LabelsOfAllRanksAndMicroBatchesCountEqually) {
  NEEDS_RANKS(2);
  auto mesh = slice_of(2);
  if (!mesh) return;
  const std::size_t labels[] = {5, 0, 1, 2};
  const double token_gradients[] = {1, 0, 7, 2};
  const GptConfig c = small();
  std::vector<Row> rows = some_rows(c, 4);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t t = 0; t < rows[r].labels.size(); ++t) rows[r].labels[t] = t < labels[r] ? 1 : kIgnoreLabel;
  const int rank = (*mesh)["dp"].rank();
  const GlobalBatch own = data_parallel::share_of_replica(global_batch(Dataset(rows), 0, 4), rank, 2);
  EXPECT_EQ(own.first_sample, 2 * rank);
  std::vector<double> contributions;
  for (std::size_t m = 0; m < own.rows.size(); ++m) {
    const auto count = static_cast<double>(count_valid_labels(own.rows[m]));
    contributions.push_back(token_gradients[static_cast<std::size_t>(2 * rank) + m] * count * own.loss_scale());
  }
  for (const StrategyCase& s : every_strategy(2)) {
    HandFed fed(*mesh, s, storage_of(Dtype::kFp64), c);
    fed.step(contributions);
    EXPECT_EQ(unlike(2.0, fed.held_gradients()), "") << s.text();
    if (s.options.kind == "naive" || s.options.kind == "hsdp") continue;
    StrategyCase again = s;
    again.options.faults.average_again = true;
    HandFed wrong(*mesh, again, storage_of(Dtype::kFp64), c);
    wrong.step(contributions);
    EXPECT_EQ(unlike(1.0, wrong.held_gradients()), "") << s.text() << ", divided by the ranks again";
  }
}

// The model itself, on rows with one label and with many: a mean over ranks of the ranks' own means is another gradient.
TEST_F(LossNormalisation, P02_LabelsAreCountedOverTheRanks) {
  const TrainerOptions o = replicated_options(small(), n_, {2, 1});
  std::vector<Row> rows = some_rows(o.model, o.global_batch);
  for (std::size_t r = 0; r < rows.size() / 2; ++r) std::fill_n(rows[r].labels.begin() + 1, o.model.seq - 1, kIgnoreLabel);
  const Dataset data(rows);
  const RunValues truth = train_alone(mesh_, o, data, 1);
  for (const char* kind : {"ddp", "zero2"}) {
    StrategyCase s = strategy_case(kind);
    EXPECT_EQ(departure(mesh_, train(mesh_, o, s, data, 1), truth), "") << kind;
    if (n_ == 1) continue;
    s.options.faults.local_label_count = true;
    expect_departs(mesh_, train(mesh_, o, s, data, 1), truth, kind);
  }
}

TEST_F(LossNormalisation, P03_ARankWithoutLabelsAddsNothing) {
  const TrainerOptions o = replicated_options(small(), n_, {2, 1});
  for (const std::int64_t mute : {std::int64_t{0}, std::int64_t{n_ - 1}}) {
    if (kEmulated && mute == 0) continue;
    const Dataset data = data_without(o, [&](std::int64_t r) { return n_ > 1 ? r / 2 == mute : r == 0; });
    const RunValues truth = train_alone(mesh_, o, data, 1);
    for (const StrategyCase& s : strategies(n_))
      EXPECT_EQ(departure(mesh_, train(mesh_, o, s, data, 1), truth), "") << s.text() << ", rank " << mute;
  }
}

TEST_F(LossNormalisation, P03_NoLabelsAtAllGiveZero) {
  const TrainerOptions o = replicated_options(small(), n_, {2, 1});
  const Dataset data = data_without(o, [](std::int64_t) { return true; });
  for (const StrategyCase& s : strategies(n_)) {
    const RunValues run = train(mesh_, o, s, data, kEmulated ? 1 : 2, [&](Trainer& t) {
      for (const Parameter* p : t.gpt().parameters())
        EXPECT_EQ(unlike(0, held_part(*p, p->final_gradient()).to_doubles(t.stream())), "") << s.text() << p->name;
    });
    EXPECT_EQ(unlike(0, run.losses), "") << s.text();
    EXPECT_EQ(unlike(0, run.grad_norms), "") << s.text();
    for (const auto& [name, values] : run.final_weights)
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](double w) { return std::isfinite(w); })) << s.text() << name;
  }
}

// So many ranks that 512 divides by them, with as many micro-batches as make 512 gradients of 1.
TEST_F(LossNormalisation, P13_GradientsAreSummedInFp32) {
  NEEDS_RANK_ORDER;
  int ranks = 1;
  while (2 * ranks <= n_) ranks *= 2;
  if (ranks > 4) ranks = 4;
  auto mesh = slice_of(ranks);
  if (!mesh) return;
  GptConfig c = small();
  c.layers = 1;
  StorageOptions storage = storage_of(Dtype::kBf16);
  const std::vector<double> ones(static_cast<std::size_t>(512 / ranks), 1.0), more_ones(512, 1.0);
  for (const StrategyCase& s : every_strategy(ranks)) {
    for (const GradientMode mode : {GradientMode::kSeparate, GradientMode::kFused}) {
      if (kEmulated && (mode == GradientMode::kFused || s.options.kind == "hsdp")) continue;
      storage.bf16_gradients = mode;
      HandFed fed(*mesh, s, storage, c);
      fed.step(ones);
      EXPECT_EQ(unlike(512.0, fed.held_gradients()), "") << s.text();
    }
  }
  // Added up in bf16, a sum of ones stays at 256: each rank loses half of its 512.
  storage.fp32_gradient_sum = false;
  for (const char* kind : {"naive", "ddp", "zero1"}) {
    if (kEmulated && kind[0] != 'z') continue;
    HandFed fed(*mesh, strategy_case(kind), storage, c);
    fed.step(more_ones);
    EXPECT_EQ(unlike(256.0 * ranks, fed.held_gradients()), "") << kind;
  }
}

// 257 on each rank is 256 on a wire of bf16.
TEST_F(LossNormalisation, P13_ReductionsInBf16Round) {
  NEEDS_RANK_ORDER;
  NEEDS_RANKS(2);
  auto mesh = slice_of(2);
  if (!mesh) return;
  for (StrategyCase s : every_strategy(2)) {
    for (const Dtype wire : {Dtype::kFp32, Dtype::kBf16}) {
      s.options.reduce_dtype = wire;
      HandFed fed(*mesh, s, storage_of(Dtype::kBf16), small());
      fed.step({256.0, 1.0});
      // Where each micro-batch is reduced alone, 256 and 1 travel, and are exact.
      const bool summed_first = s.options.kind == "naive" || s.options.kind == "ddp" || s.options.kind == "zero1" ||
                                (s.options.kind == "hsdp" && s.shard_size == 1);
      EXPECT_EQ(unlike(wire == Dtype::kBf16 && summed_first ? 512.0 : 514.0, fed.held_gradients()), "")
          << s.text() << dtype_name(wire);
    }
  }
}

}  // namespace
}  // namespace ref5d::testing
