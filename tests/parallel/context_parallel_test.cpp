// Models whose sequences are cut over ranks train as one device does, whatever kind of attention joins them.
#include "common/device/error.h"
#include "tests/support/golden_testing.h"
#include "tests/support/seq_context_testing.h"

namespace ref5d::testing {
namespace {

class ContextParallel : public LayoutTest {
 protected:
  const int n_ = world().size();

  void expect_trains_as_alone(Mesh& mesh, const TrainerOptions& o, const Lesson& lesson, const Dataset& data,
                              const std::string& what) {
    const RunValues truth = train_alone(mesh, o, data, 2);
    EXPECT_EQ(departure(mesh, train_over(mesh, o, lesson, data, 2), truth), "") << what << ", " << text(lesson.context);
  }
};

// As many heads as the ranks of any group need.
GptConfig with_enough_heads(int ranks) { return with_heads(ranks > 6 ? 8 : 6, 2); }

// Every kind with every layout, where the ranks divide the tokens and where they do not, and where there are fewer than two for
// each; several documents in a row; a last micro-batch that is smaller; kv heads that several ranks of ulysses have.
TEST_F(ContextParallel, EveryKindTrainsAsOnASingleDevice) {
  auto mesh = mesh_slice({.cp = n_});
  for (const std::string& layout : context_parallel::layout_names()) {
    if (kEmulated && layout != "zigzag") continue;
    for (const std::int64_t length : {n_ + 1, 2 * n_, 13}) {
      if (length != 13 && (kEmulated || (n_ > 4 && length == 2 * n_))) continue;
      const TrainerOptions o = replicated_options(with_length(with_enough_heads(n_), length), 1, {kEmulated ? 2 : 3, 2});
      const Dataset data = packed_data(o.model, o.global_batch);
      const RunValues truth = train_alone(*mesh, o, data, 2);
      for (const ContextParallelOptions& context : every_kind(n_, layout))
        EXPECT_EQ(departure(*mesh, train_over(*mesh, o, lesson_of(context), data, 2), truth), "")
            << text(context) << ", length " << length;
    }
  }
}

// Packed queries, keys and values, norms of heads, learned positions, dropout: nothing of it knows of the ranks.
TEST_F(ContextParallel, EveryModelTrainsAsOnASingleDevice) {
  if (n_ > 3 || kEmulated) return;  // the heads of GPT-2's small variants
  auto mesh = mesh_slice({.cp = n_});
  const Recompute recompute[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  std::size_t turn = 0;
  for (const char* name :
       {"llama_tied", "llama_qk_norm", "llama_mixed", "llama_dropout", "gpt2", "gpt2_mixed", "gpt2_dropout"}) {
    for (const char* kind : {"ring", "allgather", "ulysses"}) {
      TrainerOptions o = replicated_options(variant(name), 1, {2, 1});
      o.recompute = recompute[turn++ % 3];
      expect_trains_as_alone(*mesh, o, lesson_of(context_of(kind)), uneven_data(o.model, 4), name);
    }
  }
}

// Query heads that the ranks do not divide, and kv heads that several of them need: each gets them, and their sums are one.
TEST_F(ContextParallel, UlyssesSharesKvHeads) {
  auto mesh = mesh_slice({.cp = n_});
  for (const auto& [heads, kv_heads] : {std::pair{6, 1}, {6, 3}, {8, 4}, {9, 3}, {8, 1}}) {
    if (heads < n_ || (kEmulated && (heads != 6 || kv_heads != 3))) continue;
    for (const int size : {0, n_ % 2 == 0 ? n_ / 2 : 1}) {
      const TrainerOptions o = replicated_options(with_length(with_heads(heads, kv_heads), 9), 1, {2, 2});
      expect_trains_as_alone(*mesh, o, lesson_of(context_of("ulysses", "striped", size)), uneven_data(o.model, 4),
                             std::to_string(heads) + " heads, " + std::to_string(kv_heads) + " kv heads");
    }
  }
}

// Ranks along all three axes, tokens cut twice, and every strategy over dp x cp.
TEST_F(ContextParallel, WithTheOtherAxesAndEveryStrategy) {
  std::vector<ContextParallelOptions> kinds;
  for (const char* layout : {"zigzag", "contiguous", "striped"})
    for (const char* kind : {"ring", "allgather", "ulysses"}) kinds.push_back(context_of(kind, layout));
  std::size_t first = 0;
  for (const AxisSizes& sizes : {AxisSizes{1, 2, 1}, {1, 2, 2}, {2, 2, 1}, {1, 3, 2}, {2, 3, 1}, {3, 2, 1}, {2, 2, 2}}) {
    std::size_t turn = first++;  // the same on ranks that sit this one out
    if (sizes.ranks() != n_) continue;
    auto mesh = mesh_slice(sizes);
    for (const StrategyCase& s : strategies(sizes.cp * sizes.dp)) {
      if (kEmulated && s.options.kind != "zero3") continue;
      for (const bool sp : {false, true}) {
        if (sizes.tp == 1 ? sp : !sp && n_ > 4) continue;
        Lesson lesson = lesson_of(s, kinds[turn % kinds.size()]);
        lesson.sp = sp;
        lesson.sequence.keep = turn % 2 == 0 ? "shard" : "gathered";
        TrainerOptions o = replicated_options(with_heads(6, 3), sizes.dp, {2, 1});
        if (turn++ % 2 == 0) o.model = variant("llama_mixed");
        o.model.dropout = 0.2;
        expect_trains_as_alone(*mesh, o, lesson, uneven_data(o.model, 2 * o.global_batch),
                               sizes.text() + ", " + s.text() + (sp ? ", sp" : ""));
      }
    }
  }
}

// The same four sequences over (dp, cp) = (4, 1), (2, 2) and (1, 4): the reference's gradients, and so each other's.
TEST_F(ContextParallel, P04_TheFactorOfCp) {
  NEEDS_RANKS(4);
  if (n_ > 4) return;
  GptConfig c = with_length(with_heads(4, 2), 8);
  const Dataset data = uneven_data(c, 4);
  const TrainerOptions o = options_for(c, 4, 1);
  std::vector<NamedValues> all;
  for (const AxisSizes& sizes : {AxisSizes{1, 1, 4}, {1, 2, 2}, {1, 4, 1}}) {
    auto mesh = mesh_slice(sizes);
    for (const char* kind : {"ring", "allgather", "ulysses"}) {
      Lesson lesson = lesson_of(context_of(kind));
      const auto gradients = [&] {
        Trainer trainer(over_mesh(*mesh, o, lesson), data);
        trainer.accumulate();
        return trainer.gradients();
      };
      const NamedValues expected = mesh->everyone().rank == 0 ? gradients_of(o, data) : NamedValues();
      const NamedValues right = gradients();
      if (mesh->everyone().rank == 0) {
        expect_equal(right, expected, 1e-11);
        if (!all.empty()) expect_equal(right, all[0], 1e-11);
        all.push_back(right);
      }
      for (bool data_parallel::Faults::*fault : {&data_parallel::Faults::without_cp, &data_parallel::Faults::average_again}) {
        if (sizes.cp == 1) continue;
        lesson.strategy.faults = {};
        lesson.strategy.faults.*fault = true;
        const NamedValues wrong = gradients();
        for (const NamedError& e : compare_sets(wrong, expected, CompareKind::kGradient))
          EXPECT_TRUE(mesh->everyone().rank != 0 || e.error.relative > 0.1) << e.name;
      }
    }
  }
}

// Two micro-batches whose tokens are on two ranks, 5 and 0 labels on the first, 1 and 2 on the second, with gradients of 1 and
// 7 and 2: 16 / 8.
TEST_F(ContextParallel, T1_LabelsOfAllRanksCountEqually) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = 2});
  if (!mesh) return;
  const GptConfig c = with_length(small(), 10);
  std::vector<Row> rows = some_rows(c, 2);
  for (Row& row : rows) std::fill(row.labels.begin(), row.labels.end(), kIgnoreLabel);
  std::fill_n(rows[0].labels.begin(), 5, 1);
  std::fill_n(rows[0].labels.begin() + 5, 1, 1);
  std::fill_n(rows[1].labels.begin() + 7, 2, 1);
  const double token_gradients[2][2] = {{1, 0}, {7, 2}};
  const GlobalBatch batch = global_batch(Dataset(rows), 0, 2);
  EXPECT_EQ(batch.valid_labels, 8);
  TrainerOptions o = options_for(c, 2, 1);
  context_parallel::apply(o, *mesh, context_of("ring", "contiguous"));
  const auto rank = static_cast<std::size_t>((*mesh)["cp"].rank());
  std::vector<double> contributions;
  for (std::size_t m = 0; m < rows.size(); ++m)
    contributions.push_back(token_gradients[rank][m] * static_cast<double>(count_valid_labels(o.loader.cut(rows[m]))) *
                            batch.loss_scale());
  for (const StrategyCase& s : every_strategy(2)) {
    HandFed fed(*mesh, s, storage_of(Dtype::kFp64), small());
    fed.step(contributions);
    EXPECT_EQ(unlike(2.0, fed.held_gradients()), "") << s.text();
    if (s.options.kind != "ddp") continue;
    StrategyCase wrong = s;
    wrong.options.faults.average_again = true;
    HandFed again(*mesh, wrong, storage_of(Dtype::kFp64), small());
    again.step(contributions);
    EXPECT_EQ(unlike(1.0, again.held_gradients()), "") << "divided by the ranks again";
  }
}

