// Models cut over ranks train as one device does, whatever their heads, their vocabulary, and how replicas share the rest.
#include "03_tensor_parallel/claims.h"
#include "03_tensor_parallel/costs.h"
#include "03_tensor_parallel/replica_check.h"
#include "common/app/settings.h"
#include "common/comm/group.h"
#include "common/kernels/elementwise.h"
#include "tests/support/golden_testing.h"
#include "tests/support/tensor_parallel_testing.h"

namespace ref5d::testing {
namespace {

class TensorParallel : public LayoutTest {
 protected:
  const int n_ = world().size();

  void expect_trains_as_alone(Mesh& mesh, const TrainerOptions& o, const StrategyCase& s, const std::string& what,
                              const TensorParallelOptions& tensor = {}) {
    const Dataset data = uneven_data(o.model, 2 * o.global_batch);
    const RunValues truth = train_alone(mesh, o, data, 3);
    EXPECT_EQ(departure(mesh, train_cut(mesh, o, s, data, 3, tensor), truth), "") << what << ", " << s.text();
  }
};

std::string text(const GptConfig& c) { return std::to_string(c.heads) + " heads, " + std::to_string(c.kv_heads) + " kv heads"; }

// Whether the ranks divide the heads, the kv heads, the vocabulary and the MLP, or none of them.
TEST_F(TensorParallel, EveryShapeTrainsAsOnASingleDevice) {
  auto mesh = tp_slice(n_);
  for (const auto& [heads, kv_heads] :
       {std::pair{6, 1}, {6, 2}, {6, 3}, {6, 6}, {8, 1}, {8, 2}, {8, 4}, {8, 8}, {12, 4}, {9, 3}}) {
    const GptConfig c = with_heads(heads, kv_heads);
    if (heads < n_ || (kEmulated && heads != 6)) continue;
    expect_trains_as_alone(*mesh, replicated_options(c, 1, {3, 2}), strategy_case("ddp"), text(c));
  }
}

TEST_F(TensorParallel, EveryModelTrainsAsOnASingleDevice) {
  const int tp = std::min(n_, 3);  // the heads of GPT-2's small variants
  auto mesh = tp_slice(tp);
  if (!mesh) return;
  for (const char* name : {"llama_tied", "llama_biases", "llama_qk_norm", "llama_mixed", "gpt2", "gpt2_mixed", "gpt2_untied"})
    expect_trains_as_alone(*mesh, replicated_options(variant(name), 1, {2, 1}), strategy_case("ddp"), name);
}

// Replicas of it, with gradients that several ranks share and without.
TEST_F(TensorParallel, WithEveryStrategyOfTheReplicas) {
  for (const auto& [tp, dp] : {std::pair{2, 1}, {2, 2}, {2, 3}, {3, 2}}) {
    if (tp * dp > n_ || (tp * dp <= n_ / 2 && dp > 1)) continue;
    auto mesh = tp_slice(tp, dp);
    if (!mesh) continue;
    for (const StrategyCase& s : strategies(dp)) {
      if (kEmulated && s.options.kind != "zero3") continue;
      for (const GptConfig& c : {with_heads(6, 3), with_heads(6, 1)})
        expect_trains_as_alone(*mesh, replicated_options(c, dp, {kEmulated ? 2 : 3, 1}), s, text(c));
      if (kEmulated) continue;
      TrainerOptions o = replicated_options(variant("llama_mixed"), dp, {2, 1});
      o.model.dropout = 0.2;
      expect_trains_as_alone(*mesh, o, s, "llama_mixed");
    }
  }
}

// The masks are keyed by sample, position and channel, so every rank draws those of one device; also when it draws them again.
TEST_F(TensorParallel, P27_DropoutAndRecomputation) {
  auto mesh = tp_slice(std::min(n_, 6));
  if (!mesh) return;
  RunValues kept;
  for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    TrainerOptions o = replicated_options(variant("llama_dropout"), 1, {2, 1});
    o.recompute = r;
    expect_trains_as_alone(*mesh, o, strategy_case("ddp"), "recompute " + std::to_string(static_cast<int>(r)));
    const Dataset data = uneven_data(o.model, 4);
    const RunValues run = train_cut(*mesh, o, strategy_case("ddp"), data, 2);
    if (r == Recompute::kNone) kept = run;
    EXPECT_TRUE(same_bits(*mesh, run, kept));
  }
}

// PyTorch's values.
TEST_F(TensorParallel, GoldenCases) {
  for (const int tp : {2, 4}) {
    auto mesh = tp_slice(tp);
    if (!mesh) continue;
    for (const char* name : {"llama", "llama_mha_odd_vocab", "gpt2", "llama_packed", "llama_ignored_labels"}) {
      for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
        const bool here = mesh->everyone().rank == 0;
        const auto apply = [&](TrainerOptions& o) { o = cut_options(*mesh, o, strategy_case("ddp"), {}); };
        const Verdict verdict = check_golden(read_golden(name), dtype, apply, here);
        EXPECT_TRUE(!here || verdict.checks().size() > 20) << name;
        EXPECT_TRUE(verdict.pass()) << name << " " << dtype_name(dtype) << ", tp " << tp << "\n"
                                    << checks_table(verdict.checks());
      }
    }
  }
}

