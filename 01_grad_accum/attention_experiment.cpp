// Naive attention stores scores for every pair of tokens; flash attention never does.
#include <fmt/core.h>

#include "01_grad_accum/experiments.h"
#include "common/app/settings.h"
#include "common/train/run_record.h"

namespace ref5d::grad_accum {

namespace {

struct Point {
  std::int64_t seq;
  std::int64_t flash_bytes, naive_bytes;
  double flash_ms, naive_ms;
};

RunRecord one_layer_run(const Options& given, std::int64_t seq, AttentionKind kind) {
  Options options = given;
  options.layers = 1;
  options.seq = seq;
  options.micro_batch = options.grad_accum = 1;
  options.load.clear();  // a file's weights are of another model
  const GptConfig model = model_config(options);
  TrainerOptions t = trainer_options(options, model);
  t.attention = kind;
  // What the tokens are does not matter, and a short text has no row of this length.
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq + 1));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(model.vocab));
  const Dataset data({plain_row(tokens, 0, seq)});
  Trainer trainer(t, data);
  return record_run(trainer, 3, 0);
}

}  // namespace

void attention_experiment(const Options& options, Verdict& verdict) {
  std::vector<Point> points;
  for (std::int64_t seq = 64; seq <= 1024; seq *= 2) {
    const RunRecord flash = one_layer_run(options, seq, AttentionKind::kFlash),
                    naive = one_layer_run(options, seq, AttentionKind::kNaive);
    points.push_back({seq, flash.peak(MemoryCategory::kActivations), naive.peak(MemoryCategory::kActivations),
                      flash.median_step_ms(), naive.median_step_ms()});
  }
  const Point &first = points.front(), &last = points.back();
  verdict.claim(make_claim("attention flash: activation peak at S=1024 / S=64", 16,
                           static_cast<double>(last.flash_bytes) / static_cast<double>(first.flash_bytes), 0.01));
  // What naive needs beyond flash is a S^2 + b S: the scores, and arrays of the tokens that live at the same time. From one
  // length to the next, more(2S) - 2 more(S) = 2 a S^2. Backward holds two arrays of scores, the probabilities and their
  // gradient: a = 2 N elements.
  auto more = [](const Point& p) { return static_cast<double>(p.naive_bytes - p.flash_bytes); };
  const GptConfig model = model_config(options);
  const auto expected = static_cast<double>(2 * model.heads) * static_cast<double>(dtype_size(accumulator_of(options.dtype)));
  // Per token, the backward of the MLP or of the head holds no more than this beyond what the backward of attention holds: the
  // three arrays of width F are kept until then and have gradients, and so do the logits. Where the scores are fewer, the peak
  // may be there and says nothing about them.
  const auto elsewhere =
      static_cast<double>(8 * model.hidden + 6 * model.ffn + model.vocab) * static_cast<double>(dtype_size(options.dtype));
  for (std::size_t i = 0; i + 1 < points.size(); ++i) {
    const double s = static_cast<double>(points[i].seq);
    if (expected * s < elsewhere) continue;
    verdict.claim(
        make_claim(fmt::format("attention naive: bytes of scores per S^2, from S={} to {}", points[i].seq, points[i + 1].seq),
                   expected, (more(points[i + 1]) - 2 * more(points[i])) / (2 * s * s), 0, "bytes"));
  }
  if (options.quiet) return;
  fmt::print("\nAttention, one layer: activation peak in bytes and time of a step\n");
  fmt::print("  {:>6} {:>14} {:>14} {:>8} {:>10} {:>10}\n", "S", "flash", "naive", "ratio", "flash ms", "naive ms");
  for (const Point& p : points) {
    fmt::print("  {:>6} {:>14} {:>14} {:>8.2f} {:>10.2f} {:>10.2f}\n", p.seq, p.flash_bytes, p.naive_bytes,
               static_cast<double>(p.naive_bytes) / static_cast<double>(p.flash_bytes), p.flash_ms, p.naive_ms);
  }
}

}  // namespace ref5d::grad_accum
