// Help for testing expert parallelism: meshes of pp x edp x ep x cp x tp, and runs on them beside a single device's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "03_tensor_parallel/replica_check.h"
#include "06_expert_parallel/expert_parallel.h"
#include "06_expert_parallel/run.h"
#include "common/app/settings.h"
#include "common/model/route_log.h"
#include "tests/support/pipeline_testing.h"

namespace ref5d::testing {

// While it lives, so many neighbours are a node; the last node may have fewer.
class RanksPerNode {
 public:
  explicit RanksPerNode(std::int64_t n) { world().set_ranks_per_node(n); }
  ~RanksPerNode() { world().set_ranks_per_node(world().size()); }
  RanksPerNode(const RanksPerNode&) = delete;
  RanksPerNode& operator=(const RanksPerNode&) = delete;
};

// Two layers of 8 experts and 24 tokens a micro-batch, so that some experts get many of them and some none; losses and biases
// that are large enough to matter.
inline Options expert_options(const std::string& model = "tiny-mixtral") {
  Options o;
  o.model = model;
  o.allows_experts = true;
  o.layers = 2;
  o.hidden = 8;
  o.heads = 4;
  o.kv_heads = 2;
  o.ffn = 6;
  o.vocab = 11;
  o.seq = 12;
  o.init_std = 0.3;
  o.micro_batch = 2;
  o.steps = 2;
  o.dtype = Dtype::kFp64;
  o.lr = 0.02;
  o.clip = 0.1;  // below the norms of these models, so that the norm counts
  o.moe.aux_coefficient = 0.1;
  if (model == "tiny-deepseek") o.moe.bias_speed = 0.02;
  o.quiet = true;
  return o;
}

inline expert_parallel::Lesson expert_lesson(const std::string& dispatcher = "alltoall",
                                             const StrategyCase& s = strategy_case("ddp")) {
  expert_parallel::Lesson lesson;
  lesson.expert.dispatcher = dispatcher;
  lesson.pipeline.stage = lesson_of(s);
  return lesson;
}

// Rows with uneven labels: of one document, of several ("pack"), or with padding behind it ("pad").
inline std::vector<Row> expert_rows(const GptConfig& c, const std::string& documents, std::int64_t count) {
  std::vector<Row> rows = some_rows(c, count);
  std::mt19937 generator(7);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    Row& row = rows[r];
    row.useful = documents == "pad" ? c.seq - static_cast<std::int64_t>(5 * r + 1) % c.seq : c.seq;
    std::fill_n(row.labels.begin(), r * 5 % static_cast<std::size_t>(c.seq), kIgnoreLabel);
    for (std::size_t t = 0; t < row.start.size(); ++t) {
      const bool padding = static_cast<std::int64_t>(t) >= row.useful;
      const bool begins = t == 0 || padding || (documents == "pack" && generator() % 4 == 0);
      row.start[t] = begins ? row.order[t] : row.start[t - 1];
      if (begins && t > 0) row.labels[t - 1] = kIgnoreLabel;
      if (padding) row.tokens[t] = 0, row.labels[t] = kIgnoreLabel;
    }
  }
  return rows;
}

// What is compared of a run, and StepResult::router_load of all its steps: the sum over all ranks that counted other tokens.
struct ExpertRun {
  RunValues values;
  std::vector<double> load;
};

inline ExpertRun train_steps(Trainer& trainer, std::int64_t steps, const OnStep& on_step = {}) {
  ExpertRun run;
  for (std::int64_t s = 0; s < steps; ++s) {
    const StepResult result = trainer.step();
    run.values.losses.push_back(result.loss);
    run.values.grad_norms.push_back(result.grad_norm);
    if (result.aux_loss) run.values.aux_losses.push_back(*result.aux_loss);
    run.load.insert(run.load.end(), result.router_load.begin(), result.router_load.end());
    if (s == 0) run.values.gradients = trainer.gradients();
    if (on_step) on_step(trainer);
  }
  run.values.final_weights = trainer.weights();
  run.values.buffers = trainer.buffers();
  run.values.epsilon = trainer.options().optimizer.epsilon_before_clip(run.values.grad_norms.at(0));
  return run;
}

// Ranks along tp that cut experts have counted the same tokens.
inline void add_loads(std::vector<double>& load, const Mesh& mesh, bool expert_tp) {
  const std::string mine = bits_of(expert_tp && mesh.coordinate("tp") > 0 ? std::vector<double>(load.size(), 0.0) : load);
  std::fill(load.begin(), load.end(), 0.0);
  for (const Bytes& bytes : all_gather_on_host(mesh.everyone(), to_bytes(mine))) {
    std::vector<double> theirs(load.size());
    std::memcpy(theirs.data(), bytes.data(), std::min(bytes.size(), theirs.size() * sizeof(double)));
    for (std::size_t i = 0; i < load.size(); ++i) load[i] += theirs[i];
  }
}

