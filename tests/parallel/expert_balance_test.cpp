// Whose tokens a router's losses, gradients and capacities are about: those of a replica's micro-batch, wherever they are.
#include <cmath>
#include <set>

#include "tests/support/expert_testing.h"

namespace ref5d::testing {
namespace expert_balance_test {

class ExpertBalance : public ExpertTest {};

double squares(const NamedValues& all) {
  double sum = 0;
  for (const auto& [name, values] : all)
    for (const double x : values) sum += x * x;
  return sum;
}

// The gradients of the auxiliary losses alone: no token has a label.
struct Balance {
  double loss = 0;
  NamedValues gradients;
};
Balance balance_of(const TrainerOptions& o, std::vector<Row> rows) {
  for (Row& row : rows) std::fill(row.labels.begin(), row.labels.end(), kIgnoreLabel);
  const Dataset data(std::move(rows));
  Trainer trainer(o, data);
  trainer.accumulate();
  return {trainer.context().aux_loss_sum.to_doubles(trainer.stream())[0], trainer.gradients()};
}
std::string balance_departure(const Mesh& mesh, const Balance& found, const Balance& truth) {
  std::string all;
  if (mesh.everyone().rank != 0) return all;
  if (!(std::abs(found.loss - truth.loss) <= 1e-11 * truth.loss))
    all += "loss " + std::to_string(found.loss) + ", not " + std::to_string(truth.loss) + "; ";
  if (squares(routers_of(truth.gradients)) == 0) all += "routers have no gradient; ";
  for (const auto& [a, b] :
       {std::pair{found.gradients, truth.gradients}, {routers_of(found.gradients), routers_of(truth.gradients)}})
    for (const NamedError& e : compare_sets(a, b, CompareKind::kGradient))
      if (!(e.error.relative <= 1e-11)) all += e.name + " " + std::to_string(e.error.relative) + "; ";
  return all;
}

// The scope is the micro-batch of a replica. What it depends on is how rows are cut into micro-batches, and nothing else.
TEST_F(ExpertBalance, T8_P48_TheBalanceLossIsThatOfTheSameMicroBatches) {
  std::size_t turn = 0;
  for (const Apart& apart : kApart) {
    for (const char* kind : {"micro-batch", "sequence"}) {
      for (const std::int64_t pp : {1, 2}) {
        Apart layout = apart;
        layout.sizes.pp = pp;
        if (layout.sizes.ranks() != n_ || turn++ % (kEmulated ? 4 : n_ > 2 ? 3 : 1) != 0) continue;
        Options o = expert_options(turn % 2 == 0 ? "tiny-mixtral" : "tiny-deepseek");
        o.moe.aux_kind = kind;
        o.moe.z_coefficient = 0.05;
        o.documents = "pack";
        o.grad_accum = 2;
        ExpertCase c = layout.with(o, turn % 4 < 2 ? "allgather" : "alltoall");
        set_schedule(c, "1f1b", 2);
        auto mesh = world_slice(c.sizes);
        const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
        const std::vector<Row> rows = expert_rows(plan.single.model, "pack", plan.single.global_batch);
        const Balance truth = balance_of(plan.single, rows);
        EXPECT_EQ(balance_departure(*mesh, balance_of(plan.settings, rows), truth), "") << c.text();
        if (std::string(kind) == "sequence") continue;  // but for its z-loss a mean over documents, of which all have as much
        TrainerOptions others = plan.single;
        others.micro_batch = plan.single.global_batch;
        EXPECT_GT(std::abs(balance_of(others, rows).loss / truth.loss - 1), 1e-4) << c.text();
      }
    }
  }
}

// One step on these rows, with the weights before it.
ExpertRun train_on(const Mesh& mesh, const TrainerOptions& o, const std::vector<Row>& rows, bool expert_tp) {
  const Dataset data(rows);
  Trainer trainer(o, data);
  NamedValues initial = trainer.weights();
  ExpertRun run = train_steps(trainer, 1);
  run.values.initial = std::move(initial);
  add_loads(run.load, mesh, expert_tp);
  return run;
}

// Three documents of 8 in a row are three rows of 8: the same losses and gradients.
TEST_F(ExpertBalance, P49_PackedIsUnpacked) {
  if (n_ > 4) return;
  for (const Apart& apart : apart_on(n_)) {
    for (const char* model : {"tiny-mixtral", "tiny-deepseek"}) {
      Options o = expert_options(model);
      o.moe.aux_kind = "sequence";
      o.moe.z_coefficient = 0.05;
      o.micro_batch = 1;
      o.seq = 24;
      const ExpertCase c = apart.with(o);
      auto mesh = world_slice(c.sizes);
      const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
      TrainerOptions unpacked = plan.single;
      unpacked.model.seq = 8;
      unpacked.micro_batch = 3;
      unpacked.global_batch = 3 * plan.single.global_batch;
      const std::vector<Row> rows = expert_rows(unpacked.model, "none", unpacked.global_batch);
      std::vector<Row> packed(static_cast<std::size_t>(plan.single.global_batch));
      for (std::size_t r = 0; r < rows.size(); ++r) {
        Row& to = packed[r / 3];
        for (std::size_t t = 0; t < 8; ++t) {
          to.tokens.push_back(rows[r].tokens[t]);
          to.labels.push_back(rows[r].labels[t]);
          to.order.push_back(static_cast<std::int32_t>(to.order.size()));
          to.start.push_back(static_cast<std::int32_t>(r % 3 * 8) + rows[r].start[t]);
        }
        to.useful = 24;
      }
      EXPECT_EQ(balance_departure(*mesh, balance_of(plan.settings, packed), balance_of(unpacked, rows)), "") << c.text();
      const ExpertRun truth = train_on(*mesh, unpacked, rows, false);
      EXPECT_EQ(departure(*mesh, train_on(*mesh, plan.settings, packed, false).values, truth.values), "") << c.text();
    }
  }
}

// What padding holds changes nothing: no loss, no gradient, no load that is balanced.
TEST_F(ExpertBalance, P49_PaddingCountsNowhere) {
  if (n_ > 4) return;
  for (const Apart& apart : apart_on(n_)) {
    for (const char* kind : {"micro-batch", "sequence"}) {
      Options o = expert_options("tiny-deepseek");
      o.moe.aux_kind = kind;
      o.moe.z_coefficient = 0.05;
      const ExpertCase c = apart.with(o);
      auto mesh = world_slice(c.sizes);
      const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
      const auto train = [&](std::int32_t padding) {
        std::vector<Row> rows = expert_rows(plan.single.model, "pad", plan.single.global_batch);
        for (Row& row : rows) std::fill(row.tokens.begin() + row.useful, row.tokens.end(), padding);
        return train_on(*mesh, plan.settings, rows, c.lesson.expert.expert_tp);
      };
      const ExpertRun before = train(0), after = train(5);
      EXPECT_EQ(departure(*mesh, after.values, before.values), "") << c.text();
      double useful = 0, counted = 0;
      for (const Row& row : expert_rows(plan.single.model, "pad", plan.single.global_batch))
        useful += static_cast<double>(row.useful);
      for (std::size_t e = 0; e < 8; ++e) counted += before.load[e];
      EXPECT_EQ(counted, useful * 2) << c.text();
    }
  }
}

// The router's gradient is the reference's, and the same on all ranks along tp.
TEST_F(ExpertBalance, P50_TheRoutersGradientIsTheSameAlongTp) {
  if (n_ > 4) return;
  for (const Apart& apart : apart_on(n_)) {
    if (apart.sizes.tp == 1) continue;
    for (const double factor : {0.0, 0.5}) {
      for (const char* dispatcher : {"alltoall", "allgather"}) {
        Options o = expert_options("tiny-deepseek");
        o.moe.aux_coefficient = 0;
        o.moe.capacity_factor = factor;
        const ExpertCase c = apart.with(o, dispatcher);
        auto mesh = world_slice(c.sizes);
        const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
        const Dataset data = data_of(c, plan);
        Trainer trainer(plan.settings, data);
        trainer.accumulate();
        std::vector<double> mine;
        for (const Parameter* p : trainer.gpt().parameters())
          if (is_router(p->name)) {
            const std::vector<double> values = held_gradient(trainer, *p);
            mine.insert(mine.end(), values.begin(), values.end());
          }
        EXPECT_FALSE(all_zero(mine));
        EXPECT_TRUE(same_on_all(*mesh, bits_of(mine))) << c.text();
        const NamedValues routers = routers_of(trainer.gradients());
        if (mesh->everyone().rank == 0) expect_equal(routers, routers_of(gradients_of(plan.single, data)), 1e-11);
      }
    }
  }
}

// The tokens that a layer's experts leave as they are, by their place in the global batch.
class Dropped : public Probe {
 public:
  explicit Dropped(Trainer& trainer) : trainer_(trainer) {}
  void see(const std::string& name, const Tensor& t, Stream& stream) override {
    if (name != "sub/0/mlp_out") return;
    const std::vector<double> values = t.to_doubles(stream);
    const ResidualRows& rows = trainer_.context().batch->residual;
    const std::vector<double> sample = rows.sample.to_doubles(stream), order = rows.order.to_doubles(stream);
    const auto width = static_cast<std::ptrdiff_t>(values.size() / sample.size());
    for (std::size_t r = 0; r < sample.size(); ++r) {
      const auto row = values.begin() + static_cast<std::ptrdiff_t>(r) * width;
      if (!all_zero({row, row + width})) kept.insert(static_cast<int>(sample[r]) * 4 + static_cast<int>(order[r]));
    }
  }
  [[nodiscard]] bool wants_sublayers() const override { return true; }
  std::set<int> kept;

