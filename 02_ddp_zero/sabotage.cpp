#include "02_ddp_zero/sabotage.h"

#include <algorithm>

#include "common/app/sabotage.h"
#include "common/app/settings.h"

namespace ref5d::data_parallel {

namespace {

using Kinds = std::vector<std::string>;
void use_strategy(Options& o, StrategyOptions& s, const CommandLine& line, const Kinds& kinds) {
  prefer(o, line, "--strategy", s.kind, kinds[0]);
  std::string all;
  for (const std::string& k : kinds) all += (all.empty() ? "" : " or ") + k;
  need(o, std::find(kinds.begin(), kinds.end(), s.kind) != kinds.end(), "--strategy " + all);
  prefer(o, line, "--steps", o.steps, std::int64_t{3});
}

void accumulate(Options& o, const CommandLine& line) {
  prefer(o, line, "--grad-accum", o.grad_accum, std::int64_t{3});
  need(o, o.grad_accum > 1, "several micro-batches; leave --grad-accum 1 out");
}

void several_steps(Options& o, const CommandLine& line) {
  prefer(o, line, "--steps", o.steps, std::int64_t{3});
  need(o, o.steps > 1, "a second step; leave --steps 1 out");
}

void small_buckets(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"ddp", "zero1"});
  double bucket_mb = s.bucket_bytes / 0x1p20;
  prefer(o, line, "--bucket-mb", bucket_mb, 0x1p-7);
  s.bucket_bytes = bucket_mb * 0x1p20;
  const GptConfig model = model_config(o);
  const auto largest = static_cast<double>(model.hidden * std::max(model.vocab, model.ffn));
  need(o, s.bucket_bytes <= largest * static_cast<double>(dtype_size(accumulator_of(o.dtype))),
       "buckets that one parameter fills; leave --bucket-mb and the model's flags out");
}

void in_buckets(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"ddp", "zero1"});
  need(o, s.overlap, "reductions during backward; leave --no-overlap out");
}

void hsdp_accumulating(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"hsdp"});
  accumulate(o, line);
}

void shards_accumulating(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"zero2", "zero3", "hsdp"});
  need(o, !s.keep_full_gradients, "sharded gradients; leave --keep-full-gradients out");
  accumulate(o, line);
}

void sharded(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"zero2", "zero1", "zero3", "hsdp"});
}

void replicated(Options& o, StrategyOptions& s, const CommandLine& line) { use_strategy(o, s, line, {"ddp", "naive"}); }

void gathers_after_update(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"zero1", "zero2"});
  several_steps(o, line);
}

void gathers_units(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"zero3", "hsdp"});
  several_steps(o, line);
}

void any_strategy(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"ddp", "naive", "zero1", "zero2", "zero3", "hsdp"});
}

// Not zero3, where no two ranks hold the same.
void holds_replicas(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"ddp", "naive", "zero1", "zero2", "hsdp"});
}

// Not naive, whose gradients are reduced elsewhere.
void reduced_here(Options& o, StrategyOptions& s, const CommandLine& line) {
  use_strategy(o, s, line, {"ddp", "zero1", "zero2", "zero3", "hsdp"});
}

// One document per row: rows in which a document ends have fewer labels.
void uneven_labels(Options& o, StrategyOptions& s, const CommandLine& line) {
  any_strategy(o, s, line);
  prefer(o, line, "--documents", o.documents, std::string("pad"));
  prefer(o, line, "--micro-batch", o.micro_batch, std::int64_t{1});
  prefer(o, line, "--seq", o.seq, std::int64_t{256});
  need(o, o.documents == "pad" && *o.seq >= 128, "rows of uneven labels; leave --documents and --seq out");
}

// Weights that a file gives are the same on all ranks.
void drawn_weights(Options& o, StrategyOptions& s, const CommandLine& line) {
  any_strategy(o, s, line);
  need(o, o.load.empty() && o.resume.empty(), "weights that are drawn; leave --load and --resume out");
  need(o, o.init_std.value_or(1) > 0, "weights that are drawn; leave --init-std out");
}

void with_decay(Options& o, StrategyOptions& s, const CommandLine& line) {
  sharded(o, s, line);
  need(o, o.weight_decay * o.lr > 1e-5, "weight decay that counts; leave --weight-decay and --lr out");
}

