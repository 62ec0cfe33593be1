// The tiny GPT: its backward against finite differences, its seams, and the invariances that later lessons stand on.
#include <gtest/gtest.h>

#include "common/io/safetensors.h"
#include "tests/support/io_testing.h"
#include "tests/support/model_testing.h"

namespace ref5d::testing {
namespace {

class Variants : public ::testing::TestWithParam<std::string> {};

// d loss / d weight for a few elements of every parameter, by central differences of the whole model's loss.
TEST_P(Variants, BackwardIsTheDerivativeOfForward) {
  const GptConfig c = variant(GetParam());
  const Dataset data(some_rows(c, 3));
  Trainer trainer(options_for(c, 3, 2), data);
  auto loss = [&] {
    trainer.accumulate();
    return trainer.context().loss_sum.to_doubles(trainer.stream())[0] * global_batch(data, 0, 3).loss_scale();
  };
  (void)loss();
  const NamedValues gradients = trainer.gradients();
  std::mt19937 generator(7);
  for (Parameter* p : trainer.gpt().parameters()) {
    std::vector<double> w = p->weight.to_doubles(trainer.stream());
    std::vector<double> analytic, numeric;
    for (int sample = 0; sample < 6; ++sample) {
      const std::size_t i = generator() % w.size();
      const double kept = w[i], h = 1e-5;
      auto at = [&](double value) {
        w[i] = value;
        load_weight(*p, HostTensor::from_doubles(w, p->global_shape, Dtype::kFp64), trainer.stream());
        return loss();
      };
      numeric.push_back((at(kept + h) - at(kept - h)) / (2 * h));
      (void)at(kept);
      analytic.push_back(gradients.at(p->name)[i]);
    }
    EXPECT_LE(tensor_error(analytic, numeric, 1e-4).relative, 1e-6) << p->name;
  }
}

TEST_P(Variants, MicroBatchesAndRecomputationChangeNothing) {
  const GptConfig c = variant(GetParam());
  const Dataset data(some_rows(c, 5));
  const NamedValues whole = gradients_of(options_for(c, 5, 5), data);
  for (std::int64_t micro_batch : {1, 2, 3, 4}) expect_equal(gradients_of(options_for(c, 5, micro_batch), data), whole, 1e-12);
  for (Recompute r : {Recompute::kFull, Recompute::kSelective}) {
    TrainerOptions o = options_for(c, 5, 2), plain = o;
    o.recompute = r;
    EXPECT_EQ(gradients_of(o, data), gradients_of(plain, data)) << "recomputation must give the same bits";
  }
}

TEST_P(Variants, ParameterCountIsTheClosedForm) {
  const GptConfig c = variant(GetParam());
  const Gpt gpt(c);
  std::int64_t n = 0;
  for (const Parameter* p : gpt.parameters()) n += product(p->global_shape);
  EXPECT_EQ(n, c.parameter_count());
}

// A model cut in two stages and joined again gives the gradients of the whole: the seam that pipelines use. Two micro-batches
// are in flight at once, and weight gradients are put off to the end. `chunks` go back and forth between the stages.
void expect_stages_equal_the_whole(const GptConfig& c, const std::vector<Units>& chunks) {
  const std::vector<Row> rows = some_rows(c, 2);
  const Dataset data(rows);
  const NamedValues whole = gradients_of(options_for(c, 2, 1), data);

  Stream& stream = device().compute();
  StorageOptions storage;
  storage.dtype = Dtype::kFp64;
  Gpt stages[2] = {Gpt(c), Gpt(c)};
  std::vector<Units> here[2];
  for (std::size_t i = 0; i < chunks.size(); ++i) here[i % 2].push_back(chunks[i]);
  std::size_t present = 0;
  for (int s = 0; s < 2; ++s) {
    stages[s].keep(here[s]);
    stages[s].materialise(storage, stream);
    for (Parameter* p : stages[s].parameters()) {
      p->begin_step(stream, 2);
      present += p->local_numel() > 0 ? 1 : 0;
    }
  }
  std::size_t final_gradients = 0;
  for (Gpt& g : stages) {
    for (Parameter* p : g.parameters()) {
      p->on_final.emplace_back([&](Parameter&, Stream& on) {
        ++final_gradients;
        EXPECT_EQ(&on, &stream);
        return &on;
      });
    }
  }
  WeightGrads later;
  later.defer(true);
  Context ctx(stream);
  ctx.dtype = Dtype::kFp64;
  ctx.dropout = c.dropout;
  ctx.dropout_seed = storage.seed;
  ctx.weight_grads = &later;
  ctx.loss_sum = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, stream);

