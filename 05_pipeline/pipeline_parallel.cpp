#include "05_pipeline/pipeline_parallel.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>

#include "common/comm/world.h"

namespace ref5d::pipeline {

void cut(Gpt& gpt, const Plan& plan, int rank, const Faults& faults) {
  std::vector<Units> here;
  for (int stage : plan.assignment.stages_of(rank)) here.push_back(plan.units[static_cast<std::size_t>(stage)]);
  gpt.keep(here);
  const bool tied = gpt.config().tied && plan.is_cut();
  if (tied) {
    Parameter& p = *gpt.embedding->tokens;
    p.across_stages = true;
    p.summed_with_other_rank = plan.ends_apart() && p.uses > 0;
    if (faults.tied_counts_twice)
      for (Segment& s : p.placement.segments) s.replicas /= 2;
  }
  if (!plan.assignment.copies()) return;
  for (Parameter* p : gpt.parameters())
    for (Segment& s : p->placement.segments) s.replicas *= 2;
}

namespace {

// Every rank's names, sorted, each once.
std::vector<std::string> union_of_names(const Group& group, const std::vector<std::string>& mine) {
  std::string text;
  for (const std::string& name : mine) text += name + "\n";
  std::set<std::string> all;
  for (const Bytes& bytes : all_gather_on_host(group, to_bytes(text))) {
    std::istringstream lines(ref5d::to_text(bytes));
    for (std::string name; std::getline(lines, name);) all.insert(name);
  }
  return {all.begin(), all.end()};
}

// Logits of a text, which passes through the stages one by one; all ranks get them.
Tensor logits_over_stages(Gpt& gpt, Context& ctx, const Plan& plan, Communicator& pp) {
  const TrafficLedger::Phase phase(world().traffic(), "sample");
  const std::int64_t rows = ctx.batch->residual.sample.numel(), tokens = ctx.batch->token_count();
  Tensor x;
  int at = -1;
  for (int stage = 0; stage < plan.schedule.stages; ++stage) {
    const int next = plan.assignment.holders_of(stage).front();
    if (at >= 0 && at != next) {
      const Tensor received = ctx.activation({rows, gpt.config().hidden});
      if (pp.rank() == at) pp.p2p_batch(ctx.stream, {{x, next}}, {});
      if (pp.rank() == next) pp.p2p_batch(ctx.stream, {}, {{received, at}});
      x = received;
    }
    at = next;
    if (pp.rank() == at) x = gpt.logits(ctx, x, plan.units[static_cast<std::size_t>(stage)]);
  }
  if (pp.rank() != at) x = ctx.activation({tokens, gpt.config().vocab});
  pp.broadcast(ctx.stream, x, at);
  return x;
}

}  // namespace

std::shared_ptr<Pipeline> apply(TrainerOptions& settings, Mesh& mesh, const std::shared_ptr<const Plan>& plan,
                                const PipelineOptions& options) {
  if (settings.shard || settings.accumulate)
    throw std::logic_error("pipeline::apply comes before data_parallel::apply, which reduces what the schedule has summed");
  if (plan->schedule.rank_count() != mesh["pp"].size()) throw std::logic_error("a schedule for another number of ranks");
  mesh.mirror_stages(plan->assignment.copies() && !options.faults.copies_unsummed);
  const auto pipeline = std::make_shared<Pipeline>(plan, mesh, options);
  if (settings.model.tied) pipeline->join_ends();
  settings.cut = [&mesh, plan, options, before = settings.cut](Gpt& gpt) {
    if (before) before(gpt);
    cut(gpt, *plan, mesh["pp"].rank(), options.faults);
  };
  settings.optimizer.reduce_partials = [&mesh, options, before = settings.optimizer.reduce_partials](
                                           Stream& stream, const std::vector<OptimizerState>& states, const Tensor& partials) {
    if (before) before(stream, states, partials);
    if (options.faults.own_norm) return;
    const TrafficLedger::Phase phase(world().traffic(), "norm");
    mesh["pp"].all_reduce(stream, partials);
  };
  const std::int64_t rows = settings.global_batch / mesh["dp"].size() * settings.model.seq;
  settings.activation_part = [pipeline, rows, before = settings.activation_part](const std::string& name,
                                                                                 ActivationPart& part) {
    if (before) before(name, part);
    if (part.rows.empty()) part.rows = {{0, rows}};
    part.rows = pipeline->rows_seen(name, part.rows);
  };
  settings.all_names = [group = mesh.everyone()](const std::vector<std::string>& mine) { return union_of_names(group, mine); };
  settings.logits = [&mesh, plan](Gpt& gpt, Context& ctx) { return logits_over_stages(gpt, ctx, *plan, mesh["pp"]); };
  return pipeline;
}

}  // namespace ref5d::pipeline