// Kv heads that two ranks hold, and norms that all heads share: four heads over four ranks, two kv heads.
TEST_F(TensorParallel, P22_P23_T5_ParametersThatHeadsShare) {
  NEEDS_RANKS(4);
  auto mesh = tp_slice(4);
  if (!mesh) return;
  GptConfig c = with_heads(4, 2);
  c.qk_norm = true;
  const TrainerOptions o = replicated_options(c, 1, {2, 2});
  const Dataset data = uneven_data(c, 8);
  const RunValues truth = train_alone(*mesh, o, data, 20);
  world().traffic().reset();
  std::int64_t unequal = 0;
  const RunValues run = train_cut(*mesh, o, strategy_case("ddp"), data, 20, {}, [&](Trainer& t) {
    const std::vector<Parameter*> all = t.gpt().parameters();
    unequal += unequal_elements(mesh->everyone(), {all.begin(), all.end()}, t.stream());
  });
  EXPECT_EQ(departure(*mesh, run, truth), "");
  EXPECT_EQ(unequal, 0);
  // Over exactly the ranks that hold a kv head: 0 and 1, or 2 and 3.
  const std::string pair = mesh->coordinate("tp") < 2 ? "tp[0-1]" : "tp[2-3]";
  int groups = 0;
  for (const auto& [key, count] : world().traffic().counts()) {
    if (!key.axis.starts_with("tp[") || count.calls == 0) continue;
    ++groups;
    EXPECT_EQ(key.axis, pair);
    EXPECT_EQ(key.phase, "shared gradients");
    EXPECT_EQ(count.calls, 20 * c.layers * 2);
  }
  EXPECT_EQ(groups, 1);
  for (bool tensor_parallel::Faults::*fault :
       {&tensor_parallel::Faults::kv_gradients_unsummed, &tensor_parallel::Faults::qk_norm_unsummed}) {
    TensorParallelOptions faulty;
    faulty.faults.*fault = true;
    unequal = 0;
    const RunValues wrong = train_cut(*mesh, o, strategy_case("ddp"), data, 20, faulty, [&](Trainer& t) {
      const std::vector<Parameter*> all = t.gpt().parameters();
      unequal += unequal_elements(mesh->everyone(), {all.begin(), all.end()}, t.stream());
    });
    expect_departs(*mesh, wrong, truth, "an unsummed gradient");
    EXPECT_TRUE(mesh->everyone().rank != 0 || unequal > 0);
  }
}

// On some rank of the mesh.
bool finds_a_difference(const tensor_parallel::ReplicaCheck& check, Trainer& trainer, const Group& everyone) {
  const std::vector<Bytes> all = all_gather_on_host(everyone, to_bytes(check(trainer) ? "same" : "other"));
  return std::any_of(all.begin(), all.end(), [](const Bytes& b) { return b == to_bytes("other"); });
}

