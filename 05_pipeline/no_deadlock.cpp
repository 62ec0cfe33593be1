// The model checker: whether a schedule and its exchanges come to their end. Two parts: what each side says of the messages is
// compared first; then everything runs that can, until all is done or nothing can. What can run at some moment can still run
// later, whatever else runs first, so one run shows what every run does.
//
// Cells and exchanges are on two streams here. With both on one, as with blocking calls, the same schedules stand still: what a
// rank's next exchange sends is made by cells before it, and what these need came with the exchanges before it.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "05_pipeline/exchanges.h"
#include "05_pipeline/messages.h"
#include "common/device/error.h"

namespace ref5d::pipeline {

namespace {

std::string message_text(const Message& m) {
  return fmt::format("the message of {} from rank {} to rank {}", to_text(m.made_by), m.from, m.to);
}

// Where the two sides of a message are, each in its rank's lists.
struct MessageSides {
  std::size_t made_in_cell = 0, needed_in_cell = 0;
  std::size_t sent_in = 0, received_in = 0;  // exchanges
  int sends = 0, receives = 0;               // how often
};
using AllSides = std::map<std::pair<Operation, int>, MessageSides>;  // by operation and receiving rank

std::pair<Operation, int> key_of(const Message& m) { return {m.made_by, m.to}; }

// What the schedule needs: from the cells.
AllSides sides_of_cells(const Schedule& schedule, const Messages& messages) {
  AllSides sides;
  for (const std::vector<Cell>& row : schedule.ranks) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      for (const Message& m : messages.made_by(row[c])) sides[key_of(m)].made_in_cell = c;
      for (const Message& m : messages.needed_by(row[c])) sides[key_of(m)].needed_in_cell = c;
    }
  }
  return sides;
}

// By rank and cell: whether something that it needs is made on the same rank, but not before.
std::vector<std::vector<bool>> cells_that_need_later_ones(const Schedule& schedule, const Messages& messages) {
  std::map<Operation, std::pair<std::size_t, std::size_t>> places;  // rank and cell
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (std::size_t c = 0; c < schedule.ranks[r].size(); ++c) {
      for_each_operation(schedule.ranks[r][c], [&](const Operation& o) { places[o] = {r, c}; });
    }
  }
  std::vector<std::vector<bool>> never;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    never.emplace_back(schedule.ranks[r].size());
    for (std::size_t c = 0; c < schedule.ranks[r].size(); ++c) {
      for_each_operation(schedule.ranks[r][c], [&](const Operation& o) {
        const auto source = messages.source_of(o);
        if (source && places[*source].first == r && places[*source].second >= c) never[r][c] = true;
      });
    }
  }
  return never;
}

MessageSides& side_of(const Message& m, int on_rank, bool sends, AllSides& sides) {
  const auto at = sides.find(key_of(m));
  if (at == sides.end() || (sends ? m.from : m.to) != on_rank) {
    throw InputError(
        fmt::format("rank {} {} {}, which the schedule does not have", on_rank, sends ? "sends" : "receives", message_text(m)));
  }
  return at->second;
}

// What the exchanges have: a message is sent after it is made and received before it is needed.
void enter_exchanges(const Exchanges& exchanges, AllSides& sides) {
  for (std::size_t r = 0; r < exchanges.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (std::size_t e = 0; e < exchanges[r].size(); ++e) {
      const Exchange& exchange = exchanges[r][e];
      if (e > 0 && exchange.before_cell < exchanges[r][e - 1].before_cell) {
        throw InputError(
            fmt::format("rank {}'s exchange {} is started before its exchange {}; exchanges go in order", rank, e, e - 1));
      }
      for (const Message& m : exchange.sends) {
        MessageSides& side = side_of(m, rank, true, sides);
        side.sent_in = e;
        ++side.sends;
        if (exchange.before_cell <= side.made_in_cell) {
          throw InputError(fmt::format("rank {} sends {} before it is made", rank, message_text(m)));
        }
      }
      for (const Message& m : exchange.receives) {
        MessageSides& side = side_of(m, rank, false, sides);
        side.received_in = e;
        ++side.receives;
        if (exchange.before_cell > side.needed_in_cell) {
          throw InputError(fmt::format("rank {} receives {} after it is needed", rank, message_text(m)));
        }
      }
    }
  }
}

void check_counts(const Schedule& schedule, const Messages& messages, const AllSides& sides) {
  for (const std::vector<Cell>& row : schedule.ranks) {
    for (const Cell& cell : row) {
      for (const Message& m : messages.made_by(cell)) {
        const MessageSides& side = sides.at(key_of(m));
        if (side.sends == 1 && side.receives == 1) continue;
        throw InputError(fmt::format("{} is sent {} times and received {} times; it must be once each", message_text(m),
                                     side.sends, side.receives));
      }
    }
  }
}

