#include "06_expert_parallel/load.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace ref5d::expert_parallel {

namespace {

// What the routers of all ranks counted in these steps, [step][L x 3 E], on rank 0. Where tp cuts every expert, its ranks have
// counted the same tokens.
std::vector<std::vector<double>> sum_over_ranks(const RunRecord& record, bool counted_along_tp, Mesh& mesh) {
  std::vector<double> mine;
  for (const StepResult& step : record.steps) mine.insert(mine.end(), step.router_load.begin(), step.router_load.end());
  if (counted_along_tp && mesh.coordinate("tp") > 0) mine.assign(mine.size(), 0);
  const auto* begin = reinterpret_cast<const std::byte*>(mine.data());
  std::vector<std::vector<double>> sums(reported_steps(std::ssize(record.steps)).size());
  for (const Bytes& bytes : gather_on_host(mesh.everyone(), Bytes(begin, begin + mine.size() * sizeof(double)))) {
    std::vector<double> theirs(bytes.size() / sizeof(double));
    std::memcpy(theirs.data(), bytes.data(), bytes.size());
    const std::size_t of_step = sums.empty() ? 0 : theirs.size() / sums.size();
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      std::vector<double>& sum = sums[i / of_step];
      sum.resize(of_step);
      sum[i % of_step] += theirs[i];
    }
  }
  return sums;
}

}  // namespace

std::vector<ExpertLoad> gather_load(const RunRecord& record, const TokenLayout& layout, Mesh& mesh) {
  const std::vector<std::vector<double>> sums = sum_over_ranks(record, layout.expert_tp, mesh);
  const std::vector<std::int64_t> steps = reported_steps(std::ssize(record.steps));
  const std::int64_t experts = layout.moe.experts;
  std::vector<ExpertLoad> loads;
  for (std::size_t s = 0; s < sums.size(); ++s) {
    for (std::int64_t layer = 0; layer < layout.layers && !sums[s].empty(); ++layer) {
      ExpertLoad l;
      l.step = steps[s];
      l.layer = layer;
      l.routed = record.steps[static_cast<std::size_t>(steps[s])].tokens * layout.moe.top_k;
      const auto at = sums[s].begin() + layer * 3 * experts;
      l.choices.assign(at, at + experts);
      l.rows.assign(at + 2 * experts, at + 3 * experts);
      for (int r = 0; r < layout.ep; ++r) {
        const Range own = experts_of(experts, layout.ep, r);
        l.rank_rows.push_back(std::accumulate(l.rows.begin() + own.begin, l.rows.begin() + own.end, std::int64_t{0}));
      }
      l.computed = layout.moe.pad_to_capacity ? padded_rows(layout) : l.all_rows();
      loads.push_back(std::move(l));
    }
  }
  return loads;
}

}  // namespace ref5d::expert_parallel
