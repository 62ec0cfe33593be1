#include <fmt/core.h>

#include "01_grad_accum/batch_arithmetic.h"
#include "01_grad_accum/experiments.h"
#include "common/train/trainer.h"

namespace ref5d::grad_accum {

namespace {

// What the loader handed over for one global batch.
struct Taken {
  std::int64_t sequences = 0;      // on all replicas
  std::int64_t micro_batches = 0;  // on each
};

// Forward and backward over a global batch in miniature: a model of some hundred weights, rows of 4 tokens, and the replicas'
// shares one after the other on this device.
Taken take_batch(std::int64_t sequences, std::int64_t micro_batch, std::int64_t dp) {
  TrainerOptions t;
  t.model.layers = t.model.heads = t.model.kv_heads = 1;
  t.model.hidden = t.model.ffn = 8;
  t.model.vocab = 16;
  t.model.seq = 4;
  t.micro_batch = micro_batch;
  t.global_batch = sequences / dp;
  const std::vector<std::int32_t> tokens{3, 1, 4, 1, 5};
  const Dataset data({plain_row(tokens, 0, t.model.seq)});
  Trainer trainer(t, data);
  for (std::int64_t replica = 0; replica < dp; ++replica) trainer.accumulate();
  return {trainer.loader().rows_taken(), trainer.loader().micro_batches_taken() / dp};
}

}  // namespace

void batch_experiment(const Options& options, Verdict& verdict) {
  auto claim = [&](const std::string& name, std::int64_t expected, std::int64_t measured, const char* unit) {
    verdict.claim(make_claim("batch: " + name, static_cast<double>(expected), static_cast<double>(measured), 0, unit));
  };
  const Taken small = take_batch(global_batch_size(4, 8, 1), 4, 1);
  claim("global batch of 8 micro-batches of 4", 32, small.sequences, "sequences");
  claim("micro-batches of 4 in 32 sequences", 8, small.micro_batches, "");

  // "4M tokens" is 4 x 2^20 where the sequence is 4096.
  constexpr std::int64_t kTokens = std::int64_t{4} << 20, kSeq = 4096, kMicroBatch = 2;
  struct Line {
    std::int64_t gpus, expected;
    Taken taken;
  };
  std::vector<Line> lines;
  for (std::int64_t gpus = 64; gpus <= 512; gpus *= 2) {
    lines.push_back(
        {gpus, accumulation_steps(kTokens, kSeq, kMicroBatch, gpus), take_batch(kTokens / kSeq, kMicroBatch, gpus)});
    const Line& l = lines.back();
    claim(fmt::format("grad_accum for 4M tokens on {} GPUs, {} sequences each", gpus, kMicroBatch), l.expected,
          l.taken.micro_batches, "");
    claim(fmt::format("{} x grad_accum x {}", kMicroBatch, gpus), global_batch_size(kMicroBatch, l.expected, gpus),
          l.taken.sequences, "sequences");
  }
  if (options.quiet) return;
  fmt::print("\nBatch arithmetic: global batch = micro-batch x grad_accum x dp\n");
  fmt::print("  {:>6} {:>12} {:>11} {:>10}\n", "GPUs", "micro-batch", "grad_accum", "sequences");
  for (const Line& l : lines)
    fmt::print("  {:>6} {:>12} {:>11} {:>10}\n", l.gpus, kMicroBatch, l.taken.micro_batches, l.taken.sequences);
}

}  // namespace ref5d::grad_accum