  Loader loader(c, Dtype::kFp64, stream);
  const double scale = global_batch(data, 0, 2).loss_scale();
  std::vector<MicroBatch> batches;
  for (std::size_t m = 0; m < 2; ++m) {
    loader.start({&rows[m], 1}, static_cast<std::int64_t>(m));
    batches.push_back(loader.take(scale));
  }
  std::vector<std::vector<Saved>> saved(2);
  std::vector<Tensor> boundary(2);
  for (std::size_t m = 0; m < 2; ++m) {
    ctx.batch = &batches[m];
    saved[m].resize(chunks.size());
    for (std::size_t i = 0; i < chunks.size(); ++i)
      boundary[m] = stages[i % 2].forward(ctx, boundary[m], saved[m][i], chunks[i]);
  }
  for (std::size_t m = 0; m < 2; ++m) {
    ctx.batch = &batches[m];
    for (std::size_t i = chunks.size(); i-- > 0;) {
      boundary[m] = stages[i % 2].backward(ctx, boundary[m], saved[m][i], chunks[i]);
      EXPECT_TRUE(saved[m][i].empty());
    }
  }
  EXPECT_FALSE(later.empty());
  EXPECT_GT(device().memory().current(MemoryCategory::kDeferredWeightGradients), 0);
  later.run_all();
  EXPECT_EQ(device().memory().current(MemoryCategory::kDeferredWeightGradients), 0);
  EXPECT_EQ(final_gradients, present);

  NamedValues joined;
  for (Gpt& g : stages) {
    for (Parameter* p : g.parameters()) {
      if (p->local_numel() == 0) continue;
      const std::vector<double> values = p->final_gradient().to_doubles(stream);
      auto [it, fresh] = joined.try_emplace(p->name, values);
      EXPECT_EQ(p->placement.segments.at(0).replicas, c.tied && p == g.embedding->tokens.get() ? 2 : 1) << p->name;
      if (!fresh) {  // a tied weight on both stages: its gradient is the sum
        for (std::size_t i = 0; i < values.size(); ++i) it->second[i] += values[i];
      }
    }
  }
  expect_equal(joined, whole, 1e-12);
}

TEST_P(Variants, StagesWithDeferredWeightGradientsEqualTheWhole) {
  const GptConfig c = variant(GetParam());
  ASSERT_EQ(c.layers, 2);
  expect_stages_equal_the_whole(c, {{0, 2}, {2, 4}});
  expect_stages_equal_the_whole(c, {{0, 1}, {1, 2}, {2, 3}, {3, -1}});  // two chunks each
}

// What is elsewhere has an empty part: a stage loads a whole file, and names every parameter.
TEST(Stages, HaveEveryParameterAndLoadAWholeFile) {
  const GptConfig c = variant("llama_tied");
  const TempDir dir;
  const Dataset data(some_rows(c, 1));
  Trainer whole(options_for(c, 1, 1), data);
  write_safetensors(dir.path("w"), whole.global_weights());
  TrainerOptions o = options_for(c, 1, 1);
  o.storage.seed = 99;
  o.load = dir.path("w");
  o.cut = [](Gpt& gpt) { gpt.keep({{2, -1}}); };
  Trainer stage(o, data);
  ASSERT_EQ(stage.gpt().parameters().size(), whole.gpt().parameters().size());
  for (std::size_t i = 0; i < stage.gpt().parameters().size(); ++i) {
    const Parameter &part = *stage.gpt().parameters()[i], &all = *whole.gpt().parameters()[i];
    EXPECT_EQ(part.name, all.name);
    const bool here = part.name.find("layers.1.") != std::string::npos || part.name == "model.norm.weight" ||
                      part.name == "model.embed_tokens.weight";
    const std::vector<double> expected = here ? all.weight.to_doubles(whole.stream()) : std::vector<double>{};
    EXPECT_EQ(part.weight.to_doubles(stage.stream()), expected) << part.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Variants,
                         ::testing::Values("llama", "llama_qk_norm", "llama_tied", "llama_biases", "llama_dropout", "gpt2",
                                           "gpt2_untied", "gpt2_dropout", "llama_mixed", "gpt2_mixed"),
                         [](const auto& test) { return test.param; });

// T1: rows with 5, 0, 1 and 2 labels in four micro-batches. Every label counts 1/8, whatever micro-batch it is in; the mean of
// the micro-batches' own means is something else.
TEST(LawOfGradients, P01_T1_LabelsCountEqually) {
  const GptConfig c = small();
  std::vector<Row> rows = some_rows(c, 4);
  const std::size_t labels[] = {5, 0, 1, 2};
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t t = 0; t < rows[r].labels.size(); ++t) rows[r].labels[t] = t < labels[r] ? 1 : kIgnoreLabel;
  }
  const Dataset data(rows);
  EXPECT_EQ(global_batch(data, 0, 4).valid_labels, 8);
  NamedValues expected;
  for (std::size_t r = 0; r < 4; ++r) {
    const Dataset alone({rows[r]});
    for (const auto& [name, values] : gradients_of(options_for(c, 1, 1), alone)) {
      auto& sum = expected.try_emplace(name, values.size(), 0.0).first->second;
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i] * static_cast<double>(labels[r]) / 8;
    }
  }
  expect_equal(gradients_of(options_for(c, 4, 1), data), expected, 1e-12);

  TrainerOptions wrong = options_for(c, 4, 1);
  wrong.faults.mean_of_means = true;
  double worst = 0;
  for (const NamedError& e : compare_sets(gradients_of(wrong, data), expected, CompareKind::kGradient))
    worst = std::max(worst, e.error.relative);
  EXPECT_GT(worst, 0.1);
}