inline std::string load_departure(const std::vector<double>& load, const std::vector<double>& truth) {
  if (load.size() != truth.size()) return "loads of other sizes";
  for (std::size_t i = 0; i < load.size(); ++i)
    if (!(std::abs(load[i] - truth[i]) < 1e-9))
      return "load " + std::to_string(i) + " is " + std::to_string(load[i]) + ", not " + std::to_string(truth[i]) + "\n";
  return "";
}

inline std::string text_of(const Options& o) {
  std::string text;
  for (const auto& [key, value] : to_config(o)) {
    text += key + "=";
    std::visit(
        [&](const auto& v) {
          if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>) {
            text += v;
          } else {
            text += std::to_string(v);
          }
        },
        value);
    text += " ";
  }
  return text;
}

// What so many samples are to choose: expert(layer, sample, token, slot).
template <typename Expert>
Routes routes_of(const GptConfig& c, std::int64_t samples, const Expert& expert) {
  Routes routes{c.seq, c.moe.top_k, {}};
  for (std::int64_t layer = 0; layer < c.layers; ++layer)
    for (std::int64_t s = 0; s < samples; ++s)
      for (std::int64_t t = 0; t < c.seq; ++t)
        for (std::int64_t j = 0; j < c.moe.top_k; ++j)
          routes.chosen[{layer, s}].push_back(static_cast<std::int32_t>(expert(layer, s, t, j)));
  return routes;
}

// Choices that are given.
struct FixedRoutes {
  explicit FixedRoutes(Routes r) : routes(std::move(r)) {}
  Routes routes;
  RouteLog log{routes, RouteLog::Mode::kReplay};
};
template <typename Expert>
std::shared_ptr<FixedRoutes> fixed_routes(const Options& o, std::int64_t samples, const Expert& expert) {
  return std::make_shared<FixedRoutes>(routes_of(model_config(o), samples, expert));
}

// A layout and what it trains.
struct ExpertCase {
  MeshSizes sizes;
  Options options = expert_options();
  expert_parallel::Lesson lesson = expert_lesson();
  std::int64_t ranks_per_node = 1 << 20;
  std::shared_ptr<FixedRoutes> routes = nullptr;

  [[nodiscard]] std::string text() const {
    std::string all;
    const auto add = [&](bool given, const std::string& what) { all += given ? what + ", " : ""; };
    for (const auto& [axis, size] :
         {std::pair{"pp", sizes.pp}, {"edp", sizes.edp}, {"ep", sizes.ep}, {"cp", sizes.cp}, {"tp", sizes.tp}})
      add(size > 1, axis + (" " + std::to_string(size)));
    const seq_context_parallel::Lesson& stage = lesson.pipeline.stage;
    add(sizes.pp > 1, lesson.pipeline.schedule.name);
    add(sizes.ep > 1, lesson.expert.dispatcher);
    add(sizes.ep > 1 && lesson.expert.dispatcher == "hierarchical", "nodes of " + std::to_string(ranks_per_node));
    add(lesson.expert.expert_tp, "expert-tp");
    add(stage.sp, "sp");
    add(sizes.cp > 1, stage.context.kind + " " + stage.context.layout);
    add(true, stage.strategy.kind);
    return all + text_of(options);
  }
};

template <typename T, std::size_t N>
const T& in_turn(const T (&all)[N], std::size_t turn) {
  return all[turn % N];
}

// Where a schedule is needed, its micro-batches, and as many layers as it has stages.
inline void set_schedule(ExpertCase& c, const std::string& name, int micro_batches) {
  if (c.sizes.pp == 1) return;
  const int pp = static_cast<int>(c.sizes.pp);
  const pipeline::Lesson with = pipeline_lesson(name, pp, nearest_micro_batches(name, pp, micro_batches));
  c.lesson.pipeline.schedule = with.schedule;
  c.options.layers = std::max(2, stages_of(with));
  c.options.micro_batch = 1;
}

// How the tokens of a micro-batch, or its micro-batches, can be apart.
struct Apart {
  MeshSizes sizes;
  bool expert_tp = false, sp = false;
  const char* cp_layout = "zigzag";
  [[nodiscard]] ExpertCase with(const Options& options, const char* dispatcher = "alltoall") const {
    ExpertCase c{.sizes = sizes, .options = options, .lesson = expert_lesson(dispatcher)};
    c.lesson.expert.expert_tp = expert_tp;
    c.lesson.pipeline.stage.sp = sp;
    c.lesson.pipeline.stage.context.layout = cp_layout;
    return c;
  }
};
inline const Apart kApart[] = {{{}},
                               {{.edp = 2}},
                               {{.ep = 2}},
                               {{.cp = 2}},
                               {{.cp = 2}, false, false, "striped"},
                               {{.tp = 2}},
                               {{.tp = 2}, true},
                               {{.tp = 2}, false, true},
                               {{.tp = 2}, true, true},
                               {{.cp = 3}, false, false, "contiguous"},
                               {{.tp = 3}},
                               {{.ep = 2, .cp = 2}},
                               {{.ep = 2, .tp = 2}},
                               {{.ep = 2, .tp = 2}, true},
                               {{.ep = 2, .tp = 2}, false, true},
                               {{.ep = 2, .tp = 2}, true, true},
                               {{.ep = 2, .cp = 2, .tp = 2}},
                               {{.ep = 2, .cp = 2, .tp = 2}, true, true}};

