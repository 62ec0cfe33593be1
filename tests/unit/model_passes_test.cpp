// Several micro-batches in flight in one block: whatever order their phases run in, each pass gives the same bits, because
// nothing of a pass is kept in a module.
#include <algorithm>
#include <ranges>

#include "common/kernels/elementwise.h"
#include "common/kernels/embedding.h"
#include "tests/support/kernel_testing.h"
#include "tests/support/model_testing.h"

namespace ref5d::testing {
namespace {

// Hands out copies, and makes them only when they are asked for.
class DelayingRegion : public Region {
 public:
  [[nodiscard]] PendingTensor begin_enter_backward(Context&, const Tensor& dx) override { return later(dx); }
  [[nodiscard]] PendingTensor begin_restore(Context&, const Tensor& kept) override { return later(kept); }

 private:
  static PendingTensor later(const Tensor& t) {
    return [t](Context& ctx) {
      Tensor copy = ctx.activation(t.shape());
      copy_matrix(ctx.stream, copy, t);
      return copy;
    };
  }
};

// Two experts: even tokens go to one, odd tokens to the other. Its auxiliary loss is the number of even tokens.
class ParityExperts : public Mlp {
 public:
  explicit ParityExperts(std::int64_t hidden) {
    for (const char* name : {"experts.0", "experts.1"})
      experts_.push_back(std::make_unique<Linear>(name, hidden, hidden, true, false, 0.3));
  }

  Tensor dispatch(Context& ctx, const Tensor& x, Saved&, std::any& state) override {
    const std::vector<double> tokens = ctx.batch->tokens.to_doubles(ctx.stream);
    std::vector<std::int32_t> order, inverse(tokens.size());
    for (double parity : {0.0, 1.0}) {
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        if (std::fmod(tokens[t], 2.0) == parity) order.push_back(static_cast<std::int32_t>(t));
      }
      if (parity == 0.0) even_counts.push_back(static_cast<std::int64_t>(order.size()));
    }
    for (std::size_t i = 0; i < order.size(); ++i) inverse[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
    const auto rows = static_cast<std::int64_t>(order.size());
    state = Routing{device_ints(order, {rows}), device_ints(inverse, {rows}), even_counts.back()};
    ctx.add_aux_loss(device_tensor({static_cast<double>(even_counts.back())}, {1}, accumulator_of(ctx.dtype)));
    aux_scales.push_back(ctx.batch->aux_loss_scale);
    return gathered(ctx, x, std::any_cast<Routing&>(state).order);
  }
  Tensor compute(Context& ctx, const Tensor& x, Saved& saved, std::any& state) override {
    saved.push("experts.x", x);
    Tensor y = ctx.activation(x.shape());
    for (const auto& [expert, begin, end] : shares(state, x.dim(0)))
      copy_matrix(ctx.stream, y.rows(begin, end), expert->forward(ctx, x.rows(begin, end)));
    return y;
  }
  Tensor combine(Context& ctx, const Tensor& y, Saved& saved, std::any& state) override {
    Tensor back = gathered(ctx, y, std::any_cast<Routing&>(state).inverse);
    saved.push("routing", std::any_cast<Routing>(std::move(state)));
    return back;
  }
  Tensor combine_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) override {
    EXPECT_FALSE(state.has_value()) << "a pass starts without a state";
    state = saved.pop<Routing>("routing");
    return gathered(ctx, dy, std::any_cast<Routing&>(state).order);
  }
  Tensor compute_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) override {
    const Tensor x = saved.pop("experts.x");
    Tensor dx = ctx.activation(x.shape());
    for (const auto& [expert, begin, end] : shares(state, x.dim(0))) {
      expert->backward_input(ctx, dx.rows(begin, end), dy.rows(begin, end), false);
      expert->backward_bias(ctx, dy.rows(begin, end));
      expert->backward_weight(ctx, x.rows(begin, end), dy.rows(begin, end));
    }
    ctx.weight_grads->run_ready();
    return dx;
  }
  Tensor dispatch_backward(Context& ctx, const Tensor& dx, Saved&, std::any& state) override {
    return gathered(ctx, dx, std::any_cast<Routing&>(state).inverse);
  }
  std::vector<std::shared_ptr<Parameter>> parameters() const override {
    std::vector<std::shared_ptr<Parameter>> all;
    for (const auto& e : experts_) append(all, e);
    return all;
  }