// Cut 0.6 and 0.8, whole 1 and 3, tied and cut 6 and 8: the digits of 111, however tokens are cut. ZeRO's padding holds 1e3.
TEST_F(ContextParallel, T2_DigitsOfTheNorm) {
  NEEDS_RANKS(2);
  for (const AxisSizes& sizes : {AxisSizes{2, 1, 1}, {2, 2, 1}, {2, 2, 2}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = mesh_slice(sizes);
    for (StrategyCase s : strategies(sizes.cp * sizes.dp)) {
      s.options.padding = 1e3;
      Lesson lesson = lesson_of(s);
      lesson.sp = true;
      const TrainerOptions o = over_mesh(*mesh, replicated_options(variant("llama_tied"), sizes.dp, {1, 1}), lesson);
      const Dataset data = uneven_data(o.model, sizes.dp);
      Trainer trainer(o, data);
      trainer.accumulate();
      for (Parameter* p : trainer.gpt().parameters()) {
        const Tensor held = held_part(*p, p->final_gradient());
        std::vector<double> values(static_cast<std::size_t>(p->local_numel()), 0.0);
        const bool first = mesh->coordinate("tp") == 0;
        if (p->name == "model.layers.0.self_attn.q_proj.weight") values[1] = first ? 0.6 : 0.8;
        if (p->name == "model.norm.weight") values[0] = 1, values[1] = 3;
        if (p->name == "model.embed_tokens.weight") values[2] = first ? 6 : 8;
        const FlatRange range = flat_range(p->placement, p->local_numel());
        values = {values.begin() + range.begin, values.begin() + range.end};
        if (held.numel() > 0) held.copy_from(HostTensor::from_doubles(values, {range.size()}, Dtype::kFp64), trainer.stream());
      }
      trainer.update();
      EXPECT_NEAR(trainer.optimizer().norm().to_doubles(trainer.stream())[0], std::sqrt(111.0), 1e-12)
          << sizes.text() << ", " << s.text();
    }
  }
}

// Masks by sample and place in the whole sequence: the same again when they are drawn again.
TEST_F(ContextParallel, P27_DropoutAndRecomputation) {
  auto mesh = mesh_slice({.cp = std::min(n_, 6)});
  if (!mesh) return;
  for (const char* kind : {"ring", "allgather", "ulysses"}) {
    if (kEmulated && kind[0] != 'u') continue;
    TrainerOptions o = replicated_options(variant("llama_dropout"), 1, {2, 1});
    const Dataset data = uneven_data(o.model, 4);
    const RunValues truth = train_alone(*mesh, o, data, 2);
    RunValues kept;
    for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      o.recompute = r;
      const RunValues run = train_over(*mesh, o, lesson_of(context_of(kind)), data, 2);
      if (r == Recompute::kNone) kept = run;
      EXPECT_TRUE(same_bits(*mesh, run, kept)) << kind << static_cast<int>(r);
    }
    EXPECT_EQ(departure(*mesh, kept, truth), "") << kind;
  }
}