 private:
  Trainer& trainer_;
};

// Of the first step, by all ranks of the mesh.
std::set<int> kept_tokens(const Mesh& mesh, const TrainerOptions& o, const Dataset& data) {
  Trainer trainer(o, data);
  Dropped probe(trainer);
  trainer.context().probe = &probe;
  trainer.accumulate();
  trainer.context().probe = nullptr;
  std::string mine;
  for (const int token : probe.kept) mine += static_cast<char>(token);
  std::set<int> all;
  for (const Bytes& bytes : all_gather_on_host(mesh.everyone(), to_bytes(mine)))
    for (const char token : to_text(bytes)) all.insert(token);
  return all;
}

// 8 tokens of a micro-batch, in two rows, of which 0 to 5 choose expert 0 and 6 and 7 expert 1: each has a capacity of 4, which
// the first in the micro-batch's order take, wherever they are. In micro-batches of 4 tokens each expert has a capacity of 2.
TEST_F(ExpertBalance, P53_TheFirstTokensOfTheMicroBatchAreKept) {
  for (const Apart& apart : apart_on(n_)) {
    if (apart.sizes.ep > 2) continue;
    for (const char* cp_layout : {"zigzag", "contiguous", "striped"}) {
      if (apart.sizes.cp == 1 && cp_layout[0] != 'z') continue;
      for (const std::int64_t micro_batch : {2, 1}) {
        Options o = expert_options();
        o.moe.experts = 2;
        o.moe.top_k = 1;
        o.moe.capacity_factor = 1;
        o.seq = 4;
        o.micro_batch = micro_batch;
        ExpertCase c = apart.with(o, n_ % 2 == 0 ? "alltoall" : "allgather");
        c.lesson.pipeline.stage.context.layout = cp_layout;
        const std::int64_t dp = apart.sizes.edp * apart.sizes.ep;
        c.options.grad_accum = 4 / (micro_batch * dp);
        c.options.moe.pad_to_capacity = c.lesson.expert.dispatcher == "alltoall" && dp == 2;
        c.routes = fixed_routes(c.options, 4, [](auto, auto sample, auto t, auto) { return sample % 2 * 4 + t < 6 ? 0 : 1; });
        auto mesh = world_slice(c.sizes);
        const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
        EXPECT_EQ(plan.single.global_batch, 4);
        const Dataset data = data_of(c, plan);
        const std::set<int> expected = micro_batch == 2 ? std::set{0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 14, 15}
                                                        : std::set{0, 1, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15};
        EXPECT_EQ(kept_tokens(*mesh, plan.settings, data), expected) << c.text();
        if (mesh->everyone().rank == 0) {
          const Mesh one({}, {world().rank()});
          EXPECT_EQ(kept_tokens(one, plan.single, data), expected) << c.text();
        }
      }
    }
  }
}

}  // namespace expert_balance_test
}  // namespace ref5d::testing
