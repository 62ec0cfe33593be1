// How long a schedule takes, from the times of its cells.
#pragma once

#include <functional>
#include <vector>

#include "05_pipeline/schedule.h"

namespace ref5d::pipeline {

struct Costs {
  std::function<double(int rank, const Cell& cell)> of_cell;
  double message = 0;  // from the end of a cell to when another rank has what it made: pure latency
};
// F, I and W take these times on every rank, B the sum of the halves, F&B the sum of its parts.
[[nodiscard]] Costs uniform_costs(double forward, double input, double weight, double message = 0);

struct Interval {
  double begin = 0, end = 0;
};

struct Simulation {
  std::vector<std::vector<Interval>> ranks;  // of each rank's cells
  double makespan = 0;                       // from the first beginning to the last end

  [[nodiscard]] double busy(int rank) const;      // the sum of its cells' times
  [[nodiscard]] double idle(int rank) const;      // the rest of the makespan
  [[nodiscard]] double work() const;              // of all ranks: the sum of busy
  [[nodiscard]] double own_span(int rank) const;  // from its first beginning to its last end
  // The Zero Bubble paper's cost, the longest own span; and the share of it in which a rank is idle, in the mean of all: where
  // all have as much to do, (cost - busy) / cost.
  [[nodiscard]] double cost() const;
  [[nodiscard]] double bubble_rate() const;
};

// Every rank begins a cell as soon as the one before has ended and what it needs has come: F what the stage before made of the
// micro-batch; B and I what the stage after made, and the own F; W the own I. InputError if the schedule waits for itself.
[[nodiscard]] Simulation simulate(const Schedule& schedule, const Costs& costs);

}  // namespace ref5d::pipeline