// Of 7 tokens over two ranks, all of them with labels, 7 are trained.
TEST_F(ContextParallel, P29_NoTokenIsDropped) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = 2});
  if (!mesh) return;
  const TrainerOptions o = options_for(with_length(small(), 7), 2, 1);
  std::vector<Row> rows = some_rows(o.model, 2);
  for (Row& row : rows)
    for (std::size_t t = 0; t < row.labels.size(); ++t) row.labels[t] = static_cast<std::int32_t>(t);
  const Dataset data(rows);
  const RunValues truth = train_alone(*mesh, o, data, 1);
  for (const std::string& layout : context_parallel::layout_names()) {
    for (const bool trims : {false, true}) {
      ContextParallelOptions context = context_of("ring", layout);
      context.faults.trim = trims;
      TrainerOptions cut = over_mesh(*mesh, o, lesson_of(context));
      std::int64_t tokens = 0;
      cut.loader.cut = [&tokens, before = cut.loader.cut](const Row& row) {
        Row part = before(row);
        tokens += static_cast<std::int64_t>(part.tokens.size());
        return part;
      };
      Trainer trainer(cut, data);
      const RunValues run = values_of_steps(trainer, 1, false);
      double all = 0;
      for (const Bytes& bytes : all_gather_on_host(mesh->everyone(), to_bytes(static_cast<double>(tokens))))
        all += to_number(bytes);
      EXPECT_EQ(all, trims ? 2 * 4 : 2 * 7) << layout;
      EXPECT_TRUE(mesh->everyone().rank != 0 || departure(*mesh, run, truth).empty() == !trims) << layout;
    }
  }
}