// P03: a micro-batch whose labels are all ignored adds nothing; a global batch of them has loss 0 and gradient exactly 0.
TEST(LawOfGradients, P03_IgnoredLabelsAreFinite) {
  const GptConfig c = small();
  std::vector<Row> rows = some_rows(c, 4);
  std::fill(rows[1].labels.begin(), rows[1].labels.end(), kIgnoreLabel);
  const Dataset data(rows);
  expect_equal(gradients_of(options_for(c, 4, 1), data), gradients_of(options_for(c, 4, 4), data), 1e-12);

  for (Row& r : rows) std::fill(r.labels.begin(), r.labels.end(), kIgnoreLabel);
  const Dataset none(rows);
  Trainer trainer(options_for(c, 4, 1), none);
  const StepResult step = trainer.step();
  EXPECT_EQ(step.loss, 0.0);
  EXPECT_EQ(step.grad_norm, 0.0);
  for (const auto& [name, values] : trainer.gradients()) {
    for (double v : values) ASSERT_EQ(v, 0.0) << name;
  }
}

// P15: with zero gradients a step of decay 0.1 at lr 0.1 multiplies matrices by 0.99 and leaves norms and biases alone.
TEST(Optimizing, P15_DecayIsForMatrices) {
  GptConfig c = small("tiny-gpt2");
  std::vector<Row> rows = some_rows(c, 2);
  for (Row& r : rows) std::fill(r.labels.begin(), r.labels.end(), kIgnoreLabel);
  TrainerOptions o = options_for(c, 2, 1);
  o.optimizer.adamw.lr = 0.1;
  o.optimizer.adamw.weight_decay = 0.1;
  const Dataset data(rows);
  Trainer trainer(o, data);
  const NamedValues before = trainer.weights();
  (void)trainer.step();
  for (const Parameter* p : trainer.gpt().parameters()) {
    const auto after = p->weight.to_doubles(trainer.stream());
    const double factor = p->global_shape.size() >= 2 ? 0.99 : 1.0;
    for (std::size_t i = 0; i < after.size(); ++i) ASSERT_NEAR(after[i], before.at(p->name)[i] * factor, 1e-15) << p->name;
  }
}

// P45: the sequence length may change between accumulation steps.
TEST(LawOfGradients, P45_LengthsMayDiffer) {
  const GptConfig c = small();
  std::vector<Row> rows = some_rows(c, 2);
  for (auto* field : {&rows[1].tokens, &rows[1].labels, &rows[1].order, &rows[1].start}) field->resize(4);
  const Dataset both(rows), first({rows[0]}), second({rows[1]});
  auto sums = [&](const Dataset& data, std::int64_t batch) {  // gradients of the summed loss, not yet divided
    NamedValues g = gradients_of(options_for(c, batch, 1), data);
    const double labels = static_cast<double>(global_batch(data, 0, batch).valid_labels);
    for (auto& [name, values] : g) {
      for (double& v : values) v *= labels;
    }
    return g;
  };
  NamedValues added = sums(first, 1);
  for (const auto& [name, values] : sums(second, 1)) {
    for (std::size_t i = 0; i < values.size(); ++i) added[name][i] += values[i];
  }
  expect_equal(sums(both, 2), added, 1e-12);
}