  std::vector<std::int64_t> even_counts;  // of each dispatch so far
  std::vector<double> aux_scales;

 private:
  struct Routing {
    Tensor order, inverse;
    std::int64_t even = 0;
  };
  struct Share {
    const Linear* expert;
    std::int64_t begin, end;
  };
  [[nodiscard]] std::vector<Share> shares(std::any& state, std::int64_t rows) const {
    const std::int64_t even = std::any_cast<Routing&>(state).even;
    return {{experts_[0].get(), 0, even}, {experts_[1].get(), even, rows}};
  }
  static Tensor gathered(Context& ctx, const Tensor& x, const Tensor& index) {
    Tensor y = ctx.activation(x.shape());
    embedding_forward(ctx.stream, y, x, index, false);
    return y;
  }

  std::vector<std::unique_ptr<Linear>> experts_;
};

// The first block of a model and two micro-batches.
class TwoPasses {
 public:
  explicit TwoPasses(const std::function<void(Block&)>& change, Recompute recompute = Recompute::kNone)
      : config_(small()), rows_(some_rows(config_, 4)), gpt_(config_), ctx_(device().compute()) {
    change(block());
    StorageOptions storage;
    storage.dtype = ctx_.dtype = Dtype::kFp64;
    gpt_.materialise(storage, ctx_.stream);
    ctx_.recompute = recompute;
    ctx_.dropout = 0.2;
    ctx_.weight_grads = &weight_grads_;
    ctx_.aux_loss_sum = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, ctx_.stream);
    Loader loader(config_, ctx_.dtype, ctx_.stream);
    for (std::int64_t m = 0; m < 2; ++m) {
      loader.start(std::span(rows_).subspan(static_cast<std::size_t>(2 * m), 2), 2 * m);
      batches_.push_back(loader.take(1.0));
    }
  }
  Block& block() { return *gpt_.blocks[0]; }

  // What both passes give, and the weights' gradients: `schedule` says in which order the phases run.
  std::vector<std::vector<double>> run(const std::function<void(TwoPasses&)>& schedule) {
    for (const auto& p : block().parameters()) p->begin_step(ctx_.stream, 2);
    results_.clear();
    for (std::size_t m = 0; m < 2; ++m) {
      const std::int64_t rows = batches_[m].token_count();
      const auto values = random_values(rows * config_.hidden, static_cast<unsigned>(m + 1));
      flows_[m] = BlockFlow{.x = device_tensor(values, {rows, config_.hidden}, ctx_.dtype)};
    }
    schedule(*this);
    for (std::size_t m = 0; m < 2; ++m) {
      EXPECT_TRUE(saved_[m].empty());
      results_.push_back(values_of(flows_[m].x));
    }
    for (const auto& p : block().parameters()) results_.push_back(values_of(p->gradient));
    return results_;
  }
  void forward(std::size_t m, Block::Phase phase) {
    ctx_.batch = &batches_[m];
    block().forward_phase(phase, ctx_, flows_[m], saved_[m]);
  }
  // The gradient of the output is the output: any would do.
  void turn(std::size_t m) { flows_[m] = BlockFlow{.x = flows_[m].x}; }
  void backward(std::size_t m, Block::Phase phase) {
    ctx_.batch = &batches_[m];
    block().backward_phase(phase, ctx_, flows_[m], saved_[m]);
  }

 private:
  GptConfig config_;
  std::vector<Row> rows_;
  Gpt gpt_;
  WeightGrads weight_grads_;
  Context ctx_;
  std::vector<MicroBatch> batches_;
  BlockFlow flows_[2];
  Saved saved_[2];
  std::vector<std::vector<double>> results_;
};

constexpr auto kPhases = Block::kPhases;

