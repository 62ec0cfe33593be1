#include "01_grad_accum/sabotage.h"

#include "common/app/sabotage.h"

namespace ref5d::grad_accum {

namespace {

void accumulate(Options& o, const CommandLine& line) {
  prefer(o, line, "--grad-accum", o.grad_accum, std::int64_t{4});
  need(o, o.grad_accum > 1, "several micro-batches; leave --grad-accum 1 out");
}

void several_steps(Options& o, const CommandLine& line) { prefer(o, line, "--steps", o.steps, std::int64_t{3}); }

void carry_over(Options& o, const CommandLine& line) {
  several_steps(o, line);
  need(o, o.steps > 1, "a second step; leave --steps 1 out");
}

void with_decay(Options& o, const CommandLine& line) {
  several_steps(o, line);
  need(o, o.weight_decay > 0, "weight decay; leave --weight-decay 0 out");
}

// With one document per row, the row in which a document ends has fewer labels. Documents longer than a row fill others
// completely, and micro-batches of full rows alone are all alike: so rows longer than most paragraphs, and eight of them a
// step. A text without blank lines is one document, all of whose rows but the last are full; no setting makes those uneven.
void uneven_labels(Options& o, const CommandLine& line) {
  several_steps(o, line);
  prefer(o, line, "--grad-accum", o.grad_accum, std::int64_t{8});
  prefer(o, line, "--micro-batch", o.micro_batch, std::int64_t{1});
  prefer(o, line, "--documents", o.documents, std::string("pad"));
  prefer(o, line, "--seq", o.seq, std::int64_t{256});
}

void with_dropout(Options& o, const CommandLine& line) {
  prefer(o, line, "--recompute", o.recompute, std::string("full"));
  prefer(o, line, "--dropout", o.dropout, 0.1);
  need(o, o.recompute == "full" && *o.dropout > 0, "dropout and full recomputation; leave --dropout and --recompute out");
}

void in_bf16(Options& o, const CommandLine& line) {
  prefer(o, line, "--dtype", o.dtype, Dtype::kBf16);
  need(o, o.dtype == Dtype::kBf16, "bf16; leave --dtype out");
}

void many_bf16_micro_batches(Options& o, const CommandLine& line) {
  in_bf16(o, line);
  prefer(o, line, "--grad-accum", o.grad_accum, std::int64_t{256});
  prefer(o, line, "--micro-batch", o.micro_batch, std::int64_t{1});
  prefer(o, line, "--seq", o.seq, std::int64_t{16});
  prefer(o, line, "--steps", o.steps, std::int64_t{1});
}

// Updates far below a bf16 weight's spacing, which only a master can hold.
void small_bf16_updates(Options& o, const CommandLine& line) {
  in_bf16(o, line);
  prefer(o, line, "--lr", o.lr, 1e-5);
  prefer(o, line, "--steps", o.steps, std::int64_t{10});
}

// Gradients near epsilon, where its place matters.
void large_epsilon(Options& o, const CommandLine& line) { prefer(o, line, "--eps", o.eps, 1e-4); }

}  // namespace

const std::vector<Sabotage>& sabotages() {
  static const auto* const kAll = new std::vector<Sabotage>{
      {"mean-of-means", "averages the micro-batches' own means, which weighs labels unequally (P01)", uneven_labels,
       [](TrainerOptions& t) { t.faults.mean_of_means = true; }},
      {"no-division", "divides by a micro-batch's labels and forgets the number of micro-batches; Adam hides it (P01)",
       accumulate, [](TrainerOptions& t) { t.faults.mean_per_micro_batch = true; }},
      {"keep-gradients", "does not zero the gradients between steps", carry_over,
       [](TrainerOptions& t) { t.faults.keep_gradients = true; }},
      {"redraw-dropout", "recomputation draws another dropout mask than the forward pass (P27)", with_dropout,
       [](TrainerOptions& t) { t.redraw_dropout = 1; }},
      {"accumulate-in-bf16", "sums the micro-batches' gradients in bf16 (P13)", many_bf16_micro_batches,
       [](TrainerOptions& t) { t.storage.fp32_gradient_sum = false; }},
      {"no-master", "rebuilds the master from the bf16 weight before each update: small steps are lost (P14)",
       small_bf16_updates, [](TrainerOptions& t) { t.optimizer.keep_master = false; }},
      {"decay-norms", "applies weight decay to norms and biases too (P15)", with_decay,
       [](TrainerOptions& t) { t.optimizer.decay_all = true; }},
      {"epsilon-inside-root", "adds Adam's epsilon under the square root (P16)", large_epsilon,
       [](TrainerOptions& t) { t.optimizer.adamw.epsilon = AdamwOptions::Epsilon::kInsideRoot; }},
      {"epsilon-before-correction", "adds Adam's epsilon before the bias correction (P16)", large_epsilon,
       [](TrainerOptions& t) { t.optimizer.adamw.epsilon = AdamwOptions::Epsilon::kBeforeCorrection; }},
  };
  return *kAll;
}

const Sabotage& find_sabotage(const std::string& name) { return find_by_name(sabotages(), name); }

}  // namespace ref5d::grad_accum