// A weight that changes on the last rank alone is noticed if another rank has it, too: along dp, along tp, or where some of the
// ranks along tp share a kv head and the first does not.
TEST_F(TensorParallel, P12_P23_CopiesThatDifferAreFoundWhereverTheyAre) {
  NEEDS_RANKS(4);
  for (const int dp : {1, 2}) {
    auto mesh = tp_slice(4 / dp, dp);
    if (!mesh) return;
    const TrainerOptions o = replicated_options(with_heads(6, 3), dp, {2, 1});
    const StrategyCase s = strategy_case("ddp");
    const Dataset data = uneven_data(o.model, 4);
    Trainer trainer(cut_options(*mesh, o, s, {}), data);
    const tensor_parallel::ReplicaCheck check(o.model, *mesh, s.options, s.shard_size);
    const Group everyone = mesh->everyone();
    EXPECT_FALSE(finds_a_difference(check, trainer, everyone));
    const std::string layer = "model.layers.0.";
    for (const auto& [name, has_copies] : {std::pair{"input_layernorm.weight", true},
                                           {"self_attn.k_proj.weight", true},
                                           {"mlp.down_proj.weight", dp == 2},
                                           {"self_attn.q_proj.weight", dp == 2}}) {
      for (Parameter* p : trainer.gpt().parameters()) {
        if (p->name != layer + name) continue;
        const HostTensor before = p->weight.to_host(trainer.stream());
        if (everyone.rank + 1 == everyone.size()) scale(trainer.stream(), p->weight, 1 + 0x1p-30);
        EXPECT_EQ(finds_a_difference(check, trainer, everyone), has_copies) << name << ", dp " << dp;
        p->weight.copy_from(before, trainer.stream());
      }
    }
    EXPECT_FALSE(finds_a_difference(check, trainer, everyone));
  }
}

