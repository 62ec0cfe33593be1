// What travels between the ranks of experts: counted by hand, by routed_rows.h and at the sends; and what cannot travel.
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "06_expert_parallel/claims.h"
#include "06_expert_parallel/routed_rows.h"
#include "tests/support/expert_testing.h"

namespace ref5d::testing {
namespace expert_routing_test {

class ExpertRouting : public ExpertTest {};

// Which of so many ranks has item i of n: shares in order, the first n % ranks of them larger by one.
int owner(std::int64_t i, std::int64_t n, std::int64_t ranks) {
  int rank = 0;
  for (std::int64_t end = 0; rank < ranks; ++rank) {
    end += n / ranks + (rank < n % ranks ? 1 : 0);
    if (i < end) break;
  }
  return rank;
}

// Rows that leave a rank in one of the four ways, of all ranks together.
struct Moved {
  std::int64_t kept = 0, leaving = 0, between_nodes = 0, inside_nodes = 0;
};

// Tokens one by one: cp's ranks have contiguous parts of a sequence.
class Enumeration {
 public:
  Enumeration(const ExpertCase& c, const MoeConfig& moe) : c_(c), moe_(moe) {}

  [[nodiscard]] Moved count(std::int64_t layers, std::int64_t global_batch) {
    const std::int64_t micro_batch = c_.options.micro_batch, dp = c_.sizes.edp * c_.sizes.ep;
    for (std::int64_t layer = 0; layer < layers; ++layer)
      for (std::int64_t first = 0; first < global_batch; first += micro_batch)
        count_micro_batch(layer, first, first / (global_batch / dp));
    return moved_;
  }

 private:
  void count_micro_batch(std::int64_t layer, std::int64_t first_sample, std::int64_t replica) {
    const int from = static_cast<int>(replica % c_.sizes.ep);
    group_begin_ = (replica - from) * c_.sizes.cp * c_.sizes.tp;
    const std::int64_t seq = *c_.options.seq, rows = c_.options.micro_batch * seq, capacity = capacity_of(rows);
    std::map<std::int32_t, std::int64_t> taken;
    std::map<std::pair<int, int>, std::int64_t> rows_here;  // by place along cp and tp
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<std::int32_t> kept;
      for (std::int64_t j = 0; j < moe_.top_k; ++j) {
        const std::int32_t e = c_.routes->routes.chosen.at(
            {layer, first_sample + row / seq})[static_cast<std::size_t>(row % seq * moe_.top_k + j)];
        if (moe_.capacity_factor == 0 || taken[e]++ < capacity) kept.push_back(e);
      }
      const std::int64_t part = seq / c_.sizes.cp, here = row / seq * part + row % part;
      const int cp = static_cast<int>(row % seq / part);
      const int tp = owner(here, rows / c_.sizes.cp, c_.sizes.tp);
      for (int t = 0; t < static_cast<int>(c_.sizes.tp); ++t) {
        if (!c_.lesson.expert.expert_tp && t != tp) continue;  // cut experts get every token from each rank
        ++rows_here[{cp, t}];
        inside_ = cp * c_.sizes.tp + t;
        count_token(kept, from);
      }
    }
    if (!moe_.pad_to_capacity) return;
    for (const auto& [rank, n] : rows_here)
      for (std::int64_t e = 0; e < moe_.experts; ++e) moved_.leaving += rank_of(e) == from ? 0 : std::min(capacity, n);
  }
  void count_token(const std::vector<std::int32_t>& kept, int from) {
    moved_.kept += static_cast<std::int64_t>(kept.size());
    std::map<int, std::vector<int>> by_node;  // the ranks of its experts
    for (const std::int32_t e : kept) {
      moved_.leaving += rank_of(e) != from && !moe_.pad_to_capacity ? 1 : 0;
      by_node[node(rank_of(e))].push_back(rank_of(e));
    }
    for (const auto& [to, ranks] : by_node) {
      int first = 0, size = 0, own_first = 0;
      while (node(first) != to) ++first;
      while (node(own_first) != node(from)) ++own_first;
      while (first + size < c_.sizes.ep && node(first + size) == to) ++size;
      const int gateway = first + (from - own_first) % size;
      moved_.between_nodes += gateway != from ? 1 : 0;
      for (const int rank : ranks) moved_.inside_nodes += rank != gateway ? 1 : 0;
    }
  }
  [[nodiscard]] std::int64_t capacity_of(std::int64_t tokens) const {
    return static_cast<std::int64_t>(
        std::ceil(moe_.capacity_factor * static_cast<double>(moe_.top_k * tokens) / static_cast<double>(moe_.experts)));
  }
  [[nodiscard]] int rank_of(std::int64_t expert) const { return owner(expert, moe_.experts, c_.sizes.ep); }
  // The world's node of a place along ep.
  [[nodiscard]] int node(int rank) const {
    return static_cast<int>((group_begin_ + rank * c_.sizes.cp * c_.sizes.tp + inside_) / c_.ranks_per_node);
  }