// Mistakes about places are noticed where documents share a row.
TEST_F(ContextParallel, P30_P31_P35_MistakesAboutPlacesAreNoticed) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = n_});
  TrainerOptions o = replicated_options(with_length(with_enough_heads(n_), kEmulated ? 10 : 16), 1, {2, 2});
  const Dataset data = uneven_data(o.model, 2);  // the first row has two documents
  const RunValues truth = train_alone(*mesh, o, data, 1);
  using context_parallel::Faults;
  for (const auto& [kind, fault, name] : {std::tuple{"ring", &Faults::local_positions, "local positions"},
                                          {"ring", &Faults::labels_after_cut, "labels"},
                                          {"ring", &Faults::ignore_documents, "documents"},
                                          {"allgather", &Faults::rank_order, "order of ranks"},
                                          {"ulysses", &Faults::rank_order, "order of ranks"},
                                          {"ring", &Faults::skip_by_rank, "skipped by rank"}}) {
    ContextParallelOptions context = context_of(kind);
    EXPECT_EQ(departure(*mesh, train_over(*mesh, o, lesson_of(context), data, 1), truth), "") << kind;
    context.faults.*fault = true;
    expect_departs(*mesh, train_over(*mesh, o, lesson_of(context), data, 1), truth, name);
  }
}

// PyTorch's values.
TEST_F(ContextParallel, GoldenCases) {
  for (const AxisSizes& sizes : {AxisSizes{1, 2, 1}, {2, 2, 1}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = mesh_slice(sizes);
    const bool here = mesh->everyone().rank == 0;
    for (const char* name : {"llama", "gpt2", "llama_packed", "llama_ignored_labels"}) {
      for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
        if (kEmulated && (dtype != Dtype::kFp64 || std::string(name) != "llama_packed")) continue;
        for (const bool sp : {false, true}) {
          if (sp && sizes.tp == 1) continue;
          Lesson lesson = lesson_of(context_of("ring"));
          lesson.sp = sp;
          const auto apply = [&](TrainerOptions& o) { o = over_mesh(*mesh, o, lesson); };
          const Verdict verdict = check_golden(read_golden(name), dtype, apply, here);
          EXPECT_TRUE(!here || verdict.checks().size() > 20) << name;
          EXPECT_TRUE(verdict.pass()) << name << " " << dtype_name(dtype) << ", " << sizes.text() << (sp ? ", sp" : "") << "\n"
                                      << checks_table(verdict.checks());
        }
      }
    }
  }
}