// Between the same two ranks messages carry no name: the first that is received is the first that was sent (pitfall P37).
void check_matching(const Exchanges& exchanges) {
  std::map<std::pair<int, int>, std::vector<Message>> sent, received;
  for (const std::vector<Exchange>& row : exchanges) {
    for (const Exchange& exchange : row) {
      for (const Message& m : exchange.sends) sent[{m.from, m.to}].push_back(m);
      for (const Message& m : exchange.receives) received[{m.from, m.to}].push_back(m);
    }
  }
  for (const auto& [pair, list] : sent) {
    const std::vector<Message>& other = received[pair];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i] == other[i]) continue;
      throw InputError(fmt::format("message {} from rank {} to rank {} is {}'s where it is sent, and {}'s where it is received",
                                   i, pair.first, pair.second, to_text(list[i].made_by), to_text(other[i].made_by)));
    }
  }
}

// Cells and exchanges of all ranks, on their way.
class ModelRun {
 public:
  ModelRun(const Schedule& schedule, const Exchanges& exchanges)
      : schedule_(schedule),
        exchanges_(exchanges),
        messages_(schedule),
        needs_later_(cells_that_need_later_ones(schedule, messages_)),
        sides_(sides_of_cells(schedule, messages_)) {
    enter_exchanges(exchanges, sides_);
    check_counts(schedule, messages_, sides_);
    check_matching(exchanges);
    at_.resize(schedule.ranks.size());
  }

  // Whether anything could be done.
  bool advance(int rank) {
    bool any = false;
    while (end_exchange(rank) || start_exchange(rank) || run_cell(rank)) any = true;
    return any;
  }

  // Empty if everything is done.
  [[nodiscard]] std::string standstill() const {
    std::string text;
    for (int r = 0; r < schedule_.rank_count(); ++r) {
      if (done(r)) continue;
      text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", r, waits_for(r));
    }
    return text;
  }

 private:
  struct Progress {
    std::size_t cells = 0, started = 0, ended = 0;  // cells run, exchanges started and ended
  };

  [[nodiscard]] const std::vector<Cell>& cells(int rank) const { return schedule_.ranks[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<Exchange>& exchanges(int rank) const { return exchanges_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Progress& at(int rank) const { return at_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool done(int rank) const {
    return at(rank).cells == cells(rank).size() && at(rank).ended == exchanges(rank).size();
  }

  // One at a time, when the cells that made its sends have run.
  bool start_exchange(int rank) {
    Progress& p = at_[static_cast<std::size_t>(rank)];
    if (p.started > p.ended || p.started == exchanges(rank).size()) return false;
    const Exchange& next = exchanges(rank)[p.started];
    for (const Message& m : next.sends) {
      if (p.cells <= sides_.at(key_of(m)).made_in_cell) return false;
    }
    ++p.started;
    return true;
  }

  bool end_exchange(int rank) {
    Progress& p = at_[static_cast<std::size_t>(rank)];
    if (p.started == p.ended) return false;
    const Exchange& running = exchanges(rank)[p.ended];
    for (const Message& m : running.sends) {
      if (at(m.to).started <= sides_.at(key_of(m)).received_in) return false;
    }
    for (const Message& m : running.receives) {
      if (at(m.from).started <= sides_.at(key_of(m)).sent_in) return false;
    }
    ++p.ended;
    return true;
  }

  // When what it needs has come.
  bool run_cell(int rank) {
    Progress& p = at_[static_cast<std::size_t>(rank)];
    if (p.cells == cells(rank).size()) return false;
    if (needs_later_[static_cast<std::size_t>(rank)][p.cells]) return false;
    for (const Message& m : messages_.needed_by(cells(rank)[p.cells])) {
      if (p.ended <= sides_.at(key_of(m)).received_in) return false;
    }
    ++p.cells;
    return true;
  }

  [[nodiscard]] std::string waits_for(int rank) const {
    const Progress& p = at(rank);
    if (p.started > p.ended) {
      const Exchange& running = exchanges(rank)[p.ended];
      for (const Message& m : running.sends) {
        if (at(m.to).started <= sides_.at(key_of(m)).received_in) {
          return fmt::format("sends {} to rank {}, which has not got to receive it", to_text(m.made_by), m.to);
        }
      }
      for (const Message& m : running.receives) {
        if (at(m.from).started <= sides_.at(key_of(m)).sent_in) {
          return fmt::format("receives {} from rank {}, which has not got to send it", to_text(m.made_by), m.from);
        }
      }
    }
    if (p.cells < cells(rank).size()) return "waits to begin " + to_text(cells(rank)[p.cells]);
    return "waits to send";
  }

  const Schedule& schedule_;
  const Exchanges& exchanges_;
  const Messages messages_;
  const std::vector<std::vector<bool>> needs_later_;
  AllSides sides_;
  std::vector<Progress> at_;
};

}  // namespace

void expect_no_deadlock(const Schedule& schedule, const Exchanges& exchanges) {
  if (exchanges.size() != schedule.ranks.size()) {
    throw InputError(fmt::format("schedule {} has {} ranks, but there are exchanges of {}", schedule.name,
                                 schedule.ranks.size(), exchanges.size()));
  }
  ModelRun run(schedule, exchanges);
  for (bool any = true; any;) {
    any = false;
    for (int r = 0; r < schedule.rank_count(); ++r) any = run.advance(r) || any;
  }
  if (const std::string waiting = run.standstill(); !waiting.empty()) {
    throw InputError(fmt::format("schedule {} stands still: {}", schedule.name, waiting));
  }
}

}  // namespace ref5d::pipeline
