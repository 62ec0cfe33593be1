// A router that sends most tokens to one expert, and what each cure does about it: work and memory of the busiest rank.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "06_expert_parallel/claims.h"
#include "06_expert_parallel/experiments.h"
#include "06_expert_parallel/load.h"
#include "common/app/cost_claims.h"
#include "common/app/settings.h"
#include "common/verify/table.h"

namespace ref5d::expert_parallel {

namespace {

constexpr double kHotShare = 0.8;
constexpr std::int64_t kHotSteps = 40, kLateSteps = 20;

// The scores of one layer's router, of all micro-batches.
class ScoreProbe : public Probe {
 public:
  explicit ScoreProbe(std::int64_t layer) : name_(fmt::format("sub/{}/router_scores", layer)) {}
  void see(const std::string& name, const Tensor& tensor, Stream& stream) override {
    if (name != name_) return;
    const std::vector<double> values = tensor.to_doubles(stream);
    scores.insert(scores.end(), values.begin(), values.end());
  }
  [[nodiscard]] bool wants_sublayers() const override { return true; }
  std::vector<double> scores;

 private:
  std::string name_;
};

// The bias of expert 0 with which so many of the tokens prefer it to all others.
double bias_for(const std::vector<double>& scores, std::int64_t experts, double share) {
  std::vector<double> margins;
  for (auto row = scores.begin(); row != scores.end(); row += experts)
    margins.push_back(*std::max_element(row + 1, row + experts) - *row);
  std::sort(margins.begin(), margins.end());
  const auto n = static_cast<std::size_t>(std::lround(share * static_cast<double>(margins.size())));
  return (margins[n - 1] + margins[n]) / 2;
}

using Biases = std::vector<double>;  // of expert 0 in each layer

void set_biases(Gpt& gpt, const Biases& biases, Stream& stream) {
  const std::vector<Parameter*> buffers = gpt.buffers();
  for (std::size_t layer = 0; layer < biases.size(); ++layer) {
    std::vector<double> values(static_cast<std::size_t>(buffers[layer]->weight.numel()));
    values[0] = biases[layer];
    buffers[layer]->weight.copy_from(
        HostTensor::from_doubles(values, {buffers[layer]->weight.numel()}, buffers[layer]->weight.dtype()), stream);
  }
}

// Layer by layer, since a layer's choices change what the next one sees. On one device, the same on every rank.
Biases find_biases(const TrainerOptions& single, const Dataset& data) {
  Trainer trainer(single, data);
  Biases biases;
  for (std::int64_t layer = 0; layer < single.model.layers; ++layer) {
    ScoreProbe probe(layer);
    trainer.context().probe = &probe;
    trainer.accumulate();
    biases.push_back(bias_for(probe.scores, single.model.moe.experts, kHotShare));
    set_biases(trainer.gpt(), biases, trainer.stream());
  }
  return biases;
}

struct Cure {
  const char *name, *flags;
  void (*apply)(MoeOptions&);
};
constexpr Cure kCures[] = {
    {"none", "", [](MoeOptions&) {}},
    {"balance loss", "--aux-coef 1", [](MoeOptions& m) { m.aux_coefficient = 1.0; }},
    {"correction bias", "--bias-speed 0.01", [](MoeOptions& m) { m.bias_speed = 0.01; }},
    {"capacity", "--capacity-factor 1.25", [](MoeOptions& m) { m.capacity_factor = 1.25; }},
};

// Of a step, by rank.
struct RankWork {
  std::int64_t flops = 0;            // of routed experts
  std::int64_t activation_peak = 0;  // bytes
};
struct Moment {
  std::vector<RankWork> ranks;
  std::vector<ExpertLoad> layers;
};

double busiest_over_even(const std::vector<std::int64_t>& of_ranks) {
  double sum = 0;
  for (const std::int64_t n : of_ranks) sum += static_cast<double>(n);
  return sum == 0 ? 1
                  : static_cast<double>(*std::max_element(of_ranks.begin(), of_ranks.end())) *
                        static_cast<double>(of_ranks.size()) / sum;
}

struct Outcome {
  Moment first, last;
  double late_share = 0;  // of expert 0 in all choices of the last steps
};

// Always the same model, so that what the cures do is not another one's.
Options hot_options(const Experiment& e, const Cure& cure) {
  Options o;
  o.data = e.options.data;
  o.seed = e.options.seed;
  o.mesh = o.allows_experts = true;
  o.model = "tiny-deepseek";
  o.dtype = Dtype::kFp64;  // in which one device's choices are those of the ranks
  o.layers = 2;
  o.moe.top_k = 1;
  o.moe.groups = o.moe.top_groups = 1;
  o.moe.aux_coefficient = o.moe.bias_speed = 0.0;
  o.axes = {{"ep", e.mesh.everyone().size()}};
  o.lr = 3e-3;
  cure.apply(o.moe);
  return o;
}

Moment moment_of(const RunRecord& record, const std::vector<ExpertLoad>& loads, std::int64_t step, Mesh& mesh) {
  Moment m;
  m.ranks = gather_counts(
      mesh.everyone(), RankWork{record.flops_per_step.count(FlopsKind::kExperts), record.peak(MemoryCategory::kActivations)});
  for (const ExpertLoad& l : loads)
    if (l.step == step) m.layers.push_back(l);
  return m;
}

double share_of_expert_0(const std::vector<ExpertLoad>& loads) {
  std::int64_t hot = 0, all = 0;
  for (const ExpertLoad& l : loads) hot += l.choices[0], all += l.all_choices();
  return all == 0 ? 0 : static_cast<double>(hot) / static_cast<double>(all);
}

// Trains with one cure from the biased router on. Work and memory are recorded of the first step and of the last.
Outcome train_hot(Experiment& e, const Cure& cure, Mesh& mesh) {
  const Options o = hot_options(e, cure);
  const Lesson lesson = lesson_of_own("alltoall");
  const LayoutPlan plan = plan_layout(o, lesson, e.world, mesh);
  const TokenLayout layout = layout_of(plan, lesson, mesh).tokens;
  const Dataset data(dataset_options(o, plan.single.model));
  const Biases biases = find_biases(plan.single, data);
  Trainer trainer(plan.settings, data);
  set_biases(trainer.gpt(), biases, trainer.stream());
  Outcome outcome;
  const RunRecord first = record_run(trainer, 1, 0);
  outcome.first = moment_of(first, gather_load(first, layout, mesh), 0, mesh);
  (void)record_run(trainer, kHotSteps - 1 - kLateSteps, 0);
  const RunRecord late = record_run(trainer, kLateSteps - 1, 0), last = record_run(trainer, 1, 0);
  std::vector<ExpertLoad> loads = gather_load(late, layout, mesh), of_last = gather_load(last, layout, mesh);
  outcome.last = moment_of(last, of_last, 0, mesh);
  loads.insert(loads.end(), of_last.begin(), of_last.end());
  outcome.late_share = share_of_expert_0(loads);
  return outcome;
}

template <typename T>
std::vector<std::int64_t> column_of(const std::vector<RankWork>& ranks, T RankWork::*field) {
  std::vector<std::int64_t> all;
  for (const RankWork& r : ranks) all.push_back(r.*field);
  return all;
}

double dropped(const Moment& m) {
  double share = 0;
  for (const ExpertLoad& l : m.layers) share += l.dropped() / static_cast<double>(m.layers.size());
  return share;
}

std::vector<std::string> row(const std::string& name, const char* when, const Moment& m) {
  return {
      name,
      when,
      fmt::format("{:.0f}%", 100 * share_of_expert_0(m.layers)),
      fmt::format("{:.2f}", busiest_over_even(column_of(m.ranks, &RankWork::flops))),
      fmt::format("{:.2f}", busiest_over_even(column_of(m.ranks, &RankWork::activation_peak))),
      human_bytes(std::max_element(m.ranks.begin(), m.ranks.end(),
                                   [](const RankWork& a, const RankWork& b) { return a.activation_peak < b.activation_peak; })
                      ->activation_peak),
      fmt::format("{:.1f}%", 100 * dropped(m))};
}

std::int64_t all_of(const std::vector<ExpertLoad>& layers, std::size_t expert) {
  std::int64_t rows = 0;
  for (const ExpertLoad& l : layers) rows += l.rows[expert];
  return rows;
}

// What each cure is for.
void claim_cures(Experiment& e, const std::map<std::string, Outcome>& outcomes, const GptConfig& model, std::int64_t tokens) {
  const Moment& before = outcomes.at("none").first;
  claim_equal(e.report, "hot expert: tokens of expert 0 in step 1, all layers",
              model.layers * std::lround(kHotShare * static_cast<double>(tokens)), all_of(before.layers, 0), "");
  const double uncured = outcomes.at("none").late_share;
  for (const char* cure : {"balance loss", "correction bias"}) {
    const double share = outcomes.at(cure).late_share;
    e.report.claims.push_back(
        make_claim(fmt::format("hot expert, {}: in the last {} of {} steps less than half of its tokens without", cure,
                               kLateSteps, kHotSteps),
                   1, share < uncured / 2 ? 1 : 0, 0, "", fmt::format("{:.0f}% and {:.0f}%", 100 * share, 100 * uncured)));
  }
  const std::int64_t replicas = e.mesh.everyone().size();
  MoeConfig limited = model.moe;
  limited.capacity_factor = 1.25;
  claim_equal(e.report, "hot expert, capacity: rows of expert 0 in step 1, all layers and replicas",
              model.layers * replicas * limited.capacity(tokens / replicas), all_of(outcomes.at("capacity").first.layers, 0),
              "");
}

// The ranks' work follows from the load: rows of a rank's experts x 3 matrices x 3 products of 2 H F.
void claim_work(Experiment& e, const std::string& cure, const Moment& m, const GptConfig& model) {
  const int ranks = static_cast<int>(m.ranks.size());
  std::int64_t others = 0;
  for (int r = 0; r < ranks; ++r) {
    const Range here = experts_of(model.moe.experts, ranks, r);
    std::int64_t rows = 0;
    for (const ExpertLoad& l : m.layers)
      for (std::int64_t x = here.begin; x < here.end; ++x) rows += l.rows[static_cast<std::size_t>(x)];
    others += m.ranks[static_cast<std::size_t>(r)].flops == rows * 18 * model.hidden * model.ffn ? 0 : 1;
  }
  claim_equal(e.report, fmt::format("hot expert, {}: ranks whose experts' work is not that of their rows", cure), 0, others,
              "");
}

}  // namespace

void hot_expert_experiment(Experiment& e) {
  const int ranks = e.mesh.everyone().size();
  const GptConfig model = model_config(hot_options(e, kCures[0]));
  if (ranks == 1 || ranks > model.moe.experts) {
    if (e.prints()) fmt::print("\nhot expert: left out; it is for 2 to {} ranks\n", model.moe.experts);
    return;
  }
  Mesh mesh({.ep = ranks}, e.mesh.everyone().ranks);
  std::vector<std::vector<std::string>> table{
      {"cure", "step", "to expert 0", "work / mean", "activations / mean", "activations", "dropped"}};
  std::map<std::string, Outcome> outcomes;
  for (const Cure& cure : kCures) {
    const Outcome o = train_hot(e, cure, mesh);
    if (!e.world.is_root()) continue;
    for (const auto& [when, m] : {std::pair{"1", &o.first}, {"40", &o.last}}) {
      table.push_back(row(cure.flags[0] == '\0' ? cure.name : fmt::format("{} ({})", cure.name, cure.flags), when, *m));
    }
    claim_work(e, fmt::format("{}, step 1", cure.name), o.first, model);
    claim_work(e, fmt::format("{}, step {}", cure.name, kHotSteps), o.last, model);
    outcomes[cure.name] = o;
  }
  if (!e.world.is_root()) return;
  claim_cures(e, outcomes, model, Options().micro_batch * ranks * model.seq);
  if (e.prints())
    fmt::print(
        "\nA router that sends {:.0f}% of the tokens to expert 0, on {} ranks: work and activations of the busiest rank\n{}",
        100 * kHotShare, ranks, format_table(table, "llrrrrr"));
}

}  // namespace ref5d::expert_parallel