// What travels beside kernels, a second run, and other orders of the streams change no bit.
TEST_F(ContextParallel, OverlapAndASecondRunChangeNoBit) {
  auto mesh = mesh_slice({.cp = n_});
  const TrainerOptions o = replicated_options(with_length(with_enough_heads(n_), 13), 1, {2, 1});
  const Dataset data = packed_data(o.model, 4);
  const std::int64_t steps = kEmulated ? 1 : 2;
  for (const ContextParallelOptions& context : every_kind(n_)) {
    if (kEmulated && context.ulysses_size == 1) continue;  // a ring once more
    Lesson lesson = lesson_of(context);
    const RunValues first = train_over(*mesh, o, lesson, data, steps);
    for (std::uint64_t seed = 0; seed <= (kEmulated ? 0 : n_ > 4 ? 1 : 3); ++seed) {
      set_order_seed(seed);
      EXPECT_TRUE(same_bits(*mesh, train_over(*mesh, o, lesson, data, steps), first)) << text(context) << ", seed " << seed;
    }
    set_order_seed(0);
    lesson.context.overlap = false;
    EXPECT_TRUE(same_bits(*mesh, train_over(*mesh, o, lesson, data, steps), first)) << text(context);
  }
}

TEST_F(ContextParallel, LowPrecision) {
  if (kEmulated) return;  // one device alone takes it a minute
  for (const AxisSizes& sizes : {AxisSizes{1, 2, 1}, {1, 4, 1}, {2, 2, 1}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = mesh_slice(sizes);
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
      for (const char* kind : {"ring", "allgather", "ulysses"}) {
        TrainerOptions o = replicated_options(with_length(with_heads(8, 1), 16), sizes.dp, {2, 1});
        o.model.hidden = 64;
        o.model.init_std = 0.05;
        o.optimizer.adamw.lr = 1e-3;  // with larger steps rounding grows into other directions of Adam's
        const Dataset data = packed_data(o.model, 2 * o.global_batch);
        const RunValues truth = train_alone(*mesh, o, data, 3);
        o.storage.dtype = dtype;
        const RunValues own = train_alone(*mesh, o, data, 3);
        Lesson lesson = lesson_of(strategy_case("zero3"), context_of(kind));
        lesson.sp = sizes.tp > 1;
        EXPECT_EQ(departure(*mesh, train_over(*mesh, o, lesson, data, 3), truth, dtype, &own), "")
            << kind << " " << dtype_name(dtype) << ", " << sizes.text();
      }
    }
  }
}

TEST_F(ContextParallel, WhatCannotBeCutIsRefused) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = n_});
  const auto apply = [&](const GptConfig& c, const ContextParallelOptions& context) {
    TrainerOptions o = options_for(c, 1, 1);
    context_parallel::apply(o, *mesh, context);
  };
  const GptConfig c = with_length(with_heads(8, 2), n_);
  EXPECT_NO_THROW(apply(c, context_of("ulysses")));
  EXPECT_THROW(apply(with_length(c, n_ - 1), context_of("ring")), InputError);
  EXPECT_THROW(apply(with_length(with_heads(n_ - 1, 1), n_), context_of("ulysses")), InputError);
  EXPECT_NO_THROW(apply(with_length(with_heads(n_ - 1, 1), n_), context_of("ring")));
  EXPECT_NO_THROW(apply(with_length(with_heads(n_ - 1, 1), n_), context_of("ulysses", "zigzag", 1)));
  EXPECT_THROW(apply(c, context_of("ulysses", "zigzag", n_ + 1)), InputError);
  for (int size = 1; size <= n_; ++size) {
    if (n_ % size == 0) {
      EXPECT_NO_THROW(apply(c, context_of("ulysses", "zigzag", size)));
    } else {
      EXPECT_THROW(apply(c, context_of("ulysses", "zigzag", size)), InputError);
    }
  }
  // Data parallelism sums over dp x cp, so it comes last.
  TrainerOptions o = options_for(c, 1, 1);
  data_parallel::apply(o, *mesh, strategy_case("zero3").options, 1);
  EXPECT_THROW(context_parallel::apply(o, *mesh, {}), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
