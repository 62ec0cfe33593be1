// The trainer's seams, on which layouts over several ranks stand: the cut, the accumulation, the gather, the optimizer's
// reduction. Ranks are played one after the other.
#include "common/train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "common/device/error.h"
#include "common/io/safetensors.h"
#include "common/tensor/ignore_label.h"
#include "common/train/checkpoint.h"
#include "common/train/dump.h"
#include "common/train/weights.h"
#include "tests/support/io_testing.h"
#include "tests/support/kernel_testing.h"

namespace ref5d::testing {
namespace {

constexpr std::int64_t kBatch = 4;

GptConfig small_model() {
  GptConfig c = preset("tiny");
  c.vocab = 300;  // a weight of several blocks of the gradient norm
  c.hidden = 24;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.ffn = 10;
  c.seq = 9;
  return c;
}

Dataset small_data(const GptConfig& c) {
  std::mt19937 generator(2);
  std::vector<Row> rows(kBatch);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::int64_t t = 0; t < c.seq; ++t) {
      rows[r].tokens.push_back(static_cast<std::int32_t>(generator() % static_cast<unsigned>(c.vocab)));
      rows[r].labels.push_back(t < static_cast<std::int64_t>(r) ? kIgnoreLabel : rows[r].tokens.back());
      rows[r].order.push_back(static_cast<std::int32_t>(t));
      rows[r].start.push_back(0);
    }
  }
  return Dataset(rows);
}

TrainerOptions small_options(Dtype dtype = Dtype::kFp64) {
  TrainerOptions o;
  o.model = small_model();
  o.storage.dtype = dtype;
  o.global_batch = kBatch;
  o.micro_batch = 2;
  return o;
}

class Trainers : public ::testing::Test {
 protected:
  const Dataset data_ = small_data(small_model());
};

// shard sees each parameter's weights before the next one has storage, and no optimizer state; after_update sees the step's new
// weights.
TEST_F(Trainers, ShardAndAfterUpdateComeInTheirPlaces) {
  TrainerOptions o = small_options();
  const auto held = [](MemoryCategory c) { return device().memory().current(c); };
  const std::int64_t state_before = held(MemoryCategory::kOptimizer);
  std::int64_t weights = held(MemoryCategory::kParameters);
  std::vector<std::string> sharded, names;
  std::vector<double> seen;
  o.shard = [&](Parameter& p) {
    if (sharded.empty()) seen.push_back(p.weight.to_doubles(device().compute())[0]);
    sharded.push_back(p.name);
    weights += static_cast<std::int64_t>(p.weight.bytes());
    EXPECT_EQ(held(MemoryCategory::kParameters), weights) << p.name;
    EXPECT_EQ(held(MemoryCategory::kOptimizer), state_before);
  };
  const auto first_weight = [](Gpt& gpt) { return gpt.parameters()[0]->weight.to_doubles(device().compute())[0]; };
  o.after_update = [&](Gpt& gpt, Context&) { seen.push_back(first_weight(gpt)); };
  Trainer trainer(o, data_);
  for (int s = 0; s < 2; ++s) (void)trainer.step();
  for (const Parameter* p : trainer.gpt().parameters()) names.push_back(p->name);
  EXPECT_EQ(sharded, names);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_NE(seen[1], seen[2]);
  EXPECT_EQ(seen[2], first_weight(trainer.gpt()));
}

// With several replicas a micro-batch's auxiliary loss counts as one of all of theirs.
TEST_F(Trainers, ScalesOfMicroBatchesFollowTheLawOfGradients) {
  TrainerOptions o = small_options();
  o.global_batch = 5;
  std::vector<std::int64_t> rows;
  o.accumulate = [&](Gpt&, Context& ctx, Loader& loader, const GlobalBatch& batch) {
    GlobalBatch mine = batch;
    mine.replicas = 4;
    for_each_micro_batch(ctx, loader, mine, 2, [&](std::int64_t m, MicroBatch& b) {
      EXPECT_EQ(m, static_cast<std::int64_t>(rows.size()));
      EXPECT_EQ(ctx.batch, &b);
      EXPECT_EQ(b.loss_scale, batch.loss_scale());
      EXPECT_EQ(b.aux_loss_scale, 1.0 / (3 * 4));
      rows.push_back(b.batch);
    });
    EXPECT_EQ(ctx.batch, nullptr);
  };
  Trainer(o, data_).accumulate();
  EXPECT_EQ(rows, (std::vector<std::int64_t>{2, 2, 1}));
}