  const ExpertCase& c_;
  MoeConfig moe_;
  std::int64_t group_begin_ = 0, inside_ = 0;  // the first rank of the replica's group along ep, and the place along cp and tp
  Moved moved_;
};

// Bytes that all ranks of the mesh sent since `before`: along ep, or inside of its nodes.
std::int64_t sent(const Mesh& mesh, const TrafficLedger& before, bool inside, const char* phase) {
  std::int64_t mine = 0;
  for (const auto& [key, count] : world().traffic().counts()) {
    if (key.phase != phase || key.axis.starts_with("ep[") != inside || !key.axis.starts_with("ep")) continue;
    mine += count.wire - before.total(key.axis, key.op, key.phase).wire;
  }
  std::int64_t all = 0;
  for (const Bytes& bytes : all_gather_on_host(mesh.everyone(), to_bytes(static_cast<double>(mine))))
    all += static_cast<std::int64_t>(to_number(bytes));
  return all;
}

TEST_F(ExpertRouting, RowsThatTravelAreThoseOfTheChoices) {
  NEEDS_RANKS(2);
  NEEDS_RANK_ORDER;
  std::mt19937 generator(3);
  std::size_t turn = 0;
  for (const MeshSizes& sizes : {MeshSizes{.ep = n_},
                                 {.edp = 2, .ep = 2},
                                 {.ep = 2, .tp = 2},
                                 {.ep = 2, .cp = 2},
                                 {.edp = 2, .ep = 3},
                                 {.ep = 3, .tp = 2},
                                 {.edp = 2, .ep = 4},
                                 {.ep = 4, .tp = 2},
                                 {.ep = 2, .cp = 2, .tp = 2}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = world_slice(sizes);
    const std::int64_t along = sizes.cp * sizes.tp;
    // 0: not hierarchical. Some put groups of ranks along ep on nodes in other ways than the first.
    for (const std::int64_t ranks_per_node : std::set{std::int64_t{0}, std::int64_t{3}, along, 2 * along, 3 * along}) {
      for (const int variant : {0, 1, 2, 3}) {
        if (turn++ % (kEmulated ? 5 : n_ > 4 ? 7 : n_ > 2 ? 3 : 1) != 0) continue;
        ExpertCase c{.sizes = sizes,
                     .options = expert_options(),
                     .lesson = expert_lesson(ranks_per_node == 0 ? "alltoall" : "hierarchical")};
        c.ranks_per_node = ranks_per_node == 0 ? n_ : ranks_per_node;
        c.options.steps = 1;
        c.options.grad_accum = 1 + variant % 2;
        c.options.moe.top_k = 1 + variant % 3;
        c.options.moe.capacity_factor = in_turn({0.0, 0.0, 0.75, 6.0}, static_cast<std::size_t>(variant));
        c.options.moe.pad_to_capacity = variant == 3 && ranks_per_node == 0;
        c.lesson.expert.expert_tp = sizes.tp > 1 && variant % 2 == 0;
        c.lesson.pipeline.stage.sp = sizes.tp > 1 && variant >= 2;
        c.lesson.pipeline.stage.context.layout = "contiguous";
        std::vector<std::int32_t> experts(8);
        c.routes = fixed_routes(c.options, c.options.micro_batch * c.options.grad_accum * sizes.edp * sizes.ep,
                                [&](auto, auto, auto, std::int64_t j) {
                                  if (j == 0) {  // of unequal loads
                                    std::iota(experts.begin(), experts.end(), 0);
                                    std::shuffle(experts.begin() + static_cast<std::ptrdiff_t>(generator() % 3), experts.end(),
                                                 generator);
                                  }
                                  return experts[static_cast<std::size_t>(j)];
                                });
        const RanksPerNode nodes(c.ranks_per_node);
        const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
        const MoeConfig& moe = plan.single.model.moe;
        const Moved expected = Enumeration(c, moe).count(*c.options.layers, plan.single.global_batch);
        const expert_parallel::RoutedRows rows =
            expert_parallel::count_rows(c.routes->routes, expert_parallel::layout_of(plan, c.lesson, *mesh).tokens);
        EXPECT_EQ(rows.kept, expected.kept) << c.text();
        EXPECT_EQ(rows.leaving, expected.leaving) << c.text();
        if (ranks_per_node > 0) {
          EXPECT_EQ(rows.between_nodes, expected.between_nodes) << c.text();
          EXPECT_EQ(rows.inside_nodes, expected.inside_nodes) << c.text();
        }
        const Dataset data = data_of(c, plan);
        const TrafficLedger before = world().traffic();
        Trainer trainer(plan.settings, data);
        trainer.accumulate();
        device().synchronize();
        const std::int64_t row_bytes = *c.options.hidden * static_cast<std::int64_t>(sizeof(double));
        for (const char* phase : {"dispatch", "combine", "combine backward", "dispatch backward"}) {
          const std::int64_t out = ranks_per_node == 0 ? expected.leaving : expected.between_nodes;
          EXPECT_EQ(sent(*mesh, before, false, phase), out * row_bytes) << phase << ", " << c.text();
          EXPECT_EQ(sent(*mesh, before, true, phase), ranks_per_node == 0 ? 0 : expected.inside_nodes * row_bytes)
              << phase << ", " << c.text();
        }
      }
    }
  }
}

// Ranks without an expert, and nodes whose ranks are not next to each other: every rank says the same.
TEST_F(ExpertRouting, WhatCannotBeSharedOutIsRefusedAlikeEverywhere) {
  NEEDS_RANKS(2);
  const auto refused = [&](Mesh& mesh, const ExpertCase& c, const char* part) {
    const std::string error = input_error_of([&] { (void)plan_of_case(c, mesh); });
    EXPECT_NE(error.find(part), std::string::npos) << error << ", " << c.text();
    EXPECT_TRUE(same_on_all(mesh, error)) << c.text();
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  };
  auto mesh = world_slice({.ep = n_});
  for (const char* dispatcher : {"alltoall", "hierarchical", "allgather"}) {
    ExpertCase c{.sizes = {.ep = n_}, .options = expert_options(), .lesson = expert_lesson(dispatcher)};
    c.options.moe.experts = n_ - 1;
    c.options.moe.top_k = 1;
    refused(*mesh, c, "at least as many experts");
    c.options.moe.experts = n_;
    EXPECT_EQ(input_error_of([&] { (void)plan_of_case(c, *mesh); }), "") << c.text();
  }
  auto cut = world_slice({.tp = n_});
  ExpertCase c{.sizes = {.tp = n_}, .options = expert_options("tiny-deepseek")};
  c.options.heads = c.options.kv_heads = n_;
  c.options.hidden = 2 * n_;
  c.options.ffn = n_ - 1;
  refused(*cut, c, "cannot cut shared experts");
  c.options.moe.shared_experts = 2;
  EXPECT_EQ(input_error_of([&] { (void)plan_of_case(c, *cut); }), "") << c.text();  // whole experts are not cut
  c.lesson.expert.expert_tp = true;
  refused(*cut, c, "cannot cut experts");
  if (n_ < 3) return;
  std::vector<int> order = ranks_from(0, n_);
  std::swap(order[1], order[2]);
  Mesh apart({.ep = n_}, order);
  const RanksPerNode nodes(2);
  refused(apart, {.sizes = {.ep = n_}, .options = expert_options(), .lesson = expert_lesson("hierarchical")},
          "neighbours along --ep");
  EXPECT_EQ(input_error_of([&] { (void)plan_of_case({.sizes = {.ep = n_}, .options = expert_options()}, apart); }), "");
  if (n_ != 6) return;
  Mesh second({.edp = 2, .ep = 3}, {0, 1, 2, 4, 3, 5});  // ranks 4 and 5 are on one node
  refused(second, {.sizes = {.edp = 2, .ep = 3}, .options = expert_options(), .lesson = expert_lesson("hierarchical")},
          "neighbours along --ep");
}

// All ranks make the same calls in the same order, whatever they have to send.
TEST_F(ExpertRouting, P57_OneOrderOfCalls) {
  NEEDS_RANKS(2);
  if (n_ > 4) return;
  std::size_t turn = 0;
  for (const MeshSizes& sizes : {MeshSizes{.ep = n_}, {.edp = 2, .ep = 2}, {.ep = 2, .tp = 2}, {.ep = 2, .cp = 2}}) {
    if (sizes.ranks() != n_) continue;
    auto mesh = world_slice(sizes);
    for (const auto& [dispatcher, ranks_per_node] :
         {std::pair{"alltoall", 1}, {"hierarchical", 1}, {"hierarchical", 2}, {"allgather", 1}}) {
      if (n_ > 2 && turn++ % 3 != 0) continue;
      ExpertCase c{.sizes = sizes,
                   .options = expert_options("tiny-deepseek"),
                   .lesson = expert_lesson(dispatcher, strategy_case("zero3"))};
      c.options.moe.capacity_factor = 1;
      c.options.recompute = "full";
      c.options.steps = 1;
      c.lesson.expert.expert_tp = ranks_per_node == 1;
      const RanksPerNode nodes(ranks_per_node * sizes.tp * sizes.cp);
      const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
      world().order().enable(true);
      (void)train_layout(*mesh, c, plan);
      EXPECT_NO_THROW(world().order().finish(world().everyone())) << c.text();
      world().order() = OrderLedger();
    }
  }
}

}  // namespace expert_routing_test
}  // namespace ref5d::testing
