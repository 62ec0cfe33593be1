#include "05_pipeline/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common/device/error.h"

namespace ref5d::pipeline {

namespace {

double uniform_cost(Pass pass, double forward, double input, double weight) {
  switch (pass) {
    case Pass::kForward: return forward;
    case Pass::kBackward: return input + weight;
    case Pass::kInput: return input;
    case Pass::kWeight: return weight;
  }
  return 0;
}

// A simulation on its way: what has ended, and when.
class TimedRun {
 public:
  TimedRun(const Schedule& schedule, const Costs& costs) : schedule_(schedule), costs_(costs), assignment_(schedule) {
    const auto all = static_cast<std::size_t>(schedule.stages) * static_cast<std::size_t>(schedule.micro_batches);
    forward_end_.resize(all);
    gradient_end_.resize(all);
    intervals_.resize(schedule.ranks.size());
  }

  // A rank's next cells, as far as it can go: how many there were.
  int advance(int rank) {
    const std::vector<Cell>& row = row_of(rank);
    std::vector<Interval>& done = intervals_[static_cast<std::size_t>(rank)];
    int steps = 0;
    for (; done.size() < row.size(); ++steps) {
      const Cell& cell = row[done.size()];
      const auto ready = ready_at(rank, cell);
      if (!ready) break;
      const double begin = std::max(*ready, done.empty() ? 0.0 : done.back().end);
      done.push_back({begin, begin + costs_.of_cell(rank, cell)});
      for_each_operation(cell, [&](const Operation& o) { set_end(o, done.back().end); });
    }
    return steps;
  }

  // Which rank waits for what, of all that are not through.
  [[nodiscard]] std::string standstill() const {
    std::string text;
    for (int r = 0; r < schedule_.rank_count(); ++r) {
      const std::size_t done = intervals_[static_cast<std::size_t>(r)].size();
      if (done < row_of(r).size())
        text += fmt::format("{}rank {} at {}", text.empty() ? "" : ", ", r, to_text(row_of(r)[done]));
    }
    return text;
  }

  [[nodiscard]] std::vector<std::vector<Interval>> take() { return std::move(intervals_); }

 private:
  using End = std::optional<double>;

  [[nodiscard]] const std::vector<Cell>& row_of(int rank) const { return schedule_.ranks[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t at(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }

  void set_end(const Operation& o, double end) {
    if (o.pass == Pass::kForward) forward_end_[at(o.stage, o.micro_batch)] = end;
    if (o.pass == Pass::kBackward || o.pass == Pass::kInput) gradient_end_[at(o.stage, o.micro_batch)] = end;
  }

  // When all that the cell needs is there, if that is known.
  [[nodiscard]] End ready_at(int rank, const Cell& cell) const {
    End ready = 0.0;
    for_each_operation(cell, [&](const Operation& o) {
      const End needed = ready_at(rank, o);
      ready = ready && needed ? End(std::max(*ready, *needed)) : std::nullopt;
    });
    return ready;
  }

  // W and the own F need no look: Assignment has checked that they come later and earlier on the same rank.
  [[nodiscard]] End ready_at(int rank, const Operation& o) const {
    if (o.pass == Pass::kForward) return o.stage == 0 ? 0.0 : arrival(rank, forward_end_, o.stage - 1, o.micro_batch);
    if (o.pass == Pass::kWeight || o.stage == schedule_.stages - 1) return 0.0;
    return arrival(rank, gradient_end_, o.stage + 1, o.micro_batch);
  }

  [[nodiscard]] End arrival(int rank, const std::vector<End>& ends, int stage, int micro_batch) const {
    const End& end = ends[at(stage, micro_batch)];
    if (!end || assignment_.rank_of(stage, micro_batch) == rank) return end;
    return *end + costs_.message;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const Assignment assignment_;
  std::vector<End> forward_end_, gradient_end_;  // [stage, micro-batch]
  std::vector<std::vector<Interval>> intervals_;
};

}  // namespace

Costs uniform_costs(double forward, double input, double weight, double message) {
  const auto of_cell = [=](int, const Cell& cell) {
    double sum = 0;
    for_each_operation(cell, [&](const Operation& o) { sum += uniform_cost(o.pass, forward, input, weight); });
    return sum;
  };
  return {of_cell, message};
}

double Simulation::busy(int rank) const {
  double sum = 0;
  for (const Interval& i : ranks[static_cast<std::size_t>(rank)]) sum += i.end - i.begin;
  return sum;
}

double Simulation::idle(int rank) const { return makespan - busy(rank); }

double Simulation::work() const {
  double sum = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) sum += busy(static_cast<int>(r));
  return sum;
}

double Simulation::own_span(int rank) const {
  const std::vector<Interval>& row = ranks[static_cast<std::size_t>(rank)];
  return row.empty() ? 0 : row.back().end - row.front().begin;
}

double Simulation::cost() const {
  double longest = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) longest = std::max(longest, own_span(static_cast<int>(r)));
  return longest;
}

double Simulation::bubble_rate() const { return 1 - work() / (cost() * static_cast<double>(ranks.size())); }

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  TimedRun run(schedule, costs);
  // Nothing but the ends of earlier cells decides when a cell begins, so it does not matter in which order the ranks are asked.
  for (int steps = 1; steps > 0;) {
    steps = 0;
    for (int r = 0; r < schedule.rank_count(); ++r) steps += run.advance(r);
  }
  if (const std::string waiting = run.standstill(); !waiting.empty()) {
    throw InputError(
        fmt::format("schedule {} waits for itself: {}; what a cell needs must not come after it", schedule.name, waiting));
  }
  Simulation simulation;
  simulation.ranks = run.take();
  // The first cell of stage 0 begins at 0.
  for (const auto& row : simulation.ranks) simulation.makespan = std::max(simulation.makespan, row.back().end);
  return simulation;
}

}  // namespace ref5d::pipeline