// A rank's half of every MLP, cut as tensor parallelism cuts it: up and gate by rows, down by columns.
std::function<void(Gpt&)> half_of_each_mlp(std::int64_t rank) {
  return [rank](Gpt& gpt) {
    for (Parameter* p : gpt.parameters()) {
      if (p->name.find(".mlp.") == std::string::npos) continue;
      p->placement.dim = p->name.find("down_proj") == std::string::npos ? 0 : 1;
      p->placement.segments = {{rank * 5, rank * 5 + 5}};
    }
  };
}

TEST_F(Trainers, ACutIsAppliedBeforeThereIsStorage) {
  Trainer whole(small_options(), data_);
  const NamedTensors weights = whole.global_weights();
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    TrainerOptions o = small_options();
    o.cut = half_of_each_mlp(rank);
    Trainer half(o, data_);
    for (const Parameter* p : half.gpt().parameters()) {
      EXPECT_EQ(p->weight.shape(), p->local_shape()) << p->name;
      EXPECT_EQ(p->weight.to_host(half.stream()).data, cut(weights.at(p->name), p->placement).data) << p->name;
    }
    EXPECT_EQ(half.gpt().blocks[1]->parameters().size(), whole.gpt().blocks[1]->parameters().size());
    const StepResult step = half.step();
    EXPECT_GT(step.grad_norm, 0);
    expect_contains(error_of<std::logic_error>([&] { (void)half.weights(); }), "model.layers.0.mlp.");
    expect_contains(error_of<std::logic_error>([&] { (void)half.gradients(); }), "model.layers.0.mlp.");
  }
}

// Both halves are put together by the gather: for weights, dumps and checkpoints.
TEST_F(Trainers, GatheredTensorsAreGlobalEverywhere) {
  TrainerOptions o = small_options(Dtype::kBf16);
  o.cut = half_of_each_mlp(1);
  Trainer other(o, data_);
  o.cut = half_of_each_mlp(0);
  std::vector<std::string> gathered;
  const NamedTensors whole_weights = Trainer(small_options(Dtype::kBf16), data_).global_weights();
  o.gather = [&](const Parameter& p, const HostTensor& part) {
    gathered.push_back(p.name);
    HostTensor global{part.dtype, p.global_shape, {}};
    global.data.resize(static_cast<std::size_t>(global.numel()) * dtype_size(part.dtype));
    paste(global, part, p.placement);
    for (const Parameter* q : other.gpt().parameters()) {
      if (q->name == p.name) paste(global, exact_weight(*q).to_host(other.stream()), q->placement);
    }
    return global;
  };
  Trainer trainer(o, data_);
  EXPECT_EQ(trainer.weights().size(), trainer.gpt().parameters().size());
  EXPECT_EQ(gathered.size(), 6u) << "three matrices in each of two layers";
  for (const auto& [name, tensor] : trainer.global_weights()) EXPECT_EQ(tensor.data, whole_weights.at(name).data) << name;

  DumpingRun dump(trainer, data_, kBatch, false);
  const StepResult first = trainer.step();
  dump.after_first_step(first);
  const NamedTensors& dumped = dump.finish({first.loss});
  const TempDir dir;
  save(trainer, dir.path("ck"));
  const SafetensorsFile model(dir.path("ck") + "/step_1/model.safetensors"),
      moments(dir.path("ck") + "/step_1/optimizer.safetensors");
  for (const Parameter* p : trainer.gpt().parameters()) {
    for (const char* group : {"init/", "grad/", "final/"})
      EXPECT_EQ(dumped.at(group + p->name).shape, p->global_shape) << group << p->name;
    EXPECT_EQ(model.info(p->name).shape, p->global_shape);
    for (const char* moment : {"m/", "v/"}) EXPECT_EQ(moments.info(moment + p->name).shape, p->global_shape);
  }
}