void one_after_the_other(TwoPasses& passes) {
  for (std::size_t m : {0u, 1u}) {
    for (Block::Phase p : kPhases) passes.forward(m, p);
    passes.turn(m);
    for (auto p = kPhases.rbegin(); p != kPhases.rend(); ++p) passes.backward(m, *p);
  }
}
void phase_by_phase(TwoPasses& passes) {
  for (Block::Phase p : kPhases) {
    for (std::size_t m : {0u, 1u}) passes.forward(m, p);
  }
  for (std::size_t m : {0u, 1u}) passes.turn(m);
  for (auto p = kPhases.rbegin(); p != kPhases.rend(); ++p) {
    for (std::size_t m : {0u, 1u}) passes.backward(m, *p);
  }
}
// The backward of one micro-batch between the phases of the forward of the other.
void backward_between_forward(TwoPasses& passes) {
  for (Block::Phase p : kPhases) passes.forward(0, p);
  passes.turn(0);
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    passes.backward(0, kPhases[kPhases.size() - 1 - i]);
    passes.forward(1, kPhases[i]);
  }
  passes.turn(1);
  for (auto p = kPhases.rbegin(); p != kPhases.rend(); ++p) passes.backward(1, *p);
}

void expect_any_order(const std::function<void(Block&)>& change) {
  for (Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    TwoPasses passes(change, r);
    const auto expected = passes.run(one_after_the_other);
    EXPECT_NE(expected[0], expected[1]);
    EXPECT_EQ(passes.run(phase_by_phase), expected);
    EXPECT_EQ(passes.run(backward_between_forward), expected);
  }
}

TEST(Passes, InterleaveWithinABlock) {
  expect_any_order([](Block&) {});
}

TEST(Passes, InterleaveWhileRegionsAreUnderWay) {
  auto delay = [](Block& block) {
    block.attention->region = std::make_unique<DelayingRegion>();
    dynamic_cast<DenseMlp&>(*block.mlp).region = std::make_unique<DelayingRegion>();
  };
  expect_any_order(delay);
  EXPECT_EQ(TwoPasses(delay).run(phase_by_phase), TwoPasses([](Block&) {}).run(one_after_the_other));
}

TEST(Passes, InterleaveInAMixtureOfExperts) {
  auto mix = [](Block& block) { block.mlp = std::make_unique<ParityExperts>(small().hidden); };
  expect_any_order(mix);
  TwoPasses passes(mix);
  (void)passes.run(phase_by_phase);
  const auto& counts = dynamic_cast<ParityExperts&>(*passes.block().mlp).even_counts;
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_NE(counts[0], counts[1]) << "the routings must differ, or a mixed-up one goes unnoticed";
}

// A router's loss is counted once per micro-batch, recomputed or not, and weighs 1 / micro-batches.
TEST(Passes, AuxiliaryLossIsCountedOncePerMicroBatch) {
  const GptConfig c = small();
  const Dataset data(some_rows(c, 3));
  for (Recompute r : {Recompute::kNone, Recompute::kFull}) {
    TrainerOptions options = options_for(c, 3, 1);
    options.recompute = r;
    Trainer trainer(options, data);
    auto experts = std::make_unique<ParityExperts>(c.hidden);
    const ParityExperts& mixture = *experts;
    trainer.gpt().blocks[1]->mlp = std::move(experts);
    trainer.gpt().materialise(options.storage, trainer.stream());
    for (int step = 0; step < 2; ++step) trainer.accumulate();
    const std::vector<double> scales(r == Recompute::kFull ? 12 : 6, 1.0 / 3);
    EXPECT_EQ(mixture.aux_scales, scales);
    double even = 0;
    for (const Row& row : some_rows(c, 3))
      even += static_cast<double>(std::ranges::count_if(row.tokens, [](auto t) { return t % 2 == 0; }));
    EXPECT_EQ(values_of(trainer.context().aux_loss_sum), std::vector{even});
  }
  Trainer dense(options_for(c, 3, 1), data);
  dense.accumulate();
  EXPECT_EQ(values_of(dense.context().aux_loss_sum), std::vector{0.0});
}

}  // namespace
}  // namespace ref5d::testing
