// The seams of the model: regions that scatter the residual stream's rows, hooks around units, and the norm's two gradients.
#include <fmt/core.h>

#include "common/kernels/elementwise.h"
#include "tests/support/kernel_testing.h"
#include "tests/support/model_testing.h"

namespace ref5d::testing {
namespace {

// Sequence parallelism as one of two ranks sees it, played on one device. The rank's rows of the residual stream are one whole
// sequence of the two in a micro-batch, so that what is gathered from the other rank, zeros here, changes nothing in them.
class HalfOfTheRows : public Region {
 public:
  explicit HalfOfTheRows(std::int64_t rank) : rank_(rank) {}
  [[nodiscard]] Tensor enter(Context& ctx, const Tensor& x) override { return gather(ctx, x); }
  [[nodiscard]] PendingTensor begin_enter_backward(Context&, const Tensor& dx) override {
    return [own = scatter(dx)](Context&) { return own; };
  }
  [[nodiscard]] Tensor leave(Context&, const Tensor& y) override { return scatter(y); }
  [[nodiscard]] Tensor leave_backward(Context& ctx, const Tensor& dy) override { return gather(ctx, dy); }
  [[nodiscard]] Tensor keep(const Context&, const Tensor& input, const Tensor&) override { return input; }
  [[nodiscard]] PendingTensor begin_restore(Context&, const Tensor& kept) override {
    return [rank = rank_, kept](Context& ctx) { return HalfOfTheRows(rank).gather(ctx, kept); };
  }

  [[nodiscard]] Tensor scatter(const Tensor& t) const {
    const std::int64_t half = t.dim(0) / 2;
    return t.rows(rank_ * half, (rank_ + 1) * half);
  }

 private:
  [[nodiscard]] Tensor gather(Context& ctx, const Tensor& own) const {
    Tensor all = Tensor::zeros({2 * own.dim(0), own.dim(1)}, own.dtype(), MemoryCategory::kActivations, ctx.stream);
    copy_matrix(ctx.stream, scatter(all), own);
    return all;
  }
  std::int64_t rank_;
};

void play_rank(Gpt& gpt, std::int64_t rank) {
  gpt.embedding->region = std::make_unique<HalfOfTheRows>(rank);
  gpt.head->region = std::make_unique<HalfOfTheRows>(rank);
  for (const auto& block : gpt.blocks) {
    block->attention->region = std::make_unique<HalfOfTheRows>(rank);
    dynamic_cast<DenseMlp&>(*block->mlp).region = std::make_unique<HalfOfTheRows>(rank);
  }
}

// The micro-batch as the rank has it: its rows of the residual stream, and no label of the others.
MicroBatch rows_of_rank(const MicroBatch& whole, std::int64_t rank, Stream& stream) {
  const HalfOfTheRows half(rank);
  MicroBatch b = whole;
  b.residual = {
      half.scatter(whole.residual.sample), half.scatter(whole.residual.order), half.scatter(whole.residual.position), {}, {}};
  std::vector<std::int32_t> labels(static_cast<std::size_t>(whole.token_count()), kIgnoreLabel);
  const std::vector<double> values = whole.labels.to_doubles(stream);
  const std::size_t n = labels.size() / 2, begin = static_cast<std::size_t>(rank) * n;
  for (std::size_t t = begin; t < begin + n; ++t) labels[t] = static_cast<std::int32_t>(values[t]);
  b.labels = device_ints(labels, whole.labels.shape());
  return b;
}

class ScatteredRows : public ::testing::TestWithParam<std::tuple<const char*, Recompute>> {};

// Both ranks, one after the other in one model, add up to the whole: loss and every gradient, under dropout too.
TEST_P(ScatteredRows, AddUpToTheWhole) {
  const auto [name, recompute] = GetParam();
  const GptConfig c = variant(name);
  const std::vector<Row> rows = some_rows(c, 2);
  const Dataset data(rows);
  TrainerOptions options = options_for(c, 2, 2);
  options.recompute = recompute;
  Trainer whole(options, data), halves(options, data);
  whole.accumulate();

  Stream& stream = halves.stream();
  Gpt& gpt = halves.gpt();
  Context& ctx = halves.context();
  Loader loader(c, Dtype::kFp64, stream);
  loader.start(rows, 0);
  const MicroBatch batch = loader.take(global_batch(data, 0, 2).loss_scale());
  for (Parameter* p : gpt.parameters()) p->begin_step(stream, 2);
  for (std::int64_t rank : {0, 1}) {
    play_rank(gpt, rank);
    const MicroBatch own = rows_of_rank(batch, rank, stream);
    ctx.batch = &own;
    Saved saved;
    gpt.forward(ctx, {}, saved);
    gpt.backward(ctx, {}, saved);
    EXPECT_TRUE(saved.empty());
  }
  expect_equal(halves.gradients(), whole.gradients(), 1e-12);
  const double expected = values_of(whole.context().loss_sum)[0];
  EXPECT_NEAR(values_of(ctx.loss_sum)[0], expected, 1e-12 * expected);
}

std::string name_of(const ::testing::TestParamInfo<ScatteredRows::ParamType>& test) {
  const char* const kinds[] = {"kept", "full", "selective"};
  return std::string(std::get<0>(test.param)) + "_" + kinds[static_cast<int>(std::get<1>(test.param))];
}
INSTANTIATE_TEST_SUITE_P(Models, ScatteredRows,
                         ::testing::Combine(::testing::Values("llama_qk_norm", "llama_tied", "llama_dropout", "gpt2_dropout",
                                                              "llama_mixed", "gpt2_mixed"),
                                            ::testing::Values(Recompute::kNone, Recompute::kFull, Recompute::kSelective)),
                         name_of);

class RecordingHooks : public UnitHooks {
 public:
  RecordingHooks(std::string name, std::string& record) : name_(std::move(name)), record_(record) {}
  void before_forward(std::int64_t unit) override { record_ += fmt::format("{}+f{} ", name_, unit); }
  void after_forward(std::int64_t unit) override { record_ += fmt::format("{}-f{} ", name_, unit); }
  void before_backward(std::int64_t unit) override { record_ += fmt::format("{}+b{} ", name_, unit); }
  void after_backward(std::int64_t unit) override { record_ += fmt::format("{}-b{} ", name_, unit); }

