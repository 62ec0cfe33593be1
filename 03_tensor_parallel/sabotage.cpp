#include "03_tensor_parallel/sabotage.h"

#include <algorithm>

#include "common/app/sabotage.h"
#include "common/app/settings.h"

namespace ref5d::tensor_parallel {

namespace {

void few_steps(Options& o, const CommandLine& line, int) {
  prefer(o, line, "--steps", o.steps, std::int64_t{3});
  need(o, o.init_std.value_or(1) > 0, "weights that differ; leave --init-std out");
}

// Of a part in a thousand and less.
void with_fine_rounding(Options& o, const CommandLine& line, int ranks) {
  few_steps(o, line, ranks);
  need(o, o.dtype != Dtype::kBf16, "a dtype that rounds less than that; leave --dtype bf16 out");
}

// With weights that are all but zero no gradient is worth mentioning but the output head's.
void with_weights_of_use(Options& o, const CommandLine& line, int ranks) {
  with_fine_rounding(o, line, ranks);
  need(o, o.init_std.value_or(1) >= 0.005, "weights of the usual size; leave --init-std out");
}

// A bias is zero until the first update, and small after it: in bf16 it takes more than one to stand out from rounding. How
// many steps are compared falls where rounding grows too fast: at a high learning rate, or from large weights.
void with_biases(Options& o, const CommandLine& line, int ranks) {
  few_steps(o, line, ranks);
  prefer(o, line, "--biases", o.biases, true);
  need(o, model_config(o).biases, "biases; leave --no-biases out");
  const bool bf16 = o.dtype == Dtype::kBf16;
  need(o,
       std::min(o.steps, o.verify_steps) >= (bf16 ? 3 : 2) && o.lr >= (bf16 ? 1e-3 : 1e-4) && o.lr <= (bf16 ? 2e-3 : 1e-2) &&
           o.eps <= 1e-6 && o.init_std.value_or(0) <= (bf16 ? 0.03 : 0.1),
       "a compared step after an update that makes them differ from zero; leave --steps, --verify-steps, --lr, --eps and "
       "--init-std out");
}

void with_qk_norm(Options& o, const CommandLine& line, int ranks) {
  few_steps(o, line, ranks);
  need(o, preset(o.model).family == Family::kLlama, "norms of q and k, which GPT-2 has not; leave --model out");
  prefer(o, line, "--qk-norm", o.qk_norm, true);
  need(o, model_config(o).qk_norm, "norms of q and k; leave --no-qk-norm out");
}

void with_shared_kv_heads(Options& o, const CommandLine& line, int ranks) {
  few_steps(o, line, ranks);
  need(o, preset(o.model).family == Family::kLlama, "grouped query heads, which GPT-2 has not; leave --model out");
  const auto shared = [&] {
    const GptConfig c = model_config(o);
    for (int r = 0; r < ranks; ++r)
      for (const Range& holders : heads_of(c, ranks, r).holders)
        if (holders.size() > 1) return true;
    return false;
  };
  if (!line.given("--kv-heads") && !shared()) prefer(o, line, "--kv-heads", o.kv_heads, std::int64_t{1});
  need(o, shared(), "kv heads that several ranks hold; leave --kv-heads and --heads out");
}

void with_packed_weight(Options& o, const CommandLine& line, int ranks) {
  few_steps(o, line, ranks);
  prefer(o, line, "--model", o.model, std::string("tiny-gpt2"));
  need(o, preset(o.model).family == Family::kGpt2, "a packed [q|k|v] weight; use --model tiny-gpt2");
  try {
    (void)model_config(o);
  } catch (const InputError& e) {
    need(o, false, std::string("a GPT-2, whose [q|k|v] weight is packed: ") + e.what());
  }
  need(o, model_config(o).heads % ranks == 0, "heads that the ranks divide; use another --tp, or other --heads");
}

void with_uneven_vocabulary(Options& o, const CommandLine& line, int ranks) {
  with_fine_rounding(o, line, ranks);
  if (!line.given("--vocab") && model_config(o).vocab % ranks == 0)
    prefer(o, line, "--vocab", o.vocab, model_config(o).vocab + 1);
  need(o, model_config(o).vocab % ranks != 0, "a vocabulary that the ranks do not divide; leave --vocab out");
}

void with_dropout(Options& o, const CommandLine& line, int ranks) {
  few_steps(o, line, ranks);
  prefer(o, line, "--dropout", o.dropout, 0.1);
  need(o, model_config(o).dropout >= 0.01, "dropout that hits some elements; leave --dropout out");
}

void any(Options& o, const CommandLine& line, int ranks) { few_steps(o, line, ranks); }

}  // namespace

const std::vector<Sabotage>& sabotages() {
  static const auto* const kAll = new std::vector<Sabotage>{
      {"no-input-sum", "copy without its backward: each rank goes on with its own share of the input's gradient", any,
       [](TrainerOptions&, Faults& f, int) { f.no_input_sum = true; }},
      {"bias-on-every-rank", "a row-parallel layer adds its bias before the sum, so it counts once per rank (P24)", with_biases,
       [](TrainerOptions&, Faults& f, int) { f.bias_on_every_rank = true; }},
      {"kv-gradients-unsummed", "of kv heads that several ranks hold, each keeps its own query heads' gradient (P23)",
       with_shared_kv_heads, [](TrainerOptions&, Faults& f, int) { f.kv_gradients_unsummed = true; }},
      {"qk-norm-unsummed", "of norms that all heads share, each rank keeps its own heads' gradient (P22)", with_qk_norm,
       [](TrainerOptions&, Faults& f, int) { f.qk_norm_unsummed = true; }},
      {"padding-leaks", "the entries that pad the vocabulary to equal shares take part in the softmax (P25)",
       with_uneven_vocabulary, [](TrainerOptions&, Faults& f, int) { f.padding_leaks = true; }},
      {"own-maximum", "each rank's exponentials are relative to the greatest of its own logits, and then added (P26)", any,
       [](TrainerOptions&, Faults& f, int) { f.own_maximum = true; }},
      {"clamp-without-mask", "a token of another rank looks up row 0 here, and the sum over ranks has it", any,
       [](TrainerOptions&, Faults& f, int) { f.clamp_without_mask = true; }},
      {"packed-as-one-block", "a packed [q|k|v] weight is cut as one matrix: ranks get q where others get k and v (P28)",
       with_packed_weight, [](TrainerOptions&, Faults& f, int) { f.packed_as_one_block = true; }},
      {"norm-counts-replicas", "parameters that every rank holds enter the gradient norm once per rank (P17)",
       with_weights_of_use, [](TrainerOptions&, Faults& f, int) { f.norm_counts_replicas = true; }},
      {"norm-of-own-part", "the gradient norm leaves out what the axis's other ranks hold (P17)", any,
       [](TrainerOptions&, Faults& f, int) { f.norm_of_own_part = true; }},
      {"drift", "the last rank's norms change a little after every update, as by a sum that one rank missed (P12)", any,
       [](TrainerOptions&, Faults& f, int) { f.drift = true; }},
      {"own-dropout", "every rank of the axis draws its own masks where they must agree (P27)", with_dropout,
       [](TrainerOptions& t, Faults&, int rank) { t.other_dropout = static_cast<std::uint64_t>(rank); }},
  };
  return *kAll;
}

const Sabotage& find_sabotage(const std::string& name) { return find_by_name(sabotages(), name); }

}  // namespace ref5d::tensor_parallel
