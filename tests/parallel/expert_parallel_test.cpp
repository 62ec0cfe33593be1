// Models whose experts are on several ranks train as one device does, whatever takes the tokens to them.
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "common/kernels/elementwise.h"
#include "tests/support/expert_testing.h"

namespace ref5d::testing {
namespace expert_parallel_test {

// How tokens get to their experts.
struct Way {
  const char* dispatcher;
  std::int64_t ranks_per_node = 1 << 20;
};

class ExpertParallel : public ExpertTest {
 protected:
  // All of them; nodes of every size, whose last one may be smaller, but that of one rank and that of all are the same for all.
  [[nodiscard]] std::vector<Way> ways() const {
    std::vector<Way> all{{"alltoall"}};
    if (n_ == 1) return all;
    all.push_back({"allgather"});
    for (int size = 1; size <= std::min(n_, 4); ++size) all.push_back({"hierarchical", size});
    return all;
  }
  // One of each kind.
  [[nodiscard]] std::vector<Way> each_way() const {
    return n_ == 1 ? ways() : std::vector<Way>{{"alltoall"}, {"hierarchical", n_ == 2 ? 1 : 2}, {"allgather"}};
  }
  [[nodiscard]] ExpertCase case_of(const Way& way, const Options& options) const {
    return {
        .sizes = {.ep = n_}, .options = options, .lesson = expert_lesson(way.dispatcher), .ranks_per_node = way.ranks_per_node};
  }
};

// Shares of 8 experts that are even and not, models, numbers of choices and capacities.
TEST_F(ExpertParallel, EveryDispatcherTrainsAsOnASingleDevice) {
  struct Capacity {
    double factor;
    bool padded;
  };
  std::size_t turn = 0;
  for (const char* model : {"tiny-mixtral", "tiny-deepseek"}) {
    for (const std::int64_t top_k : {2, 1, 4}) {
      for (const Capacity capacity : {Capacity{0, false}, {1.0, false}, {0.5, false}, {1.0, true}, {0.5, true}}) {
        Options o = expert_options(model);
        o.moe.top_k = top_k;
        o.moe.capacity_factor = capacity.factor;
        o.moe.pad_to_capacity = capacity.padded;
        for (const Way& way : ways()) {
          if (capacity.padded && std::string(way.dispatcher) != "alltoall") continue;
          const std::size_t now = turn++;
          if (now % (kEmulated ? 17 : n_ > 5 ? 13 : n_ == 4 ? 7 : n_ > 2 ? 3 : 2 * n_ - 1) != 0) continue;
          expect_as_alone(case_of(way, o));
        }
      }
    }
  }
}

// What else there is to choose, in turn: losses, documents, recomputation, accumulation, dropout, streams.
TEST_F(ExpertParallel, EveryOptionTrainsAsOnASingleDevice) {
  const char* documents[] = {"none", "pack", "pad"};
  const char* recompute[] = {"none", "full", "selective"};
  const std::vector<Way> all = ways();
  for (std::size_t i = 0; i < 36; ++i) {
    if (i % (kEmulated ? 13 : n_ > 5 ? 11 : n_ > 2 ? 5 : 1) != 0) continue;
    Options o = expert_options(i % 2 == 0 ? "tiny-mixtral" : "tiny-deepseek");
    o.moe.aux_kind = i / 2 % 2 == 0 ? "sequence" : "micro-batch";
    o.moe.z_coefficient = i / 3 % 2 == 0 ? 0.05 : 0;
    if (i % 7 == 0) o.moe.aux_coefficient = 0;
    o.documents = documents[i / 2 % 3];
    o.recompute = recompute[i % 3];
    o.grad_accum = 1 + static_cast<std::int64_t>(i / 4 % 2);
    if (i / 7 % 2 == 0) o.dropout = 0.2;
    if (i / 2 % 3 == 0) o.gemm = "hand";  // all of a rank's experts in one launch
    if (i / 3 % 3 == 0) o.moe.capacity_factor = 1;
    ExpertCase c = case_of(all[(i + i / 5) % all.size()], o);
    c.lesson.expert.overlap = i / 2 % 2 == 0;
    expect_as_alone(c);
  }
}

// Shared experts on a stream of their own read what the model's stream may be done with. With dropout the layer's input is gone
// early, and behind a region of sequence parallelism, so is what was gathered.
TEST_F(ExpertParallel, SharedExpertsMeanwhileTrainAsOnASingleDevice) {
  NEEDS_RANKS(2);
  for (const MeshSizes& sizes : {MeshSizes{.ep = 2}, {.ep = 2, .tp = 2}}) {
    for (const double dropout : {0.2, 0.0}) {
      ExpertCase c{.sizes = sizes, .options = expert_options("tiny-deepseek")};
      c.options.dropout = dropout;
      c.lesson.expert.expert_tp = c.lesson.pipeline.stage.sp = sizes.tp > 1;
      expect_as_alone(c);
    }
  }
}

// With two replicas of two ranks: experts 0 and 1 are on the first of them, 2 and 3 on the second. The first micro-batch sends
// it nothing, and expert 3 gets nothing all step.
TEST_F(ExpertParallel, T7_P47_P52_AnExpertWithoutTokens) {
  NEEDS_RANKS(2);
  if (n_ > 5) return;
  for (const int edp : {1, 2}) {
    std::size_t turn = 0;
    for (const Way& way : {Way{"alltoall"}, {"hierarchical", 1}, {"allgather"}}) {
      for (const char* kind : {"ddp", "zero1", "zero2", "zero3"}) {
        if (2 * edp > n_ || turn++ % (kEmulated || n_ > 2 ? 3 : 2) != 0) continue;
        ExpertCase c = case_of(way, expert_options());
        c.sizes = {.edp = edp, .ep = 2};
        c.lesson.pipeline.stage = lesson_of(strategy_case(kind));
        c.options.moe.experts = 4;
        c.options.micro_batch = 1;
        c.options.grad_accum = 2;
        c.options.seq = 8;
        c.routes = fixed_routes(c.options, 2L * 2 * edp * c.options.steps,
                                [](auto, auto sample, auto t, auto j) { return sample % 2 == 0 ? j : (t + j) % 3; });
        auto mesh = world_slice(c.sizes);
        if (!mesh) continue;
        const RanksPerNode nodes(c.ranks_per_node);
        const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
        const ExpertRun& truth = alone(*mesh, c, plan);
        const Dataset data = data_of(c, plan);
        Trainer trainer(plan.settings, data);
        for (const Parameter* p : trainer.gpt().parameters())
          if (p->gradient && p->gradient.numel() > 0)
            fill_constant(trainer.stream(), p->gradient, std::numeric_limits<double>::quiet_NaN());
        const NamedValues initial = trainer.weights();
        const std::int64_t calls = world().traffic().total("", "", "").calls;
        const ExpertRun run = train_steps(trainer, c.options.steps);
        EXPECT_TRUE(same_on_all(*mesh, std::to_string(world().traffic().total("", "", "").calls - calls))) << c.text();
        EXPECT_EQ(departure(*mesh, run.values, truth.values), "") << c.text();
        for (const OptimizerState& s : trainer.optimizer().states()) {
          if (s.parameter->name.find("experts.3.") == std::string::npos) continue;
          EXPECT_TRUE(all_zero(held_gradient(trainer, *s.parameter))) << s.parameter->name << ", " << c.text();
          for (const Tensor& moment : {s.m, s.v})
            EXPECT_TRUE(moment.numel() == 0 || all_zero(moment.to_doubles(trainer.stream()))) << s.parameter->name;
        }
        if (mesh->everyone().rank != 0) continue;
        const double kept = std::pow(1 - c.options.lr * c.options.weight_decay, c.options.steps);
        for (const auto& [name, values] : run.values.gradients) {
          if (name.find("experts.") == std::string::npos) continue;
          if (name.find("experts.3.") != std::string::npos) {
            const std::vector<double>&before = initial.at(name), &after = run.values.final_weights.at(name);
            for (std::size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i] * kept, 1e-15) << name;
            continue;
          }
          double product = 0, square = 0;
          for (std::size_t i = 0; i < values.size(); ++i) {
            product += values[i] * truth.values.gradients.at(name)[i];
            square += std::pow(truth.values.gradients.at(name)[i], 2);
          }
          EXPECT_NEAR(product / square, 1, 1e-12) << name << ", " << c.text();
        }
      }
    }
  }
}

// All tokens to one expert, or to two of different ranks: the others have nothing, and some ranks nothing at all.
TEST_F(ExpertParallel, P52_AllTokensToOneExpert) {
  std::size_t turn = 0;
  for (const Way& way : each_way()) {
    for (const std::int64_t one : {0, 7}) {
      for (const std::int64_t top_k : {1, 2}) {
        for (const double factor : {0.0, 1.0}) {
          const std::size_t now = turn++;
          if ((kEmulated || n_ > 2) && now % 8 % (kEmulated || n_ > 4 ? 7 : 3) != 0) continue;
          ExpertCase c = case_of(way, expert_options());
          c.options.steps = 1;
          c.options.moe.top_k = top_k;
          c.options.moe.renormalise = false;
          c.options.moe.capacity_factor = factor;
          c.options.moe.pad_to_capacity = factor != 0 && std::string(way.dispatcher) == "alltoall";
          c.routes = fixed_routes(c.options, 2L * n_, [&](auto, auto, auto, auto j) { return j == 0 ? one : 3; });
          auto mesh = world_slice(c.sizes);
          expect_as_alone(*mesh, c);
          const RanksPerNode nodes(c.ranks_per_node);
          const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
          const ExpertRun run = train_layout(*mesh, c, plan);
          if (mesh->everyone().rank != 0) continue;  // which has the gradients of all
          for (const auto& [name, values] : run.values.gradients) {
            const auto number = name.find("experts.");
            if (number == std::string::npos) continue;
            const std::int64_t expert = std::stoll(name.substr(number + 8));
            EXPECT_EQ(all_zero(values), expert != one && (top_k == 1 || expert != 3)) << name;
          }
        }
      }
    }
  }
}

// A choice alone that is renormalised has weight 1 whatever the router says.
TEST_F(ExpertParallel, P51_ALoneRenormalisedChoiceMovesNoRouter) {
  if (n_ > 5) return;
  for (const char* model : {"tiny-mixtral", "tiny-deepseek"}) {
    for (const bool renormalise : {true, false}) {
      for (const Way& way : each_way()) {
        ExpertCase c = case_of(way, expert_options(model));
        c.options.moe.aux_coefficient = 0;
        c.options.moe.top_k = 1;
        c.options.moe.renormalise = renormalise;
        const RanksPerNode nodes(c.ranks_per_node);
        auto mesh = world_slice(c.sizes);
        const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
        const Dataset data = data_of(c, plan);
        Trainer trainer(plan.settings, data);
        trainer.accumulate();
        for (const Parameter* p : trainer.gpt().parameters()) {
          if (!is_router(p->name)) continue;
          EXPECT_EQ(all_zero(held_gradient(trainer, *p)), renormalise) << p->name << ", " << c.text();
        }
      }
    }
  }
}

// Every token has k choices of each layer, counted once.
TEST_F(ExpertParallel, P54_RecomputationCountsNothingTwice) {
  if (n_ > 5) return;
  std::size_t turn = 0;
  for (const Way& way : each_way()) {
    if (kEmulated && turn > 0) break;
    ExpertCase c = case_of(way, expert_options(turn++ % 2 == 0 ? "tiny-deepseek" : "tiny-mixtral"));
    c.options.moe.capacity_factor = 1;
    c.options.grad_accum = 2;
    c.options.dropout = 0.1;
    const RanksPerNode nodes(c.ranks_per_node);
    auto mesh = world_slice(c.sizes);
    ExpertRun kept;
    for (const char* recompute : {"none", "full", "selective"}) {
      c.options.recompute = recompute;
      const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
      const ExpertRun run = train_layout(*mesh, c, plan);
      if (kept.load.empty()) kept = run;
      EXPECT_EQ(run.load, kept.load) << c.text();
      EXPECT_TRUE(same_bits(*mesh, run.values, kept.values)) << c.text();
      const MoeConfig& moe = plan.single.model.moe;
      const double choices = static_cast<double>(plan.single.global_batch * plan.single.model.seq * moe.top_k);
      for (auto row = run.load.begin(); row != run.load.end(); row += 3 * moe.experts)
        EXPECT_EQ(std::accumulate(row, row + moe.experts, 0.0), choices) << c.text();
    }
  }
}

// Sees what the first rank's tokens become.
class Outputs : public Probe {
 public:
  void see(const std::string& name, const Tensor& t, Stream& stream) override {
    if (!name.starts_with("hidden/") && name != "logits") return;
    std::vector<double>& values = seen[name];
    const std::vector<double> more = t.to_doubles(stream);
    values.insert(values.end(), more.begin(), more.end());
  }
  [[nodiscard]] bool wants_sublayers() const override { return false; }
  std::map<std::string, std::vector<double>> seen;
};

TEST_F(ExpertParallel, P56_OtherRanksTokensDoNotMatter) {
  NEEDS_RANKS(2);
  if (n_ > 5) return;
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    for (const Way& way : each_way()) {
      for (const double factor : {0.0, 1.0}) {
        if ((factor == 0) != (dtype == Dtype::kFp64) || (kEmulated && dtype != Dtype::kFp32)) continue;
        ExpertCase c = case_of(way, expert_options("tiny-deepseek"));
        c.options.dtype = dtype;
        c.options.gemm = "hand";  // a library may choose another kernel for another number of rows
        c.options.moe.capacity_factor = factor;
        const RanksPerNode nodes(c.ranks_per_node);
        auto mesh = world_slice(c.sizes);
        const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
        const auto outputs = [&](std::int32_t change) {
          std::vector<Row> rows = expert_rows(plan.single.model, "pack", plan.single.global_batch);
          for (std::size_t r = static_cast<std::size_t>(c.options.micro_batch); r < rows.size(); ++r)
            for (std::int32_t& token : rows[r].tokens)
              token = (token + change) % static_cast<std::int32_t>(plan.single.model.vocab);
          const Dataset data(rows);
          Trainer trainer(plan.settings, data);
          Outputs probe;
          trainer.context().probe = &probe;
          trainer.accumulate();
          trainer.context().probe = nullptr;
          return probe.seen;
        };
        const auto before = outputs(0), after = outputs(3);
        EXPECT_EQ(before.size(), 3U);
        EXPECT_EQ(before == after, mesh->everyone().rank == 0) << c.text();
      }
    }
  }
}