 private:
  std::string name_;
  std::string& record_;
};

// Two hooks nest around every unit, in forward, in backward and where only logits are wanted.
TEST(Hooks, NestAroundEveryUnit) {
  GptConfig c = small();
  c.layers = 1;
  const std::vector<Row> rows = some_rows(c, 1);
  const Dataset data(rows);
  Trainer trainer(options_for(c, 1, 1), data);
  std::string record;
  RecordingHooks outer("x", record), inner("y", record);
  trainer.gpt().hooks = {&outer, &inner};
  trainer.accumulate();
  const std::string forward = "x+f0 y+f0 y-f0 x-f0 x+f1 y+f1 y-f1 x-f1 x+f2 y+f2 y-f2 x-f2 ";
  EXPECT_EQ(record, forward + "x+b2 y+b2 y-b2 x-b2 x+b1 y+b1 y-b1 x-b1 x+b0 y+b0 y-b0 x-b0 ");

  record.clear();
  Loader loader(c, Dtype::kFp64, trainer.stream());
  loader.start(rows, 0);
  const MicroBatch batch = loader.take(0.0);
  trainer.context().batch = &batch;
  (void)trainer.gpt().logits(trainer.context());
  EXPECT_EQ(record, forward);
}

// The weight's gradient is written for each micro-batch and then added to the sum, the bias's is added to the sum at once.
TEST(Norms, WeightAndBiasMayBeSummedDifferently) {
  Stream& stream = device().compute();
  Norm norm("norm", 4, NormKind::kLayer, 1e-5);
  StorageOptions storage;
  storage.dtype = Dtype::kBf16;
  materialise(*norm.weight, storage, stream);
  storage.bf16_gradients = GradientMode::kFused;
  materialise(*norm.bias, storage, stream);
  for (Parameter* p : {norm.weight.get(), norm.bias.get()}) p->begin_step(stream, 2);
  Context ctx(stream);
  ctx.dtype = Dtype::kBf16;
  WeightGrads weight_grads;
  ctx.weight_grads = &weight_grads;
  const Tensor x = device_tensor({1, -1, 1, -1, -1, 1, -1, 1, 1, -1, 1, -1}, {3, 4}, ctx.dtype);
  const Tensor ones = device_tensor(std::vector<double>(12, 1.0), {3, 4}, ctx.dtype);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    Saved saved;
    (void)norm.forward(ctx, x, saved);
    norm.backward(ctx, ctx.activation({3, 4}), ones, saved, false);
    weight_grads.run_ready();
  }
  EXPECT_EQ(values_of(norm.weight->gradient_sum), (std::vector<double>{2, -2, 2, -2}));
  EXPECT_EQ(values_of(norm.bias->gradient_sum), std::vector<double>(4, 6.0));
}

}  // namespace
}  // namespace ref5d::testing