void large_epsilon(Options& o, StrategyOptions& s, const CommandLine& line) {
  sharded(o, s, line);
  prefer(o, line, "--eps", o.eps, 1e-4);
  need(o, o.eps >= 1e-6 && o.eps <= 1e-2 && o.lr > 0, "an epsilon near the gradients, and updates; leave --eps and --lr out");
}

}  // namespace

const std::vector<Sabotage>& sabotages() {
  static const auto* const kAll = new std::vector<Sabotage>{
      {"reduce-before-summing", "hsdp all-reduces the running sum after every micro-batch: earlier ones count again (P06)",
       hsdp_accumulating, [](TrainerOptions&, Faults& f, int) { f.reduce_before_summing = true; }},
      {"skip-full-bucket", "a bucket that one parameter fills is never reduced (P07)", small_buckets,
       [](TrainerOptions&, Faults& f, int) { f.skip_full_bucket = true; }},
      {"no-stream-wait", "buckets are reduced without waiting for the stream that fills them (P09)", in_buckets,
       [](TrainerOptions&, Faults& f, int) { f.no_stream_wait = true; }},
      {"last-micro-batch-only", "no_sync with sharded gradients: there is nowhere to keep earlier micro-batches' (P10)",
       shards_accumulating, [](TrainerOptions&, Faults& f, int) { f.last_micro_batch_only = true; }},
      {"decay-flat-buffer", "decays whole flat arrays, norms and biases in them too (P15)", with_decay,
       [](TrainerOptions& t, Faults&, int) { t.optimizer.decay_all = true; }},
      {"epsilon-inside-root", "adds Adam's epsilon under the square root (P16)", large_epsilon,
       [](TrainerOptions& t, Faults&, int) { t.optimizer.adamw.epsilon = AdamwOptions::Epsilon::kInsideRoot; }},
      {"norm-of-own-shard", "clips by the norm of what this rank holds of the gradient (P20)", sharded,
       [](TrainerOptions&, Faults& f, int) { f.norm_of_own_shard = true; }},
      {"norm-counts-replicas", "adds the squared norms of ranks that hold the same gradient (P20)", replicated,
       [](TrainerOptions&, Faults& f, int) { f.norm_counts_replicas = true; }},
      {"no-weight-gather", "each rank updates its shard and keeps the others' old weights", gathers_after_update,
       [](TrainerOptions&, Faults& f, int) { f.no_weight_gather = true; }},
      {"stale-weights", "gathered weights are kept over the update and used once more", gathers_units,
       [](TrainerOptions&, Faults& f, int) { f.stale_weights = true; }},
      {"local-label-count", "each replica divides by its own labels, and the ranks average (P02)", uneven_labels,
       [](TrainerOptions&, Faults& f, int) { f.local_label_count = true; }},
      {"average-again", "the sum over ranks is divided by their number, though the loss was divided already (T1)", reduced_here,
       [](TrainerOptions&, Faults& f, int) { f.average_again = true; }},
      {"drift", "the last rank's weights change a little after every update, as by a reduction that one rank missed (P12)",
       holds_replicas, [](TrainerOptions&, Faults& f, int) { f.drift = true; }},
      {"own-seed", "every rank draws its own initial weights", drawn_weights,
       [](TrainerOptions& t, Faults&, int rank) { t.storage.seed += static_cast<std::uint64_t>(rank); }},
  };
  return *kAll;
}

void check_shows(const Sabotage& sabotage, int shard_ranks, int replicas) {
  const auto does_nothing = [&](const char* without) {
    throw InputError("--sabotage " + sabotage.name + " does nothing without " + without +
                     "; start 4 ranks and leave --shard-size out");
  };
  if (replicas == 1 && (sabotage.name == "reduce-before-summing" || sabotage.name == "drift")) does_nothing("several replicas");
  if (shard_ranks == 1 && (sabotage.name == "norm-of-own-shard" || sabotage.name == "stale-weights"))
    does_nothing("several shards");
}

const Sabotage& find_sabotage(const std::string& name) { return find_by_name(sabotages(), name); }

}  // namespace ref5d::data_parallel
