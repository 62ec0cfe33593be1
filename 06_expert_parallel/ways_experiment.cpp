// One batch of tokens and one set of experts: what each way of bringing them together sends, and what of it leaves a node.
#include <fmt/format.h>

#include "06_expert_parallel/claims.h"
#include "06_expert_parallel/experiments.h"
#include "06_expert_parallel/kept_routes.h"
#include "common/app/cost_claims.h"
#include "common/app/measure.h"
#include "common/app/settings.h"
#include "common/comm/transport.h"
#include "common/verify/table.h"

namespace ref5d::expert_parallel {

namespace {

struct Way {
  std::string name, dispatcher;
  bool node_limited = false;  // a token's experts are all on one node
  bool along_tp = false;      // every rank has a part of each expert, in place of some experts
};

// While it lives, ranks are on two nodes where they would be on one.
class TwoNodes {
 public:
  explicit TwoNodes(World& world) : world_(world), pretends_(world.node_count() == 1 && world.size() % 2 == 0) {
    if (pretends_) world_.set_ranks_per_node(world.size() / 2);
  }
  ~TwoNodes() {
    if (pretends_) world_.set_ranks_per_node(world_.size());
  }
  TwoNodes(const TwoNodes&) = delete;
  TwoNodes& operator=(const TwoNodes&) = delete;

 private:
  World& world_;
  bool pretends_;
};

// The same tokens for every way: along ep each rank is a replica; along tp all are one, which takes as many micro-batches.
Options options_of(const Experiment& e, const Way& way, int ranks) {
  Options o = e.options;
  o.grad_accum = way.along_tp ? ranks : 1;
  o.recompute = "none";
  o.moe.pad_to_capacity = false;
  if (way.node_limited) o.moe.groups = e.world.node_count(), o.moe.top_groups = 1;
  return o;
}

struct WayTraffic {
  std::int64_t expected = 0, measured = 0, between_nodes = 0, expected_between = 0;
};

// Bytes of the MoE layers.
WayTraffic count_traffic(const Report& report, const Layout& l, const Way& way, const Routes& routes,
                         const std::vector<std::vector<NodeRanks>>& nodes) {
  WayTraffic t;
  for (const TrafficRow& row : report.traffic) {
    const bool counts = way.along_tp ? row.phase.starts_with("experts ") : is_of_axis(row, "ep") && row.phase != "norm";
    if (!counts) continue;
    t.measured += row.total_wire_bytes;
    if (row.phase != "counts") t.between_nodes += row.total_between_nodes_bytes;
  }
  const std::int64_t row_bytes = l.model.hidden * static_cast<std::int64_t>(dtype_size(l.options.dtype));
  if (way.along_tp) {  // an all-reduce of [T, H] forward and one backward, for each layer and micro-batch
    const std::int64_t tokens = l.options.micro_batch * l.options.grad_accum * l.model.seq;
    t.expected = l.model.layers * 2 * 2 * tokens * row_bytes * (l.tokens.tp - 1);
    return t;
  }
  const RoutedBytes b = routed_bytes(count_rows(routes, l.tokens), l);
  t.expected = b.dispatch + b.combine + b.combine_backward + b.dispatch_backward + b.counts + b.choices;
  TokenLayout on_nodes = l.tokens;
  on_nodes.nodes = nodes;
  const RoutedRows rows = count_rows(routes, on_nodes);
  t.expected_between =
      way.dispatcher == "hierarchical" ? 4 * rows.between_nodes * row_bytes + b.choices : 4 * rows.other_nodes * row_bytes;
  return t;
}

WayTraffic run_way(Experiment& e, const Way& way, Mesh& mesh) {
  const Options o = options_of(e, way, mesh.everyone().size());
  Lesson lesson = lesson_of_own(way.dispatcher);
  lesson.expert.expert_tp = way.along_tp;
  LayoutPlan plan = plan_layout(o, lesson, e.world, mesh);
  const Layout layout = layout_of(plan, lesson, mesh);
  Measured m;
  const Routes routes = keep_routes(plan, mesh, [&] { m = measure("06_expert_parallel", o, plan.settings, 1, e.world, mesh); });
  if (!e.world.is_root()) return {};
  return count_traffic(m.report, layout, way, routes, nodes_of_groups(mesh));
}

}  // namespace

void ways_experiment(Experiment& e) {
  const int ranks = e.mesh.everyone().size();
  const GptConfig model = model_config(e.options);
  if (ranks == 1 || ranks > model.moe.experts || !transport_counts_wire()) {
    if (e.prints()) fmt::print("\nways: left out; it is for 2 to {} ranks whose sends are counted\n", model.moe.experts);
    return;
  }
  const TwoNodes two(e.world);
  const int nodes = e.world.node_count();
  std::vector<Way> ways{{"all-to-all", "alltoall"}, {"hierarchical", "hierarchical"}};
  const bool limits =
      nodes > 1 && model.moe.experts % nodes == 0 && ranks % nodes == 0 && model.moe.top_k <= model.moe.experts / nodes;
  if (limits) {
    ways.push_back({"all-to-all, experts of one node", "alltoall", true});
    ways.push_back({"hierarchical, experts of one node", "hierarchical", true});
  }
  ways.push_back({"all-gather", "allgather"});
  if (model.ffn >= ranks && model.heads % ranks == 0) ways.push_back({"tp inside experts", "alltoall", false, true});
  std::vector<std::vector<std::string>> table{
      {"way", "sent in a step, bytes", "/ all-to-all's", "between nodes, bytes", "/ all-to-all's"}};
  WayTraffic first;
  for (const Way& way : ways) {
    Mesh mesh(way.along_tp ? MeshSizes{.tp = ranks} : MeshSizes{.ep = ranks}, e.mesh.everyone().ranks);
    const WayTraffic t = run_way(e, way, mesh);
    if (!e.world.is_root()) continue;
    if (table.size() == 1) first = t;
    claim_equal(e.report, fmt::format("ways, {}: sent in a step by all ranks", way.name), t.expected, t.measured, "bytes");
    if (nodes > 1 && way.dispatcher != "allgather" && !way.along_tp)
      claim_equal(e.report, fmt::format("ways, {}: of it between nodes, but for counts", way.name), t.expected_between,
                  t.between_nodes, "bytes");
    const auto over = [](std::int64_t n, std::int64_t of) {
      return of == 0 ? std::string("-") : fmt::format("{:.2f}", static_cast<double>(n) / static_cast<double>(of));
    };
    table.push_back({way.name, grouped_digits(t.measured), over(t.measured, first.measured), grouped_digits(t.between_nodes),
                     over(t.between_nodes, first.between_nodes)});
  }
  if (e.prints())
    fmt::print("\nTokens to experts and back, {} ranks on {} node{}: {} layers, top-{} of {}\n{}", ranks, nodes,
               nodes == 1 ? "" : "s", model.layers, model.moe.top_k, model.moe.experts, format_table(table, "lrrrr"));
}

}  // namespace ref5d::expert_parallel