// 40 runs, in whatever order the streams' work becomes ready: one hash.
TEST_F(ExpertParallel, P55_FortyRunsAreEqualInEveryBit) {
  if (n_ > 4) return;
  const std::vector<Way> all = each_way();
  const int runs = n_ == 2 && !kEmulated ? 40 : 4;
  for (std::size_t w = 0; w < all.size(); ++w) {
    ExpertCase c = case_of(all[w], expert_options("tiny-deepseek"));
    c.options.dtype = Dtype::kFp32;
    c.options.steps = 1;
    c.options.moe.capacity_factor = 1;
    const RanksPerNode nodes(c.ranks_per_node);
    auto mesh = world_slice(c.sizes);
    const expert_parallel::LayoutPlan plan = plan_of_case(c, *mesh);
    const Dataset data = data_of(c, plan);
    std::set<std::size_t> hashes;
    for (int run = 0; run < (w == 0 ? runs : 4); ++run) {
      set_order_seed(static_cast<std::uint64_t>(run));
      Trainer trainer(plan.settings, data);
      std::string bits = bits_of({trainer.step().loss, trainer.optimizer().norm().to_doubles(trainer.stream())[0]});
      for (const std::vector<Parameter*>& kind : {trainer.gpt().parameters(), trainer.gpt().buffers()})
        for (const Parameter* p : kind)
          if (p->weight.numel() > 0) bits += bits_of(p->weight.to_doubles(trainer.stream()));
      hashes.insert(std::hash<std::string>()(bits));
    }
    EXPECT_EQ(hashes.size(), 1U) << c.text();
  }
  set_order_seed(0);
}

}  // namespace expert_parallel_test
}  // namespace ref5d::testing