// Two replicas, one after the other, in place of the plain accumulation.
TEST_F(Trainers, AnAccumulationCanStandIn) {
  Trainer plain(small_options(), data_);
  TrainerOptions o = small_options();
  int calls = 0;
  o.accumulate = [&](Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& batch) {
    ++calls;
    for (std::int64_t replica = 0; replica < 2; ++replica) {
      GlobalBatch share = batch;  // the labels of all replicas stay the divisor
      share.first_sample += replica * 2;
      share.rows = {batch.rows.begin() + replica * 2, batch.rows.begin() + replica * 2 + 2};
      AccumulationFaults add_to_the_first;
      add_to_the_first.keep_gradients = replica > 0;
      accumulate_gradients(gpt, ctx, loader, share, 1, add_to_the_first);
    }
  };
  Trainer replicas(o, data_);
  for (int step = 1; step <= 2; ++step) {
    const StepResult a = plain.step(), b = replicas.step();
    EXPECT_EQ(calls, step);
    EXPECT_NEAR(b.loss, a.loss, 1e-13);
    EXPECT_NEAR(b.grad_norm, a.grad_norm, 1e-13);
  }
  for (const auto& [name, values] : plain.weights())
    EXPECT_LT(relative_error(replicas.weights().at(name), values), 1e-12) << name;
}

TEST_F(Trainers, AStepOnAGradientThatIsNotFinalIsRefused) {
  Trainer trainer(small_options(), data_);
  trainer.accumulate();
  Parameter& p = *trainer.gpt().parameters()[3];
  p.begin_step(trainer.stream(), 2);
  const std::string error = error_of<std::logic_error>([&] { trainer.update(); });
  expect_contains(error, p.name);
  expect_contains(error, "2 contributions");
  EXPECT_EQ(trainer.steps_taken(), 0);
  trainer.accumulate();
  EXPECT_NO_THROW(trainer.update());
}

// `ranks` flat ranges of every parameter: multiples of `unit` elements, the last rank's what remains.
std::function<void(Gpt&)> flat_ranges(std::int64_t rank, std::int64_t ranks, std::int64_t unit) {
  return [=](Gpt& gpt) {
    for (Parameter* p : gpt.parameters()) {
      const std::int64_t n = p->local_numel(), share = (n / ranks + unit - 1) / unit * unit;
      p->placement.flat_begin = std::min(n, rank * share);
      p->placement.flat_end = rank + 1 == ranks ? n : std::min(n, (rank + 1) * share);
    }
  };
}

// Each rank keeps the moments of its flat ranges and updates them alone; only the sums of squares are exchanged.
class ShardedOptimizer : public Trainers {
 protected:
  static constexpr std::int64_t kRanks = 3;