// A rank that counted something else than its formula is noticed, also where it is not the first.
TEST_F(TensorParallel, T5_ClaimsAreOfEveryRank) {
  NEEDS_RANKS(2);
  auto mesh = tp_slice(2);
  if (!mesh) return;
  Options o;
  const GptConfig c = model_config(o);
  const auto failing = [&](std::int64_t off_on_first, std::int64_t off_on_second) {
    std::vector<tensor_parallel::RankCounts> counts(2);
    counts[0].parameters = tensor_parallel::parameters_of_rank(c, 2, 0).all + off_on_first;
    counts[1].parameters = tensor_parallel::parameters_of_rank(c, 2, 1).all + off_on_second;
    Report report;
    tensor_parallel::claim_costs(report, o, strategy_case("ddp").options, world(), *mesh, 1, counts);
    std::vector<std::string> names;
    for (const Claim& claim : report.claims)
      if (!claim.pass && claim.name.starts_with("parameters")) names.push_back(claim.name);
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(failing(0, 0), Names{});
  EXPECT_EQ(failing(1, 0), Names{"parameters, rank 0"});
  EXPECT_EQ(failing(0, -1), Names{"parameters: other ranks that differ"});
}

// What every rank holds gets its gradient from activations that are whole everywhere: the reference's, and the same bits on all
// ranks without a sum. (Under sequence parallelism it will be otherwise.)
TEST_F(TensorParallel, P21_NormAndRowBiasGradientsAreTheSameEverywhere) {
  NEEDS_RANKS(2);
  auto mesh = tp_slice(2);
  if (!mesh) return;
  const TrainerOptions o = replicated_options(variant("llama_mixed"), 1, {2, 1});
  const Dataset data = uneven_data(o.model, 4);
  Trainer trainer(cut_options(*mesh, o, strategy_case("ddp"), {}), data);
  trainer.accumulate();
  std::vector<Tensor> whole;
  for (const Parameter* p : trainer.gpt().parameters())
    if (p->local_numel() == product(p->global_shape)) whole.push_back(p->gradient);
  EXPECT_EQ(whole.size(), 1u + 2 * (4 + 2) + 2);  // positions; of a layer two norms and two row-parallel biases; the last norm
  EXPECT_TRUE(equal_on_all((*mesh)["tp"].group(), whole, trainer.stream()));
  const NamedValues gradients = trainer.gradients();
  if (mesh->everyone().rank == 0) expect_equal(gradients, gradients_of(o, data), 1e-11);
}

// Parameters that every rank holds count once, those that are cut on all ranks.
TEST_F(TensorParallel, P17_P18_TheGradientNorm) {
  NEEDS_RANKS(2);
  auto mesh = tp_slice(2);
  if (!mesh) return;
  for (const char* name : {"llama", "llama_tied"}) {
    const TrainerOptions o = replicated_options(variant(name), 1, {2, 2});
    const Dataset data = uneven_data(o.model, 4);
    const RunValues truth = train_alone(*mesh, o, data, 2);
    EXPECT_EQ(departure(*mesh, train_cut(*mesh, o, strategy_case("ddp"), data, 2), truth), "") << name;
    for (bool tensor_parallel::Faults::*fault :
         {&tensor_parallel::Faults::norm_counts_replicas, &tensor_parallel::Faults::norm_of_own_part}) {
      TensorParallelOptions faulty;
      faulty.faults.*fault = true;
      expect_departs(*mesh, train_cut(*mesh, o, strategy_case("ddp"), data, 2, faulty), truth, name);
    }
  }
}

// Cut 0.6 and 0.8, whole 1 and 3, tied and cut 6 and 8: the digits of 111. ZeRO's padding holds 1e3.
TEST_F(TensorParallel, T2_DigitsOfTheNorm) {
  NEEDS_RANKS(2);
  for (const int dp : {1, 2}) {
    auto mesh = tp_slice(2, dp);
    if (!mesh) continue;
    for (StrategyCase s : strategies(dp)) {
      s.options.padding = 1e3;
      TrainerOptions o = replicated_options(variant("llama_tied"), dp, {1, 1});
      o = cut_options(*mesh, o, s, {});
      const Dataset data = uneven_data(o.model, dp);
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
      EXPECT_NEAR(trainer.optimizer().norm().to_doubles(trainer.stream())[0], std::sqrt(111.0), 1e-12) << s.text();
    }
  }
}

TEST_F(TensorParallel, OverlapAndASecondRunChangeNoBit) {
  auto mesh = tp_slice(std::min(n_, 6));
  if (!mesh) return;
  const TrainerOptions o = replicated_options(with_heads(6, 3), 1, {3, 1});
  const Dataset data = uneven_data(o.model, 6);
  const RunValues first = train_cut(*mesh, o, strategy_case("ddp"), data, 3);
  EXPECT_TRUE(same_bits(*mesh, train_cut(*mesh, o, strategy_case("ddp"), data, 3), first));
  EXPECT_TRUE(same_bits(*mesh, train_cut(*mesh, o, strategy_case("ddp"), data, 3, {.overlap = false, .faults = {}}), first));
}

TEST_F(TensorParallel, LowPrecision) {
  for (const auto& [tp, dp] : {std::pair{2, 1}, {2, 2}, {4, 1}}) {
    auto mesh = tp_slice(tp, dp);
    if (!mesh) continue;
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
      for (const char* kind : {"ddp", "zero3"}) {
        TrainerOptions o = replicated_options(with_heads(8, 1), dp, {2, 1});
        o.model.hidden = 64;
        o.model.init_std = 0.05;
        o.optimizer.adamw.lr = 1e-3;  // with larger steps rounding grows into other directions of Adam's
        const Dataset data = uneven_data(o.model, 2 * o.global_batch);
        const RunValues truth = train_alone(*mesh, o, data, 3);
        o.storage.dtype = dtype;
        const RunValues own = train_alone(*mesh, o, data, 3);
        EXPECT_EQ(departure(*mesh, train_cut(*mesh, o, strategy_case(kind), data, 3), truth, dtype, &own), "")
            << kind << " " << dtype_name(dtype);
      }
    }
  }
}

// A reduction after every micro-batch leaves a sum that the tp axis would add up again.
TEST_F(TensorParallel, SyncEveryMicroBatchIsRefusedWhereGradientsAreShared) {
  NEEDS_RANKS(2);
  auto mesh = tp_slice(2);
  if (!mesh) return;
  StrategyCase s = strategy_case("ddp");
  s.options.sync_every_micro_batch = true;
  const TrainerOptions o = cut_options(*mesh, replicated_options(with_heads(6, 1), 1, {2, 1}), s, {});
  const Dataset data = uneven_data(o.model, 2);
  EXPECT_THROW(Trainer(o, data), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
