#include "04_seq_context_parallel/sabotage.h"

#include <algorithm>

#include "common/app/sabotage.h"
#include "common/app/settings.h"

namespace ref5d::seq_context_parallel {

namespace {

void few_steps(Options& o, Lesson&, const CommandLine& line, int) {
  prefer(o, line, "--steps", o.steps, std::int64_t{3});
  need(o, o.init_std.value_or(1) > 0, "weights that differ; leave --init-std out");
}

void with_kind(Options& o, Lesson& lesson, const CommandLine& line, const char* kind) {
  prefer(o, line, "--cp-kind", lesson.context.kind, std::string(kind));
  need(o, lesson.context.kind == kind, std::string("--cp-kind ") + kind + "; leave --cp-kind out");
}

void with_ring(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  few_steps(o, lesson, line, ranks);
  with_kind(o, lesson, line, "ring");
  need(o, o.init_std.value_or(1) >= 0.005, "weights of the usual size; leave --init-std out");
}

void with_overlap(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  with_ring(o, lesson, line, ranks);
  need(o, lesson.context.overlap, "messages beside computation; leave --no-overlap out");
}

// With fewer tokens a rank's chunks may stand in the sequence's order.
void need_two_chunks(const Options& o, int ranks) {
  need(o, model_config(o).seq >= 2 * ranks, "two tokens for each rank at least; leave --seq out");
}

// Places of tokens must differ from their ranks' order.
void with_gather(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  few_steps(o, lesson, line, ranks);
  with_kind(o, lesson, line, "allgather");
  need(o, lesson.context.layout != "contiguous" || o.micro_batch > 1,
       "tokens that ranks hold in another order than the sequence's; leave --cp-layout out");
  need_two_chunks(o, ranks);
}

// Attention must tell positions apart: with weights of the usual size it hardly does in the first steps.
void with_positions(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  few_steps(o, lesson, line, ranks);
  need(o, o.load.empty() && o.resume.empty(), "large weights; leave --load and --resume out");
  prefer(o, line, "--init-std", o.init_std, 0.1);
  need(o, o.init_std.value_or(0) >= 0.02, "weights of the usual size; leave --init-std out");
}

// exp(lse) must overflow: scores of hundreds.
void with_large_scores(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  with_ring(o, lesson, line, ranks);
  need(o, o.load.empty() && o.resume.empty(), "large weights; leave --load and --resume out");
  need(o, o.dtype != Dtype::kFp64 && !model_config(o).qk_norm,
       "scores beyond a dtype's largest exponent; leave --dtype fp64 and --qk-norm out");
  prefer(o, line, "--init-std", o.init_std, 1.0);
  prefer(o, line, "--steps", o.steps, std::int64_t{1});
  need(o, o.init_std.value_or(0) >= 1, "scores so large that their exponentials overflow; leave --init-std out");
}

void with_documents(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  with_positions(o, lesson, line, ranks);
  prefer(o, line, "--documents", o.documents, std::string("pack"));
  need(o, o.documents == "pack", "documents that share a row; leave --documents out");
  // Long rows, and some of them, so that documents begin and end within.
  prefer(o, line, "--seq", o.seq, std::int64_t{512});
  prefer(o, line, "--micro-batch", o.micro_batch, std::int64_t{4});
  need(o, o.data.empty() && model_config(o).seq >= 512 && o.micro_batch * o.grad_accum >= 4,
       "rows in which documents begin and end; leave --data, --seq and --micro-batch out");
}

// Tokens that 2N does not divide.
void with_a_rest(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  few_steps(o, lesson, line, ranks);
  if (model_config(o).seq % (2 * ranks) == 0) prefer(o, line, "--seq", o.seq, model_config(o).seq + 1);
  need(o, model_config(o).seq % (2 * ranks) != 0, "tokens that twice the ranks do not divide; leave --seq out");
}

void with_another_layout(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  with_ring(o, lesson, line, ranks);
  need(o, lesson.context.layout != "contiguous", "a layout in which later ranks have earlier tokens; leave --cp-layout out");
  need_two_chunks(o, ranks);
}

void with_dropout(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  few_steps(o, lesson, line, ranks);
  prefer(o, line, "--dropout", o.dropout, 0.1);
  const GptConfig c = model_config(o);
  need(o, c.dropout * static_cast<double>(o.micro_batch * c.seq * c.hidden) >= 20,
       "dropout that hits some elements; leave --dropout, --seq and --hidden out");
}

void with_reduction(Options& o, Lesson& lesson, const CommandLine& line, int ranks) {
  few_steps(o, lesson, line, ranks);
  need(o, lesson.strategy.kind == "ddp", "gradients that every rank has whole, reduced in buckets; leave --strategy out");
}

}  // namespace

const std::vector<Sabotage>& sabotages() {
  static const auto* const kAll = new std::vector<Sabotage>{
      {"norms-unsummed", "of norms and biases that act on a rank's tokens, each rank keeps its own tokens' gradient (P21)",
       "tp", few_steps, [](TrainerOptions&, Lesson& l) { l.sequence.faults.norms_unsummed = true; }},
      {"dropout-by-row", "ranks draw dropout's masks by their own rows, so that all draw the first rank's (P27)", "tp",
       with_dropout, [](TrainerOptions&, Lesson& l) { l.sequence.faults.dropout_by_row = true; }},
      {"local-positions", "positions count the tokens of a rank, not those of the document (P31)", "cp", with_positions,
       [](TrainerOptions&, Lesson& l) { l.context.faults.local_positions = true; }},
      {"labels-after-cut", "labels are shifted after the cut: a token is to predict the next one on its rank (P30)", "cp",
       few_steps, [](TrainerOptions&, Lesson& l) { l.context.faults.labels_after_cut = true; }},
      {"merge-without-maximum", "hops are merged with exp(lse), which overflows where scores are large (P32)", "cp",
       with_large_scores, [](TrainerOptions&, Lesson& l) { l.context.faults.merge_without_maximum = true; }},
      {"own-lse", "backward takes each hop's own log-sum-exp, so that its probabilities sum to 1 by themselves (P34)", "cp",
       with_ring, [](TrainerOptions&, Lesson& l) { l.context.faults.own_lse = true; }},
      {"rank-order", "gathered keys are taken to be in the sequence's order, and are in that of the ranks (P35)", "cp",
       with_gather, [](TrainerOptions&, Lesson& l) { l.context.faults.rank_order = true; }},
      {"skip-by-rank", "keys of later ranks are skipped, though with this layout some of them are visible", "cp",
       with_another_layout, [](TrainerOptions&, Lesson& l) { l.context.faults.skip_by_rank = true; }},
      {"early-start", "a hop computes with keys that have not arrived yet", "cp", with_overlap,
       [](TrainerOptions&, Lesson& l) { l.context.faults.early_start = true; }},
      {"trim", "tokens that twice the ranks do not divide are dropped (P29)", "cp", with_a_rest,
       [](TrainerOptions&, Lesson& l) { l.context.faults.trim = true; }},
      {"ignore-documents", "the mask between ranks is causal alone, so that tokens see other documents", "cp", with_documents,
       [](TrainerOptions&, Lesson& l) { l.context.faults.ignore_documents = true; }},
      {"dp-alone", "gradients are summed over dp and not over cp, whose ranks have other tokens (P04)", "cp", with_reduction,
       [](TrainerOptions&, Lesson& l) { l.strategy.faults.without_cp = true; }},
      {"divide-by-cp", "the sum over dp x cp is divided by the ranks, though the loss was divided already (P04)", "cp",
       with_reduction, [](TrainerOptions&, Lesson& l) { l.strategy.faults.average_again = true; }},
  };
  return *kAll;
}

const Sabotage& find_sabotage(const std::string& name) { return find_by_name(sabotages(), name); }

}  // namespace ref5d::seq_context_parallel
