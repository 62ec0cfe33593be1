// What the strategies cost, as formulas, beside what the ledgers counted.
#pragma once

#include "02_ddp_zero/flat_group.h"
#include "02_ddp_zero/strategy.h"
#include "common/app/options.h"
#include "common/train/run_record.h"
#include "common/verify/report.h"

namespace ref5d::data_parallel {

// How many ranks have the parameters of a kind, and how many of these share one copy.
struct RanksOf {
  int ranks = 1, shard = 1;
  [[nodiscard]] int replicas() const { return ranks / shard; }
};

// The sizes that costs follow from.
struct Layout {
  FlatGroups groups;                              // sizes only; buckets or units, of naive one of all parameters
  std::vector<std::vector<std::size_t>> of_unit;  // the groups that each unit of the model uses
  std::vector<std::size_t> across_stages;         // groups whose gradients stay whole over a step (Parameter::across_stages)
  // The units that backward goes through at a time: the whole model; of a pipeline each stage that is here.
  std::vector<Units> passes = {Units()};
  std::int64_t parameters = 0;    // Psi
  std::int64_t buffer_bytes = 0;  // of what is no parameter and whole on every rank (Gpt::buffers)
  RanksOf ordinary, experts;      // the same but with expert parallelism
  [[nodiscard]] const RanksOf& ranks_of(bool expert) const { return expert ? experts : ordinary; }
  std::int64_t micro_batches = 1;
  std::int64_t weight_bytes = 4, reduce_bytes = 4, sum_bytes = 4, wide_bytes = 4;  // of an element
  bool separate_sum = false, fused_sum = false;  // bf16 gradients with fp32 sums beside them, or fp32 sums alone
  bool masters = false;
};
[[nodiscard]] Layout layout_of(const Options& options, const GptConfig& model, const StrategyOptions& strategy, int ranks,
                               int shard);

// Of a model that is cut already: that of the ranks which hold these parts.
[[nodiscard]] Layout layout_of(const Options& options, const Gpt& gpt, const StrategyOptions& strategy, int ranks, int shard);
[[nodiscard]] Layout layout_of(const Options& options, const Gpt& gpt, const StrategyOptions& strategy, const RanksOf& ordinary,
                               const RanksOf& experts);

// Bytes that all ranks together send in one step, by phase.
struct StepTraffic {
  std::int64_t gradients = 0, between_replicas = 0, weights = 0, forward = 0, backward = 0;
  [[nodiscard]] std::int64_t total() const { return gradients + between_replicas + weights + forward + backward; }
  StepTraffic& operator+=(const StepTraffic& o) {
    gradients += o.gradients, between_replicas += o.between_replicas, weights += o.weights;
    forward += o.forward, backward += o.backward;
    return *this;
  }
  StepTraffic& operator/=(std::int64_t n) {
    gradients /= n, between_replicas /= n, weights /= n, forward /= n, backward /= n;
    return *this;
  }
};
[[nodiscard]] StepTraffic expected_traffic(const Layout& layout, const StrategyOptions& strategy);
// Of different parts of a model. Those that differ in their experts alone, as ranks along ep do, have ordinary groups in
// common: all of them are given, and what these groups send is counted once.
[[nodiscard]] StepTraffic expected_traffic(const std::vector<Layout>& layouts, const StrategyOptions& strategy);
// From the report's rows, which hold `steps` steps.
[[nodiscard]] StepTraffic measured_traffic(const Report& report, std::int64_t steps);

// Bytes of one rank by category: at rest and at their peak.
struct RankMemory {
  std::int64_t parameters = 0, parameters_peak = 0, master = 0, optimizer = 0;
  std::int64_t gradients = 0, gradients_peak = 0, accumulation = 0, accumulation_peak = 0;
};
[[nodiscard]] RankMemory expected_memory(const Layout& layout, const StrategyOptions& strategy, ByKind shard_rank);
[[nodiscard]] RankMemory measured_memory(const Report& report, std::int64_t rank);

// Adds the claims to the report, which has every rank's memory and the traffic. layouts: those of the different parts that
// faster axes of the mesh have cut the model into, in their ranks' order; a single one if there are none. Without cut experts.
void claim_costs(Report& report, const std::vector<Layout>& layouts, const StrategyOptions& strategy);
// Where other axes cut it, too: which of the layouts each rank of the mesh has, and its place among those that have the same
// ordinary parameters and among those that have the same experts. axis: what the names of claims begin with.
struct RankPart {
  std::size_t layout = 0;
  ByKind place = 0;
};
void claim_costs(Report& report, const std::vector<Layout>& layouts, const std::vector<RankPart>& ranks,
                 const StrategyOptions& strategy, const std::string& axis = "dp, ");

}  // namespace ref5d::data_parallel
