#include "05_pipeline/live.h"

#include <algorithm>
#include <numeric>

namespace ref5d::pipeline {

namespace {

void count_operation(const Operation& o, Live& live) {
  const auto stage = static_cast<std::size_t>(o.stage);
  switch (o.pass) {
    case Pass::kForward: ++live.activations[stage]; return;
    case Pass::kBackward: --live.activations[stage]; return;
    case Pass::kInput:
      --live.activations[stage];
      ++live.weight_work[stage];
      return;
    case Pass::kWeight: --live.weight_work[stage]; return;
  }
}

}  // namespace

int Live::all_activations() const { return std::accumulate(activations.begin(), activations.end(), 0); }

int Live::all_weight_work() const { return std::accumulate(weight_work.begin(), weight_work.end(), 0); }

std::vector<Live> live_after(const Schedule& schedule, int rank) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  Live live{std::vector<int>(stages), std::vector<int>(stages)};
  std::vector<Live> after;
  for (const Cell& cell : schedule.ranks[static_cast<std::size_t>(rank)]) {
    for_each_operation(cell, [&](const Operation& o) { count_operation(o, live); });
    after.push_back(live);
  }
  return after;
}

int peak_activations(const Schedule& schedule, int rank) {
  int peak = 0;
  for (const Live& live : live_after(schedule, rank)) peak = std::max(peak, live.all_activations());
  return peak;
}

}  // namespace ref5d::pipeline
