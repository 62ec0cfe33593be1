// Tensor-parallel models whose residual stream is cut by tokens train as one device does.
#include "common/device/error.h"
#include "tests/support/seq_context_testing.h"

namespace ref5d::testing {
namespace {

// Parameters that act on rows of the residual stream.
bool acts_on_rows(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool norm = (has("norm") || has("ln_")) && !has("q_norm") && !has("k_norm");
  return norm || has("o_proj.bias") || has("down_proj.bias") || has("c_proj.bias") || has("wpe") || has("embed_positions");
}

class SequenceParallel : public LayoutTest {
 protected:
  const int n_ = world().size();

  void expect_trains_as_alone(Mesh& mesh, const TrainerOptions& o, const Lesson& lesson, const std::string& what) {
    const Dataset data = uneven_data(o.model, 2 * o.global_batch);
    const RunValues truth = train_alone(mesh, o, data, 3);
    EXPECT_EQ(departure(mesh, train_over(mesh, o, lesson, data, 3), truth), "") << what << ", " << lesson.sequence.keep;
  }
};

// Of 7 and 14 rows, which few numbers of ranks divide; the last micro-batch is smaller. Norms, biases and positions of every
// kind; and what is recomputed, with what is kept.
TEST_F(SequenceParallel, EveryModelTrainsAsOnASingleDevice) {
  const Recompute recompute[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  std::size_t turn = 0;
  for (const char* name : {"llama", "llama_tied", "llama_biases", "llama_qk_norm", "llama_mixed", "llama_dropout", "gpt2",
                           "gpt2_mixed", "gpt2_untied", "gpt2_dropout"}) {
    if (n_ > variant(name).heads || n_ > 4 || (kEmulated && std::string(name) != "llama_mixed")) continue;
    auto mesh = mesh_slice({.tp = n_});
    for (const char* keep : {"shard", "gathered"}) {
      TrainerOptions o = replicated_options(variant(name), 1, {3, 2});
      o.recompute = recompute[turn++ % 3];
      expect_trains_as_alone(*mesh, o, sequence_parallel_lesson(keep), name);
    }
  }
}

// Heads that the ranks do not divide, and kv heads that several have; a row for each rank and not one more.
TEST_F(SequenceParallel, EveryShapeTrainsAsOnASingleDevice) {
  if (n_ > 4) return;
  auto mesh = mesh_slice({.tp = n_});
  for (const auto& [heads, kv_heads] : {std::pair{6, 1}, {6, 3}, {9, 3}, {8, 8}})
    for (const Recompute r : {Recompute::kNone, Recompute::kFull}) {
      if (kEmulated && (kv_heads != 3 || heads != 6)) continue;
      TrainerOptions o = replicated_options(with_heads(heads, kv_heads), 1, {2, 1});
      o.recompute = r;
      expect_trains_as_alone(*mesh, o, sequence_parallel_lesson(kv_heads == 3 ? "gathered" : "shard"),
                             "heads " + std::to_string(heads));
    }
  if (kEmulated) return;
  for (const int length : {n_, n_ + 1})
    expect_trains_as_alone(*mesh, replicated_options(with_length(with_heads(6, 2), length), 1, {2, 1}),
                           sequence_parallel_lesson("shard"), "length " + std::to_string(length));
}

TEST_F(SequenceParallel, WithEveryStrategyOfTheReplicas) {
  for (const AxisSizes& sizes : {AxisSizes{2, 1, 2}, {2, 1, 3}, {3, 1, 2}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = mesh_slice(sizes);
    for (const StrategyCase& s : strategies(sizes.dp)) {
      TrainerOptions o = replicated_options(variant("llama_mixed"), sizes.dp, {2, 1});
      o.model.dropout = 0.2;
      expect_trains_as_alone(*mesh, o, sequence_parallel_lesson("shard", s), s.text());
      if (n_ > 4) continue;
      expect_trains_as_alone(*mesh, replicated_options(with_heads(6, 3), sizes.dp, {2, 1}),
                             sequence_parallel_lesson("gathered", s), s.text());
    }
  }
}

// With it or without, norms, biases that are added after a sum, and positions have the reference's gradient, and the same bits
// on every rank.
TEST_F(SequenceParallel, P21_GradientsOfWhatActsOnRowsAreSummed) {
  NEEDS_RANKS(2);
  if (n_ > 3) return;  // the heads of GPT-2's small variants
  auto mesh = mesh_slice({.tp = n_});
  for (const char* name : {"llama_mixed", "gpt2", "llama_qk_norm"}) {
    const TrainerOptions o = replicated_options(variant(name), 1, {2, 1});
    const Dataset data = uneven_data(o.model, 4);
    const NamedValues expected = mesh->everyone().rank == 0 ? gradients_of(o, data) : NamedValues();
    for (const bool summed : {true, false}) {
      for (const bool sp : {false, true}) {
        Lesson lesson = sequence_parallel_lesson("shard");
        lesson.sp = sp;
        lesson.sequence.faults.norms_unsummed = !summed;
        Trainer trainer(over_mesh(*mesh, o, lesson), data);
        trainer.accumulate();
        std::vector<Tensor> on_rows;
        for (const Parameter* p : trainer.gpt().parameters())
          if (acts_on_rows(p->name)) on_rows.push_back(p->gradient);
        // Of a layer two norms and, with biases, two of these; the last norm; positions.
        const GptConfig& c = o.model;
        EXPECT_EQ(on_rows.size(), std::string(name) == "llama_qk_norm" ? 5u : std::size_t(2 * (4 + 2) + 2 + 1))
            << name << c.layers;
        const bool right = summed || !sp;
        EXPECT_EQ(equal_on_all((*mesh)["tp"].group(), on_rows, trainer.stream()), right) << name;
        const NamedValues gradients = trainer.gradients();
        if (mesh->everyone().rank != 0) continue;
        for (const NamedError& e : compare_sets(gradients, expected, CompareKind::kGradient)) {
          if (right || !acts_on_rows(e.name)) {
            EXPECT_LE(e.error.relative, 1e-11) << name << ": " << e.name;
          } else {
            EXPECT_GT(e.error.relative, 1e-3) << name << ": " << e.name;
          }
        }
      }
    }
  }
}

// Four heads with two kv heads over four ranks and a norm that they share, which tensor parallelism sums whether or not tokens
// are cut; and norms that are summed since they are.
TEST_F(SequenceParallel, P22_P23_T5_ParametersThatHeadsShare) {
  NEEDS_RANKS(4);
  if (n_ > 4) return;
  auto mesh = mesh_slice({.tp = 4});
  GptConfig c = with_heads(4, 2);
  c.qk_norm = true;
  const TrainerOptions o = replicated_options(c, 1, {2, 2});
  const Dataset data = uneven_data(c, 8);
  const RunValues truth = train_alone(*mesh, o, data, 20);
  const auto train_and_count = [&](const Lesson& lesson, std::int64_t& unequal) {
    return train_over(*mesh, o, lesson, data, 20, [&](Trainer& t) {
      const std::vector<Parameter*> all = t.gpt().parameters();
      unequal += unequal_elements(mesh->everyone(), {all.begin(), all.end()}, t.stream());
    });
  };
  world().traffic().reset();
  std::int64_t unequal = 0;
  EXPECT_EQ(departure(*mesh, train_and_count(sequence_parallel_lesson("shard"), unequal), truth), "");
  EXPECT_EQ(unequal, 0);
  // k and v over the ranks that hold a kv head; q's and k's norm, a layer's two norms and the last one over all.
  const std::string pair = mesh->coordinate("tp") < 2 ? "tp[0-1]" : "tp[2-3]";
  for (const auto& [key, count] : world().traffic().counts()) {
    if (key.phase != std::string("shared gradients") || count.calls == 0) continue;
    EXPECT_TRUE(key.axis == pair || key.axis == "tp") << key.axis;
    EXPECT_EQ(count.calls, key.axis == pair ? 20 * c.layers * 2 : 20 * (c.layers * 4 + 1)) << key.axis;
  }
  Lesson faulty = sequence_parallel_lesson("shard");
  faulty.tensor.faults.qk_norm_unsummed = true;
  unequal = 0;
  expect_departs(*mesh, train_and_count(faulty, unequal), truth, "an unsummed gradient");
  EXPECT_TRUE(mesh->everyone().rank != 0 || unequal > 0);
}

// Masks by sample and place, wherever a row is: the same again when it is drawn again, kept or gathered.
TEST_F(SequenceParallel, P27_DropoutAndRecomputation) {
  NEEDS_RANKS(2);
  if (n_ > 4) return;
  auto mesh = mesh_slice({.tp = n_});
  TrainerOptions o = replicated_options(variant("llama_dropout"), 1, {2, 1});
  const Dataset data = uneven_data(o.model, 4);
  const RunValues truth = train_alone(*mesh, o, data, 2);
  RunValues kept;
  for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const char* keep : {"shard", "gathered"}) {
      o.recompute = r;
      const RunValues run = train_over(*mesh, o, sequence_parallel_lesson(keep), data, 2);
      if (kept.losses.empty()) kept = run;
      EXPECT_TRUE(same_bits(*mesh, run, kept)) << static_cast<int>(r) << keep;
    }
  }
  EXPECT_EQ(departure(*mesh, kept, truth), "");
  Lesson faulty = sequence_parallel_lesson("shard");
  faulty.sequence.faults.dropout_by_row = true;
  expect_departs(*mesh, train_over(*mesh, o, faulty, data, 2), truth, "masks by a rank's own rows");
}

// What travels beside kernels, a second run, and other orders of the streams change no bit.
TEST_F(SequenceParallel, OverlapAndASecondRunChangeNoBit) {
  if (n_ > 4) return;
  auto mesh = mesh_slice({.tp = n_});
  const TrainerOptions o = replicated_options(variant("llama_mixed"), 1, {3, 1});
  const Dataset data = uneven_data(o.model, 6);
  const std::int64_t steps = kEmulated ? 1 : 2;
  for (const char* keep : {"shard", "gathered"}) {
    if (kEmulated && keep[0] == 'g') continue;
    Lesson lesson = sequence_parallel_lesson(keep);
    const RunValues first = train_over(*mesh, o, lesson, data, steps);
    for (std::uint64_t seed = 0; seed <= (kEmulated ? 0 : 4); ++seed) {
      set_order_seed(seed);
      EXPECT_TRUE(same_bits(*mesh, train_over(*mesh, o, lesson, data, steps), first)) << "seed " << seed;
    }
    set_order_seed(0);
    lesson.tensor.overlap = false;
    EXPECT_TRUE(same_bits(*mesh, train_over(*mesh, o, lesson, data, steps), first));
  }
}

TEST_F(SequenceParallel, LowPrecision) {
  if (kEmulated) return;  // one device alone takes it a minute
  for (const AxisSizes& sizes : {AxisSizes{2, 1, 1}, {2, 1, 2}, {4, 1, 1}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = mesh_slice(sizes);
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
      for (const char* kind : {"ddp", "zero3"}) {
        TrainerOptions o = replicated_options(with_heads(8, 1), sizes.dp, {2, 1});
        o.model.hidden = 64;
        o.model.init_std = 0.05;
        o.optimizer.adamw.lr = 1e-3;  // with larger steps rounding grows into other directions of Adam's
        const Dataset data = uneven_data(o.model, 2 * o.global_batch);
        const RunValues truth = train_alone(*mesh, o, data, 3);
        o.storage.dtype = dtype;
        const RunValues own = train_alone(*mesh, o, data, 3);
        const Lesson lesson = sequence_parallel_lesson("shard", strategy_case(kind));
        EXPECT_EQ(departure(*mesh, train_over(*mesh, o, lesson, data, 3), truth, dtype, &own), "")
            << kind << " " << dtype_name(dtype);
      }
    }
  }
}

TEST_F(SequenceParallel, WhatCannotBeCutIsRefused) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.tp = 2});
  if (!mesh) return;
  const auto apply = [&](std::int64_t length, std::int64_t micro_batch) {
    TrainerOptions o = options_for(with_length(small(), length), micro_batch, micro_batch);
    (void)over_mesh(*mesh, o, sequence_parallel_lesson("shard"));
  };
  EXPECT_THROW(apply(1, 1), InputError);
  EXPECT_NO_THROW(apply(1, 2));
  EXPECT_NO_THROW(apply(2, 1));
  // The row that a rank keeps is taken from the rows of a micro-batch as context parallelism leaves them.
  TrainerOptions o = options_for(small(), 1, 1);
  const auto axis = tensor_parallel::apply(o, *mesh, {});
  o.loader.cut = [](const Row& row) { return row; };
  EXPECT_THROW(sequence_parallel::apply(o, *mesh, axis, {}, 7, 7), std::logic_error);
  o.loader.cut = nullptr;
  o.accumulate = [](Gpt&, Context&, Loader&, const GlobalBatch&) {};
  EXPECT_THROW(sequence_parallel::apply(o, *mesh, axis, {}, 7, 7), std::logic_error);
}

// A reduction after every micro-batch leaves a sum that the tp axis would add up again; and here every model has such sums.
TEST_F(SequenceParallel, SyncEveryMicroBatchIsRefused) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.tp = 2});
  if (!mesh) return;
  StrategyCase s = strategy_case("ddp");
  s.options.sync_every_micro_batch = true;
  const TrainerOptions o =
      over_mesh(*mesh, replicated_options(with_heads(6, 6), 1, {2, 1}), sequence_parallel_lesson("shard", s));
  const Dataset data = uneven_data(o.model, 2);
  EXPECT_THROW(Trainer(o, data), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