  // The most exact weights after `steps` steps, put together from the ranks' ranges. Ranges that end at blocks give the bits of
  // the whole; others split a block's sum.
  [[nodiscard]] NamedTensors train_sharded(Dtype dtype, std::int64_t unit, int steps, std::vector<double>& norms) const {
    std::vector<std::unique_ptr<Trainer>> ranks;
    std::vector<std::vector<double>> partials(kRanks);
    for (std::int64_t r = 0; r < kRanks; ++r) {
      TrainerOptions o = small_options(dtype);
      o.optimizer.clip = 0.01;  // far below the norm, so that the norm counts
      o.cut = flat_ranges(r, kRanks, unit);
      o.optimizer.reduce_partials = [&partials](Stream& stream, const std::vector<OptimizerState>&, const Tensor& all) {
        std::vector<double> sum(partials[0].size());
        for (const auto& some : partials) std::transform(sum.begin(), sum.end(), some.begin(), sum.begin(), std::plus<>());
        all.copy_from(HostTensor::from_doubles(sum, all.shape(), Dtype::kFp64), stream);
      };
      ranks.push_back(std::make_unique<Trainer>(o, data_));
    }
    for (int s = 0; s < steps; ++s) {
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        ranks[r]->accumulate();
        partials[r] = partials_of(*ranks[r]);
      }
      for (auto& trainer : ranks) trainer->update();
      norms.push_back(ranks[0]->optimizer().norm().to_doubles(ranks[0]->stream())[0]);
      gather_weights(ranks);
    }
    return joined(ranks);
  }

  // The partials that the trainer's optimizer will hand to its reduction, from one that changes nothing.
  static std::vector<double> partials_of(Trainer& trainer) {
    std::vector<double> partials;
    OptimizerOptions o;
    o.adamw.lr = 0;
    o.reduce_partials = [&](Stream& stream, const std::vector<OptimizerState>&, const Tensor& all) {
      partials = all.to_doubles(stream);
    };
    Optimizer(trainer.gpt().parameters(), o, trainer.stream()).step(trainer.stream());
    return partials;
  }

  static NamedTensors joined(const std::vector<std::unique_ptr<Trainer>>& ranks) {
    NamedTensors weights;
    for (const auto& trainer : ranks) {
      for (const Parameter* p : trainer->gpt().parameters()) {
        const HostTensor part = held_part(*p, exact_weight(*p)).to_host(trainer->stream());
        HostTensor& global = weights.try_emplace(p->name, HostTensor{part.dtype, p->global_shape, {}}).first->second;
        global.data.resize(static_cast<std::size_t>(global.numel()) * dtype_size(part.dtype));
        paste(global, part, p->placement);
      }
    }
    return weights;
  }

  // The all-gather of updated weights.
  static void gather_weights(const std::vector<std::unique_ptr<Trainer>>& ranks) {
    const NamedTensors weights = joined(ranks);
    for (const auto& trainer : ranks) {
      for (Parameter* p : trainer->gpt().parameters()) load_weight(*p, weights.at(p->name), trainer->stream());
    }
  }
};

TEST_F(ShardedOptimizer, RangesOfWholeBlocksGiveTheBitsOfTheWhole) {
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    TrainerOptions o = small_options(dtype);
    o.optimizer.clip = 0.01;
    Trainer whole(o, data_);
    std::vector<double> norms;
    const NamedTensors sharded = train_sharded(dtype, kNormBlock, 3, norms);
    for (double norm : norms) EXPECT_EQ(whole.step().grad_norm, norm);
    for (const auto& [name, tensor] : whole.global_weights()) EXPECT_EQ(sharded.at(name).data, tensor.data) << name;
  }
}

TEST_F(ShardedOptimizer, OtherRangesDifferInRoundingAlone) {
  TrainerOptions o = small_options();
  o.optimizer.clip = 0.01;
  Trainer whole(o, data_);
  std::vector<double> norms;
  const NamedTensors sharded = train_sharded(Dtype::kFp64, 7, 3, norms);
  for (double norm : norms) EXPECT_NEAR(whole.step().grad_norm / norm, 1, 1e-14);
  for (const auto& [name, values] : whole.weights())
    EXPECT_LT(relative_error(sharded.at(name).to_doubles(), values), 1e-13) << name;
}

