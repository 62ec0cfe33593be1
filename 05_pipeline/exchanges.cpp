#include "05_pipeline/exchanges.h"

#include <algorithm>
#include <map>

#include "05_pipeline/messages.h"
#include "05_pipeline/simulate.h"

namespace ref5d::pipeline {

namespace {

// A rank's exchanges, by their time.
using TimedExchanges = std::map<double, Exchange>;

// Of a cell that ends at a time: on the rank that sends and on the one that receives.
void add_messages(const std::vector<Message>& made, double time, std::vector<TimedExchanges>& ranks) {
  for (const Message& m : made) {
    ranks[static_cast<std::size_t>(m.from)][time].sends.push_back(m);
    ranks[static_cast<std::size_t>(m.to)][time].receives.push_back(m);
  }
}

// Both sides of a batch list its messages in the same order, by which a library matches those between the same two ranks.
void sort_messages(std::vector<Message>& messages) {
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) { return a.made_by < b.made_by; });
}

std::size_t cells_begun_before(double time, const std::vector<Interval>& row) {
  const auto first_later =
      std::lower_bound(row.begin(), row.end(), time, [](const Interval& i, double t) { return i.begin < t; });
  return static_cast<std::size_t>(first_later - row.begin());
}

std::vector<Exchange> in_order(TimedExchanges&& timed, const std::vector<Interval>& row) {
  std::vector<Exchange> exchanges;
  for (auto& [time, exchange] : timed) {
    exchange.before_cell = cells_begun_before(time, row);
    sort_messages(exchange.sends);
    sort_messages(exchange.receives);
    exchanges.push_back(std::move(exchange));
  }
  return exchanges;
}

}  // namespace

Exchanges make_exchanges(const Schedule& schedule) {
  const Messages messages(schedule);
  const Simulation run = simulate(schedule, uniform_costs(1, 1, 1));
  std::vector<TimedExchanges> timed(schedule.ranks.size());
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (std::size_t c = 0; c < schedule.ranks[r].size(); ++c) {
      add_messages(messages.made_by(schedule.ranks[r][c]), run.ranks[r][c].end, timed);
    }
  }
  Exchanges exchanges;
  for (std::size_t r = 0; r < timed.size(); ++r) exchanges.push_back(in_order(std::move(timed[r]), run.ranks[r]));
  return exchanges;
}

Exchanges naive_exchanges(const Schedule& schedule) {
  const Messages messages(schedule);
  Exchanges exchanges(schedule.ranks.size());
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (std::size_t c = 0; c < schedule.ranks[r].size(); ++c) {
      const Cell& cell = schedule.ranks[r][c];
      for (const Message& m : messages.needed_by(cell)) exchanges[r].push_back({c, {}, {m}});
      for (const Message& m : messages.made_by(cell)) exchanges[r].push_back({c + 1, {m}, {}});
    }
  }
  return exchanges;
}

}  // namespace ref5d::pipeline
