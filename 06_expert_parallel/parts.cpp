#include "06_expert_parallel/parts.h"

#include "02_ddp_zero/replicas.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "06_expert_parallel/expert_parallel.h"

namespace ref5d::expert_parallel {

Parts::Parts(const Layout& layout, const LayoutPlan& plan, Mesh& mesh, const data_parallel::StrategyOptions& strategy)
    : layout_(layout),
      plan_(plan),
      strategy_(strategy),
      ordinary_{static_cast<int>(mesh.size(data_parallel::gradient_axes(mesh))), plan.shard_size},
      experts_{static_cast<int>(mesh.size(data_parallel::expert_axes(mesh))),
               data_parallel::expert_shard_size(mesh, plan.shard_size)},
      copies_(plan.plan && plan.plan->assignment.copies()) {}

data_parallel::Layout Parts::of(const Place& place) const {
  const TokenLayout& t = layout_.tokens;
  Gpt gpt(layout_.model);
  tensor_parallel::cut(gpt, t.tp, place.tp);
  cut(gpt, experts_of(layout_.model.moe.experts, t.ep, place.ep), t.ep > 1, t.expert_tp, t.tp, place.tp);
  if (plan_.plan) pipeline::cut(gpt, *plan_.plan, place.pp);
  data_parallel::Layout part = data_parallel::layout_of(plan_.options, gpt, strategy_, ordinary_, experts_);
  if (!plan_.plan) return part;
  if (copies_) part.micro_batches /= 2;  // of each stage half are the mirrored rank's
  part.passes.clear();
  for (const int stage : plan_.plan->assignment.stages_of(place.pp))
    part.passes.push_back(plan_.plan->units[static_cast<std::size_t>(stage)]);
  return part;
}

Place Parts::place_of(int rank) const {
  const TokenLayout& t = layout_.tokens;
  Place p{};
  for (const auto& [place, size] : {std::pair{&p.tp, t.tp}, {&p.cp, layout_.cp}, {&p.ep, t.ep}, {&p.edp, layout_.edp}}) {
    *place = rank % size;
    rank /= size;
  }
  p.pp = rank;
  return p;
}

void Parts::claim_costs(Report& report) const {
  const TokenLayout& t = layout_.tokens;
  const int pp = layout_.pp, different = copies_ ? pp / 2 : pp;
  std::vector<data_parallel::Layout> layouts;
  for (int stage = 0; stage < different; ++stage)
    for (int ep = 0; ep < t.ep; ++ep)
      for (int tp = 0; tp < t.tp; ++tp) layouts.push_back(of({stage, 0, ep, 0, tp}));
  std::vector<data_parallel::RankPart> ranks;
  for (int rank = 0; rank < pp * t.dp * layout_.cp * t.tp; ++rank) {
    const Place p = place_of(rank);
    const bool second = copies_ && p.pp >= different;
    const int stage = second ? pp - 1 - p.pp : p.pp, edp = (second ? layout_.edp : 0) + p.edp;
    ranks.push_back({static_cast<std::size_t>((stage * t.ep + p.ep) * t.tp + p.tp),
                     {(edp * t.ep + p.ep) * layout_.cp + p.cp, edp * layout_.cp + p.cp}});
  }
  data_parallel::claim_costs(report, layouts, ranks, strategy_);
}

}  // namespace ref5d::expert_parallel
