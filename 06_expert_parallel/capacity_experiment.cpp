// Capacity and its buffers of a fixed size against no capacity: what is dropped, and what is computed and sent for nothing.
#include <fmt/format.h>

#include <numeric>

#include "06_expert_parallel/claims.h"
#include "06_expert_parallel/experiments.h"
#include "06_expert_parallel/kept_routes.h"
#include "06_expert_parallel/load.h"
#include "common/app/cost_claims.h"
#include "common/app/settings.h"
#include "common/comm/transport.h"
#include "common/verify/table.h"

namespace ref5d::expert_parallel {

namespace {

struct Buffers {
  double factor;  // 0: dropless
  bool padded;
};
constexpr Buffers kBuffers[] = {{0, false}, {1, false}, {1, true}, {1.25, true}, {1.5, true}, {2, true}, {4, true}};

struct BufferCosts {
  std::int64_t flops = 0, kept = 0, routed = 0, padded = 0, sent_bytes = 0, expected_bytes = 0;
};

BufferCosts run_buffers(Experiment& e, const Buffers& buffers, Mesh& mesh) {
  Options o = e.options;
  o.grad_accum = 1;
  o.recompute = "none";
  o.moe.capacity_factor = buffers.factor;
  o.moe.pad_to_capacity = buffers.padded;
  const Lesson lesson = lesson_of_own("alltoall");
  LayoutPlan plan = plan_layout(o, lesson, e.world, mesh);
  const Layout layout = layout_of(plan, lesson, mesh);
  const Dataset data(dataset_options(o, layout.model));
  e.world.traffic().reset();
  RunRecord record;
  const Routes routes = keep_routes(plan, mesh, [&] {
    Trainer trainer(plan.settings, data);
    record = record_run(trainer, 1, 0);
  });
  std::int64_t mine = 0;
  for (const auto& [key, count] : e.world.traffic().counts())
    if (key.axis == "ep" && key.phase != "norm") mine += count.wire;
  struct OfRank {
    std::int64_t flops, bytes;
  };
  const auto ranks = gather_counts(mesh.everyone(), OfRank{record.flops_per_step.count(FlopsKind::kExperts), mine});
  BufferCosts costs;
  if (!e.world.is_root()) return costs;
  for (const OfRank& r : ranks) costs.flops += r.flops, costs.sent_bytes += r.bytes;
  const RoutedRows rows = count_rows(routes, layout.tokens);
  costs.kept = rows.kept;
  costs.routed = rows.routed;
  costs.padded = buffers.padded ? layout.tokens.layers * padded_rows(layout.tokens) : rows.kept;
  const RoutedBytes b = routed_bytes(rows, layout);
  costs.expected_bytes = b.dispatch + b.combine + b.combine_backward + b.dispatch_backward + b.counts;
  return costs;
}

}  // namespace

void capacity_experiment(Experiment& e) {
  const int ranks = e.mesh.everyone().size();
  const GptConfig model = model_config(e.options);
  if (ranks > model.moe.experts) {
    if (e.prints()) fmt::print("\ncapacity: left out; it is for at most {} ranks\n", model.moe.experts);
    return;
  }
  Mesh mesh({.ep = ranks}, e.mesh.everyone().ranks);
  std::vector<std::vector<std::string>> table{
      {"capacity", "choices dropped", "rows computed", "of them padding", "sent, bytes", "/ dropless"}};
  std::int64_t dropless = 0;
  for (const Buffers& b : kBuffers) {
    const BufferCosts c = run_buffers(e, b, mesh);
    if (!e.world.is_root()) continue;
    const std::string name = b.factor == 0 ? "none" : fmt::format("{:g}{}", b.factor, b.padded ? ", padded" : "");
    if (b.factor == 0) dropless = c.sent_bytes;
    claim_equal(e.report, fmt::format("capacity {}: flops of experts in a step, all ranks", name),
                c.padded * 18 * model.hidden * model.ffn, c.flops, "");
    if (ranks > 1 && transport_counts_wire())
      claim_equal(e.report, fmt::format("capacity {}: sent along ep in a step by all ranks", name), c.expected_bytes,
                  c.sent_bytes, "bytes");
    const auto percent = [](std::int64_t n, std::int64_t of) {
      return fmt::format("{:.1f}%", 100 * static_cast<double>(n) / static_cast<double>(of));
    };
    table.push_back(
        {name, percent(c.routed - c.kept, c.routed), grouped_digits(c.padded), percent(c.padded - c.kept, c.padded),
         grouped_digits(c.sent_bytes),
         dropless == 0 ? "-" : fmt::format("{:.2f}", static_cast<double>(c.sent_bytes) / static_cast<double>(dropless))});
  }
  if (e.prints())
    fmt::print("\nCapacity in the first step, {} experts on {} ranks\n{}", model.moe.experts, ranks,
               format_table(table, "lrrrrr"));
}

}  // namespace ref5d::expert_parallel
