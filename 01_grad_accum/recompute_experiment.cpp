// Recomputation trades flops for memory: full keeps a block's input, selective drops only what attention makes.
#include <fmt/core.h>

#include <bit>

#include "01_grad_accum/experiments.h"
#include "common/app/settings.h"
#include "common/train/run_record.h"

namespace ref5d::grad_accum {

namespace {

std::int64_t differing_elements(const NamedValues& a, const NamedValues& b) {
  std::int64_t n = 0;
  for (const auto& [name, values] : a) {
    const auto& other = b.at(name);
    for (std::size_t i = 0; i < values.size(); ++i)
      n += std::bit_cast<std::uint64_t>(values[i]) != std::bit_cast<std::uint64_t>(other[i]);
  }
  return n;
}

RunRecord run_with(const Options& options, const Dataset& data, Recompute kind) {
  TrainerOptions t = trainer_options(options, model_config(options));
  t.recompute = kind;
  Trainer trainer(t, data);
  return record_run(trainer, 5, 5);
}

// Bytes by which a Llama-like model's activation peak falls. The peak is in the MLP of the last block, where besides what
// blocks keep there are 2 H + 3 F per token (the page derives it), and not at the head, where there are V + 4 H and two
// statistics, nor in the attention of a block that is computed again; and no scores are stored.
void claim_memory(Verdict& verdict, const Options& options, const GptConfig& c, const RunRecord& none, const RunRecord& full,
                  const RunRecord& selective) {
  const std::int64_t kv = c.kv_heads * c.head_dim();
  const bool llama = c.family == Family::kLlama && c.norm == NormKind::kRms && c.mlp == MlpKind::kSwiglu && !c.qk_norm;
  const bool peak_in_mlp = c.vocab + 2 * c.hidden + 2 <= 3 * c.ffn && 5 * c.hidden + 4 * kv < 6 * c.ffn;
  if (!llama || !peak_in_mlp || options.attention == "naive" || options.documents == "pad") return;
  const auto e = static_cast<std::int64_t>(dtype_size(options.dtype)),
             a = static_cast<std::int64_t>(dtype_size(accumulator_of(options.dtype)));
  const std::int64_t tokens = options.micro_batch * c.seq;
  // Of every block but the last, full keeps the input alone; of every block, selective keeps all but norm.x (attention.x is the
  // same tensor), attention.in, q, k, v, attention's output, and the statistics of the norm and of attention.
  const std::int64_t block = e * (6 * c.hidden + 2 * kv + 3 * c.ffn) + a * (2 + c.heads);
  const std::int64_t by_full = tokens * (c.layers - 1) * (block - e * c.hidden);
  const std::int64_t by_selective = tokens * c.layers * (e * (3 * c.hidden + 2 * kv) + a * (1 + c.heads));
  const auto claim = [&](const char* kind, std::int64_t expected, const RunRecord& run) {
    verdict.claim(make_claim(
        fmt::format("recompute {}: fall of the activation peak", kind), static_cast<double>(expected),
        static_cast<double>(none.peak(MemoryCategory::kActivations) - run.peak(MemoryCategory::kActivations)), 0, "bytes"));
  };
  claim("full", by_full, full);
  claim("selective", by_selective, selective);
}

}  // namespace

void recompute_experiment(const Options& given, Verdict& verdict) {
  Options options = given;
  if (!options.dropout) options.dropout = 0.1;  // so that a redrawn mask would show
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  const RunRecord none = run_with(options, data, Recompute::kNone), full = run_with(options, data, Recompute::kFull),
                  selective = run_with(options, data, Recompute::kSelective);

  for (const auto& [name, run] : {std::pair{"full", &full}, {"selective", &selective}}) {
    const NamedValues losses{{"loss", run->values.losses}}, losses_of_none{{"loss", none.values.losses}};
    verdict.claim(make_claim(fmt::format("recompute {}: losses that differ from none by a bit", name), 0,
                             static_cast<double>(differing_elements(losses, losses_of_none))));
    verdict.claim(make_claim(fmt::format("recompute {}: gradient elements that differ from none by a bit", name), 0,
                             static_cast<double>(differing_elements(run->values.gradients, none.values.gradients))));
  }

  // A linear layer costs one product forward and two backward; full recomputation adds one more forward: (1 + 2 + 1) / 3.
  // Selective repeats only q, k and v: H (N + 2K) D of a block's weights, once more.
  const std::int64_t d = model.head_dim(), into_attention = model.hidden * (model.heads + 2 * model.kv_heads) * d;
  const std::int64_t block = (model.matmul_parameter_count() - model.vocab * model.hidden) / model.layers;
  const double linear = static_cast<double>(none.flops_per_step.count(FlopsKind::kBlockLinear));
  auto ratio = [&](const RunRecord& r) {
    return static_cast<double>(r.flops_per_step.count(FlopsKind::kBlockLinear)) / linear;
  };
  verdict.claim(make_claim("recompute full: flops of the blocks' linear layers / none's", 4.0 / 3.0, ratio(full), 1e-15));
  verdict.claim(make_claim("recompute selective: flops of the blocks' linear layers / none's",
                           1.0 + static_cast<double>(into_attention) / (3.0 * static_cast<double>(block)), ratio(selective),
                           1e-15));
  // Attention: 4 units forward, 10 backward, 4 again.
  auto attention = [](const RunRecord& r) { return static_cast<double>(r.flops_per_step.count(FlopsKind::kAttention)); };
  verdict.claim(
      make_claim("recompute full: flops of attention / none's", 18.0 / 14.0, attention(full) / attention(none), 1e-15));
  verdict.claim(make_claim("recompute selective: flops of attention / none's", 18.0 / 14.0,
                           attention(selective) / attention(none), 1e-15));

  claim_memory(verdict, options, model, none, full, selective);

  if (options.quiet) return;
  fmt::print("\nRecomputation ({} layers, {} x {} tokens per micro-batch)\n", model.layers, options.micro_batch, model.seq);
  fmt::print("  {:<10} {:>22} {:>10} {:>18} {:>10}\n", "recompute", "activation peak, bytes", "of none", "linear flops / none",
             "ms / step");
  for (const auto& [name, run] : {std::pair{"none", &none}, {"full", &full}, {"selective", &selective}}) {
    fmt::print("  {:<10} {:>22} {:>9.1f}% {:>18.4f} {:>11.2f}\n", name, run->peak(MemoryCategory::kActivations),
               100.0 * static_cast<double>(run->peak(MemoryCategory::kActivations)) /
                   static_cast<double>(none.peak(MemoryCategory::kActivations)),
               ratio(*run), run->median_step_ms());
  }
}

}  // namespace ref5d::grad_accum