// Those on so many ranks; in the emulator, some.
inline std::vector<Apart> apart_on(int ranks) {
  std::vector<Apart> all;
  std::size_t turn = 0;
  for (const Apart& apart : kApart)
    if (apart.sizes.ranks() == ranks && (!kEmulated || turn++ % 3 == 0)) all.push_back(apart);
  return all;
}

// Cases that train many models compare each with one device's run of the same micro-batches.
class ExpertTest : public LayoutTest {
 protected:
  const int n_ = world().size();

  [[nodiscard]] static expert_parallel::LayoutPlan plan_of_case(const ExpertCase& c, Mesh& mesh) {
    expert_parallel::LayoutPlan plan = expert_parallel::plan_layout(c.options, c.lesson, world(), mesh);
    if (c.routes) plan.single.routes = plan.settings.routes = &c.routes->log;
    return plan;
  }
  [[nodiscard]] static Dataset data_of(const ExpertCase& c, const expert_parallel::LayoutPlan& plan) {
    return Dataset(expert_rows(plan.single.model, c.options.documents, c.options.steps * plan.single.global_batch));
  }

  // On the mesh's rank 0, once for all layouts of the same steps.
  const ExpertRun& alone(const Mesh& mesh, const ExpertCase& c, const expert_parallel::LayoutPlan& plan) {
    Options same = c.options;
    same.recompute = "none";
    const std::pair key(text_of(same) + std::to_string(plan.single.global_batch), c.routes);
    if (alone_.contains(key) || mesh.everyone().rank != 0) return alone_[key];
    TrainerOptions single = plan.single;
    single.recompute = Recompute::kNone;
    const Dataset data = data_of(c, plan);
    Trainer trainer(single, data);
    NamedValues initial = trainer.weights();
    ExpertRun& run = alone_[key] = train_steps(trainer, c.options.steps);
    run.values.initial = std::move(initial);
    return run;
  }

  // All ranks of the mesh.
  [[nodiscard]] static ExpertRun train_layout(Mesh& mesh, const ExpertCase& c, const expert_parallel::LayoutPlan& plan,
                                              const OnStep& on_step = {}) {
    const Dataset data = data_of(c, plan);
    Trainer trainer(plan.settings, data);
    ExpertRun run = train_steps(trainer, c.options.steps, on_step);
    add_loads(run.load, mesh, c.lesson.expert.expert_tp);
    return run;
  }

  // What departs from the single device's run; "" on ranks that have no tensors. P19: the norm is the same in every bit on all
  // ranks. Ranks that hold the same weights hold the same bits after each step.
  std::string expert_departure(Mesh& mesh, const ExpertCase& c) {
    const RanksPerNode nodes(c.ranks_per_node);
    const expert_parallel::LayoutPlan plan = plan_of_case(c, mesh);
    const ExpertRun& truth = alone(mesh, c, plan);
    const tensor_parallel::ReplicaCheck replicas(plan.single.model, mesh, c.lesson.pipeline.stage.strategy, plan.shard_size);
    int unequal = 0;
    set_order_seed(orders_++);  // a stream that does not wait for what it needs is found in one of them
    const ExpertRun run = train_layout(mesh, c, plan, [&](Trainer& t) { unequal += replicas(t) ? 0 : 1; });
    set_order_seed(0);
    std::string found = same_on_all(mesh, bits_of(run.values.grad_norms)) ? "" : "the ranks' norms differ\n";
    if (unequal > 0) found += "copies of weights differ\n";
    if (mesh.everyone().rank == 0) found += load_departure(run.load, truth.load);
    return found + departure(mesh, run.values, truth.values);
  }
  void expect_as_alone(Mesh& mesh, const ExpertCase& c) { EXPECT_EQ(expert_departure(mesh, c), "") << c.text(); }
  void expect_as_alone(const ExpertCase& c) {
    if (auto mesh = world_slice(c.sizes)) expect_as_alone(*mesh, c);
  }

 private:
  std::uint64_t orders_ = 0;
  std::map<std::pair<std::string, std::shared_ptr<FixedRoutes>>, ExpertRun> alone_;  // the routes, kept, are one key
};

// The values of one parameter's gradient that are here.
inline std::vector<double> held_gradient(Trainer& trainer, const Parameter& p) {
  const Tensor held = held_part(p, p.final_gradient());
  return !held || held.numel() == 0 ? std::vector<double>() : held.to_doubles(trainer.stream());
}
inline bool is_router(const std::string& name) {
  return name.ends_with("mlp.gate.weight") || name.ends_with("block_sparse_moe.gate.weight");
}
inline NamedValues routers_of(const NamedValues& all) {
  NamedValues some;
  for (const auto& [name, values] : all)
    if (is_router(name)) some[name] = values;
  return some;
}
inline bool all_zero(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return x == 0; });
}

}  // namespace ref5d::testing
