#include "common/train/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/device/error.h"
#include "common/kernels/philox.h"
#include "common/tensor/ignore_label.h"

namespace ref5d {

namespace {

// The index at which the running sum of exp((logit - max) / temperature) passes u times its total.
std::int32_t draw(std::span<const double> logits, double temperature, double u) {
  const double greatest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> running;
  double total = 0;
  for (double l : logits) running.push_back(total += std::exp((l - greatest) / temperature));
  const auto it = std::upper_bound(running.begin(), running.end(), u * total);
  return static_cast<std::int32_t>(
      std::min<std::ptrdiff_t>(it - running.begin(), static_cast<std::ptrdiff_t>(logits.size()) - 1));
}

Row row_of(std::span<const std::int32_t> tokens) {
  Row row;
  row.tokens.assign(tokens.begin(), tokens.end());
  row.labels.assign(tokens.size(), kIgnoreLabel);
  row.order.resize(tokens.size());
  std::iota(row.order.begin(), row.order.end(), 0);
  row.start.assign(tokens.size(), 0);
  row.useful = static_cast<std::int64_t>(tokens.size());
  return row;
}

}  // namespace

std::string generate_text(Trainer& trainer, const std::string& prompt, std::int64_t count, double temperature,
                          std::uint64_t seed) {
  const GptConfig& config = trainer.gpt().config();
  if (config.vocab > 256 || prompt.empty())
    throw InputError("--sample needs a byte-level model (--vocab 256 or less): tokens are printed as bytes");
  std::vector<std::int32_t> tokens;
  for (char c : prompt) tokens.push_back(static_cast<unsigned char>(c) % static_cast<std::int32_t>(config.vocab));
  Context ctx = trainer.context();
  ctx.dropout = 0;
  ctx.probe = nullptr;
  ctx.routes = nullptr;  // which knows training samples
  ctx.router_load = {};
  // Every rank has the whole text, however training cuts sequences.
  Loader loader(config, ctx.dtype, trainer.stream(),
                {.cut = {}, .plan_attention = {}, .scatter_residual = trainer.options().loader.scatter_residual});
  std::string text = prompt;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t window = std::min(tokens.size(), static_cast<std::size_t>(config.seq));
    const Row row = row_of(std::span(tokens).last(window));
    loader.start({&row, 1}, 0);
    const MicroBatch batch = loader.take(0.0);
    ctx.batch = &batch;
    const auto& elsewhere = trainer.options().logits;
    const Tensor logits = elsewhere ? elsewhere(trainer.gpt(), ctx) : trainer.gpt().logits(ctx);
    const std::vector<double> last = logits.rows(logits.dim(0) - 1, logits.dim(0)).to_doubles(trainer.stream());
    const Uint4 u = philox(seed, {static_cast<std::uint32_t>(i), 0x67656e65u, 0, 0});
    tokens.push_back(draw(last, temperature, u.x * 0x1p-32));
    const auto c = static_cast<char>(tokens.back());
    text += (c >= 32 && c < 127) || c == '\n' ? c : '?';
  }
  return text;
}

}  // namespace ref5d