TEST_F(ShardedOptimizer, MomentsAreOfTheRangeAndResumeFromACheckpointOfTheWhole) {
  Trainer whole(small_options(Dtype::kBf16), data_);
  (void)whole.step();
  const TempDir dir;
  save(whole, dir.path("ck"));
  std::int64_t elements = 0;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    TrainerOptions o = small_options(Dtype::kBf16);
    o.cut = flat_ranges(rank, kRanks, 7);
    Trainer trainer(o, data_);
    resume(trainer, dir.path("ck"));
    EXPECT_EQ(trainer.steps_taken(), 1);
    for (std::size_t i = 0; i < trainer.optimizer().states().size(); ++i) {
      const OptimizerState &s = trainer.optimizer().states()[i], &all = whole.optimizer().states()[i];
      const Parameter& p = *s.parameter;
      elements += s.m.numel();
      EXPECT_EQ(s.m.to_host(trainer.stream()).data, cut(all.m.to_host(whole.stream()), p.placement).data) << p.name;
      EXPECT_EQ(s.v.to_host(trainer.stream()).data, cut(all.v.to_host(whole.stream()), p.placement).data) << p.name;
      EXPECT_EQ(values_of(p.weight), values_of(all.parameter->weight)) << p.name;
      EXPECT_EQ(values_of(p.master), values_of(all.parameter->master)) << p.name;
    }
  }
  EXPECT_EQ(elements, small_model().parameter_count());
}

// 6 N + 12 L H S against what a step computes: all matrix products exactly; attention with a causal mask, which sees (S + 1) /
// 2 keys on average, and computes the scores again in backward (14 where the model needs 12).
TEST(FlopsPerToken, AreWhatTheLedgerCounts) {
  for (const char* name : {"tiny", "tiny-gpt2"}) {
    TrainerOptions o = small_options(Dtype::kFp32);
    o.model = preset(name);
    const GptConfig& c = o.model;
    const Dataset data = small_data(c);
    Trainer trainer(o, data);
    device().flops().reset();
    trainer.accumulate();
    trainer.stream().synchronize();
    const auto tokens = static_cast<double>(kBatch * c.seq), seq = static_cast<double>(c.seq);
    const FlopsLedger& ledger = device().flops();
    const auto products = static_cast<double>(ledger.count(FlopsKind::kBlockLinear) + ledger.count(FlopsKind::kHead)) / tokens;
    const double attention = static_cast<double>(ledger.count(FlopsKind::kAttention)) / tokens * 12 / 14;
    EXPECT_EQ(products, 6 * static_cast<double>(c.matmul_parameter_count()));
    EXPECT_NEAR(products + attention * seq / (seq + 1), c.flops_per_token(true), 1e-6);
    EXPECT_NEAR(products + attention * 2 * seq / (seq + 1), c.flops_per_token(false), 1e-6);
  }
}

// A file's head must be what the model takes it for.
TEST_F(Trainers, ATiedHeadIsTheEmbeddingInTheFileToo) {
  const TempDir dir;
  TrainerOptions o = small_options();
  NamedTensors file = Trainer(o, data_).global_weights();
  write_safetensors(dir.path("untied"), file);
  o.model.tied = true;
  o.load = dir.path("untied");
  EXPECT_THROW(Trainer(o, data_), InputError) << "another head";
  file["lm_head.weight"] = file.at("model.embed_tokens.weight");
  write_safetensors(dir.path("tied"), file);
  o.load = dir.path("tied");
  EXPECT_NO_THROW(Trainer(o, data_));
  file["lm_head.weight"] = HostTensor::from_doubles({1, 2, 3}, {3}, Dtype::kFp64);
  write_safetensors(dir.path("odd"), file);
  o.load = dir.path("odd");
  EXPECT_THROW(Trainer(o, data_), InputError);
  // An untied model may start from a tied file, but a checkpoint without a head is damaged.
  file.erase("lm_head.weight");
  write_safetensors(dir.path("headless"), file);
  o.model.tied = false;
  o.load = dir.path("headless");
  EXPECT_NO_THROW(Trainer(o, data_));
  Trainer trainer(small_options(), data_);
  EXPECT_THROW(load_weights(trainer.gpt(), dir.path("headless"), trainer.stream(), UntiedHead::kOwn), InputError);
}

}  // namespace
}  // namespace ref5d::testing
