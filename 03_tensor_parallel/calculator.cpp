// What more ranks divide, and what they do not: the vocabulary's ends, and a layer's activations.
#include <fmt/format.h>

#include "03_tensor_parallel/costs.h"
#include "03_tensor_parallel/experiments.h"
#include "03_tensor_parallel/kept_activations.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/app/settings.h"
#include "common/verify/table.h"

namespace ref5d::tensor_parallel {

namespace {

// Llama 3's vocabulary at the hidden size of its 70B model. Built without storage, so it costs nothing to count.
void large_vocabulary(Experiment& e) {
  GptConfig c;
  c.vocab = 128256;
  c.hidden = 8192;
  c.heads = 64;
  c.kv_heads = 8;
  c.ffn = 28672;
  c.layers = 1;
  std::vector<std::vector<std::string>> table{{"tp", "embedding and head", "at 20 bytes each"}};
  for (int ranks : {1, 2, 4, 8}) {
    Gpt gpt(c);
    cut(gpt, ranks, 0);
    const std::int64_t n = gpt.embedding->tokens->local_numel() + gpt.head->projection->weight->local_numel();
    table.push_back({fmt::format("{}", ranks), grouped_digits(n), fmt::format("{:.1f} GB", static_cast<double>(n) * 20e-9)});
    if (ranks == 1)
      e.report.claims.push_back(make_claim("embedding and head of 128,256 x 8,192: more than 2 billion parameters", 1,
                                           n > 2'000'000'000 ? 1 : 0, 0, "", grouped_digits(n)));
    e.report.claims.push_back(make_claim(fmt::format("embedding and head of 128,256 x 8,192 on one of {} ranks", ranks),
                                         2.0 * 128256 * 8192 / ranks, static_cast<double>(n)));
  }
  if (e.prints()) fmt::print("\nA vocabulary of 128,256 entries at H = 8,192, per rank\n{}", format_table(table, "rrr"));
}

// What a rank computes in a layer's matrices for each byte that it sends there, forward and backward. Per token 6 flops for
// each weight, and four all-reduces of H numbers: the tokens cancel.
double flops_per_byte(const Options& o, const GptConfig& c, int ranks) {
  const auto flops = static_cast<double>(6 * parameters_of_rank(c, ranks, 0).matrices);
  const auto bytes = static_cast<double>(4 * 2 * c.hidden) * static_cast<double>(dtype_size(o.dtype)) * (ranks - 1) / ranks;
  return flops / bytes;
}

// By hand, on 2 ranks: 6 flops for each of a rank's half of the 218,103,808 weights, and 4 all-reduces, each of which sends 2
// (N - 1)/N = 1 times its 4,096 numbers.
void claim_flops_per_byte(Experiment& e) {
  const double expected = 6 * 218'103'808.0 / 2 / (4 * 4096 * static_cast<double>(dtype_size(e.options.dtype)));
  e.report.claims.push_back(
      make_claim("flops per byte, llama-8b on 2 ranks", expected, flops_per_byte(e.options, preset("llama-8b"), 2)));
}

// Of T = 1 token, in arrays of H numbers.
void layer(Experiment& e, const GptConfig& c, const std::string& name) {
  const auto arrays = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(c.hidden) / static_cast<double>(dtype_size(e.options.dtype));
  };
  std::vector<std::vector<std::string>> table{{"tp", "not divided", "divided", "a layer keeps", "of tp 1", "flops per byte"}};
  double alone = 0;
  for (int ranks : {1, 2, 4, 8}) {
    if (ranks > c.heads) break;
    const LayerActivations a = layer_activations(e.options, c, 1, ranks, 0);
    if (ranks == 1) alone = arrays(a.total());
    table.push_back({fmt::format("{}", ranks), fmt::format("{:.2f}", arrays(a.whole)), fmt::format("{:.2f}", arrays(a.cut)),
                     fmt::format("{:.2f}", arrays(a.total())), fmt::format("{:.0f}%", 100 * arrays(a.total()) / alone),
                     ranks == 1 ? "" : fmt::format("{:.0f}", flops_per_byte(e.options, c, ranks))});
  }
  if (e.prints())
    fmt::print("\nWhat a layer of {} keeps for backward, on rank 0, in arrays of [T, H], {}\n{}", name,
               dtype_name(e.options.dtype), format_table(table, "rrrrrr"));
}

}  // namespace

void calculator_experiment(Experiment& e) {
  if (!e.world.is_root()) return;
  large_vocabulary(e);
  const GptConfig c = model_config(e.options);
  layer(e, c, "the model");
  claim_flops_per_byte(e);
  if (c.preset != "llama-8b") layer(e, preset("llama-8b"), "llama-8b");
}

}  // namespace ref5d::tensor_parallel
