#include "06_expert_parallel/sabotage.h"

#include "common/app/sabotage.h"
#include "common/app/settings.h"

namespace ref5d::expert_parallel {

namespace {

void few_steps(Options& o, Lesson&, const CommandLine& line) {
  prefer(o, line, "--steps", o.steps, std::int64_t{3});
  need(o, o.init_std.value_or(1) >= 1e-3, "weights of some size; leave --init-std out");
}

void with_reduced_buckets(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  need(o, lesson.pipeline.stage.strategy.kind != "naive", "gradients that are reduced in groups; leave --strategy naive out");
}

void with_clipping(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  need(o, o.clip > 0, "clipping; leave --clip out");
}

void with_router_gradient(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  const MoeConfig m = model_config(o).moe;
  const bool weights = m.top_k > 1 || !m.renormalise, losses = m.aux_coefficient > 0 || m.z_coefficient > 0;
  need(o, m.experts > 1 && (weights || losses), "a router that has a gradient; leave --top-k and --aux-coef out");
}

void with_other_weights(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  const MoeConfig m = model_config(o).moe;
  need(o, m.top_k < m.experts || m.score != ScoreKind::kSoftmax, "weights whose sum is not 1; leave --top-k out");
}

void with_balance_loss(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  if (!o.moe.aux_coefficient) prefer(o, line, "--aux-coef", o.moe.aux_coefficient, 0.1);
  need(o, model_config(o).moe.aux_coefficient > 0, "a balance loss; leave --aux-coef out");
}

void with_capacity(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  if (!o.moe.capacity_factor) prefer(o, line, "--capacity-factor", o.moe.capacity_factor, 1.0);
  const MoeConfig m = model_config(o).moe;
  need(o, m.capacity_factor > 0 && m.capacity_factor <= 1, "choices to drop; leave --capacity-factor out");
  const std::int64_t tokens = o.micro_batch * model_config(o).seq;
  need(o, m.capacity(tokens) < tokens,
       "experts that more tokens choose than they take; leave --top-k and --capacity-factor out");
}

// As far as flags say which ranks along ep are on a node.
bool nodes_have_several_ranks(const Options& o) {
  const auto size = [&](const char* axis) { return o.axes.contains(axis) ? o.axes.at(axis) : 1; };
  return !o.ranks_per_node || *o.ranks_per_node > size("cp") * size("tp");
}

void with_several_experts(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  need(o, lesson.expert.dispatcher != "allgather", "rows that are sent to experts; leave --dispatcher out");
  need(o, lesson.expert.dispatcher != "hierarchical" || nodes_have_several_ranks(o),
       "nodes of several ranks along ep; leave --ranks-per-node out");
  const auto ep = o.axes.find("ep");
  need(o, ep != o.axes.end() && model_config(o).moe.experts > ep->second, "several experts on a rank; use a smaller --ep");
}

void with_correction_bias(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  prefer(o, line, "--model", o.model, std::string("tiny-deepseek"));
  const MoeConfig m = model_config(o).moe;
  need(o, m.bias_speed > 0, "a correction bias that moves; leave --model and --bias-speed out");
  need(o, m.top_k < m.experts, "a load that is uneven; leave --top-k out");
}

}  // namespace

const std::vector<Sabotage>& sabotages() {
  static const auto* const kAll = new std::vector<Sabotage>{
      {"expert-gradients-times-ep",
       "experts' gradients are averaged over fewer ranks than others', so they are ep times too large (P47)", "ep",
       with_reduced_buckets, [](Lesson& l, int ep) { l.pipeline.stage.strategy.faults.expert_gradient_factor = ep; }},
      {"experts-left-out-of-norm", "each rank clips by a norm without other ranks' experts (P19)", "ep", with_clipping,
       [](Lesson& l, int) { l.pipeline.stage.strategy.faults.experts_left_out_of_norm = true; }},
      {"rows-by-sender", "experts take rows in the order in which they have arrived, not each its own", "ep",
       with_several_experts, [](Lesson& l, int) { l.expert.faults.rows_by_sender = true; }},
      {"router-unsummed", "each rank along tp keeps its own part of the router's gradient (P50)", "tp", with_router_gradient,
       [](Lesson& l, int) { l.expert.faults.router_unsummed = true; }},
      {"aux-per-rank", "each rank balances its own tokens: a mean of products of means, not a product of means (P48, T8)", "cp",
       with_balance_loss, [](Lesson& l, int) { l.expert.faults.aux_per_rank = true; }},
      {"drop-by-rank",
       "of an expert's capacity each rank fills its share in its own order, not the whole in the micro-batch's (P53)", "cp",
       with_capacity, [](Lesson& l, int) { l.expert.faults.drop_by_rank = true; }},
      {"wrong-renormalisation", "a token's weights are divided by their sum where the model's are not, or the reverse (P51)",
       "ep", with_other_weights, [](Lesson& l, int) { l.expert.faults.other_weights = true; }},
      {"own-load", "correction biases follow the load of a rank's own tokens", "ep", with_correction_bias,
       [](Lesson& l, int) { l.expert.faults.own_load = true; }},
  };
  return *kAll;
}

const Sabotage& find_sabotage(const std::string& name) { return find_by_name(sabotages(), name); }

}  // namespace ref5d::expert_parallel