// P28: a packed [q|k|v] weight of unequal widths, cut by segments and pasted together again, is itself; and a shard initialised
// on its own holds the values that the whole has there.
TEST(Placing, P28_SegmentsRoundTrip) {
  for (int dim : {0, 1}) {
    const Shape global = dim == 0 ? Shape{24, 5} : Shape{5, 24};
    Parameter whole("w", global, Init::kNormal, 0.02, true);
    StorageOptions storage;
    storage.dtype = Dtype::kFp64;
    materialise(whole, storage, device().compute());
    const HostTensor values = whole.weight.to_host(device().compute());
    HostTensor joined{Dtype::kFp64, global, std::vector<std::byte>(values.data.size())};
    for (std::int64_t rank = 0; rank < 2; ++rank) {  // q 12, k 4, v 8 wide
      Parameter shard("w", global, Init::kNormal, 0.02, true);
      shard.placement = {dim, {{rank * 6, rank * 6 + 6}, {12 + rank * 2, 14 + rank * 2}, {16 + rank * 4, 20 + rank * 4}}, {}};
      materialise(shard, storage, device().compute());
      const HostTensor local = shard.weight.to_host(device().compute());
      EXPECT_EQ(local.data, cut(values, shard.placement).data);
      paste(joined, local, shard.placement);
    }
    EXPECT_EQ(joined.data, values.data);
  }
}

TEST(Saving, TagsAreChecked) {
  Saved saved;
  saved.push("a", Tensor());
  EXPECT_THROW((void)saved.pop("b"), std::logic_error);
  EXPECT_FALSE(saved.empty());
  (void)saved.pop("a");
  EXPECT_THROW((void)saved.pop("a"), std::logic_error);
}

TEST(Gradients, OneContributionTooManyIsAnError) {
  Parameter p("w", {4}, Init::kZero, 0, false);
  materialise(p, {}, device().compute());
  p.begin_step(device().compute(), 1);
  (void)p.begin_contribution(device().compute());
  p.end_contribution(device().compute());
  (void)p.begin_contribution(device().compute());
  EXPECT_THROW(p.end_contribution(device().compute()), std::logic_error);
}

// Every byte that a trainer allocates is given back.
TEST(Memory, NothingStaysBehind) {
  const std::int64_t before = device().memory().total_current();
  {
    const GptConfig c = small();
    const Dataset data(some_rows(c, 3));
    Trainer trainer(options_for(c, 3, 1), data);
    (void)trainer.step();
    EXPECT_GT(device().memory().total_current(), before);
    EXPECT_EQ(device().memory().current(MemoryCategory::kActivations), 0);
  }
  EXPECT_EQ(device().memory().total_current(), before);
}

// The embedding's mask, and each block's, is another at every step and in every layer.
TEST(Dropout, MasksDependOnTheStepAndTheLayer) {
  GptConfig c = small();
  c.dropout = 0.5;
  const std::vector<Row> rows = some_rows(c, 1);
  const Dataset data(rows);
  Trainer trainer(options_for(c, 1, 1), data);
  Stream& stream = trainer.stream();
  Loader loader(c, Dtype::kFp64, stream);
  loader.start(rows, 0);
  const MicroBatch batch = loader.take(1.0);
  Context ctx = trainer.context();
  ctx.batch = &batch;
  const auto embedded = [&](std::uint32_t step) {
    ctx.step = step;
    return trainer.gpt().embedding->forward(ctx).to_doubles(stream);
  };
  EXPECT_EQ(embedded(3), embedded(3));
  EXPECT_NE(embedded(3), embedded(4));
  ctx.dropout = 0;
  const Tensor x = trainer.gpt().embedding->forward(ctx);
  ctx.dropout = 0.5;
  // The same weights in both blocks.
  Gpt& gpt = trainer.gpt();
  const auto of_layer = [&](std::size_t i) { return gpt.blocks[i]->parameters(); };
  for (std::size_t i = 0; i < of_layer(0).size(); ++i)
    load_weight(*of_layer(1)[i], of_layer(0)[i]->weight.to_host(stream), stream);
  const auto through = [&](std::size_t layer, std::uint32_t step) {
    ctx.step = step;
    Saved saved;
    return gpt.blocks[layer]->forward(ctx, x, saved).to_doubles(stream);
  };
  EXPECT_EQ(through(0, 3), through(0, 3));
  EXPECT_NE(through(0, 3), through(0, 4));
  EXPECT_NE(through(0, 3), through(1, 3));
  ctx.dropout = 0;
  EXPECT_EQ(through(0, 3), through(1, 3));
}

TEST(Seeds, All64BitsCount) {
  const GptConfig c = small();
  const Dataset data(some_rows(c, 1));
  TrainerOptions o = options_for(c, 1, 1);
  const NamedValues one = Trainer(o, data).weights();
  o.storage.seed += std::uint64_t{1} << 32;
  EXPECT_NE(Trainer(o, data).weights(), one);
}

TEST(StepResults, CountTokensAndLabels) {
  const GptConfig c = small();
  const Dataset data(some_rows(c, 3));
  Trainer trainer(options_for(c, 3, 2), data);
  const StepResult r = trainer.step();
  EXPECT_EQ(r.tokens, 3 * c.seq);
  EXPECT_EQ(r.valid_tokens, global_batch(data, 0, 3).valid_labels);
}

}  // namespace
}  // namespace ref5d::testing
