#include "05_pipeline/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "common/device/error.h"

namespace ref5d::pipeline {

namespace {

// Where an operation stands.
struct Place {
  int rank = -1;
  std::size_t cell = 0;
  [[nodiscard]] bool found() const { return rank >= 0; }
};

// The places of all operations: the parts of the check, one function each.
class Places {
 public:
  explicit Places(const Schedule& schedule) : schedule_(schedule) {
    check_sizes();
    const auto all = static_cast<std::size_t>(schedule.stages) * static_cast<std::size_t>(schedule.micro_batches);
    for (std::vector<Place>& of_pass : places_) of_pass.resize(all);
    for (int r = 0; r < schedule.rank_count(); ++r) enter_row(r);
    for (int s = 0; s < schedule.stages; ++s) {
      for (int m = 0; m < schedule.micro_batches; ++m) check_passes(s, m);
    }
  }

  [[nodiscard]] const Place& of(const Operation& o) const {
    return places_[index_of(o.pass)][index_of(o.stage, o.micro_batch)];
  }

 private:
  [[nodiscard]] std::size_t index_of(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }
  static std::size_t index_of(Pass pass) {
    switch (pass) {
      case Pass::kForward: return 0;
      case Pass::kBackward: return 1;
      case Pass::kInput: return 2;
      case Pass::kWeight: return 3;
    }
    throw InputError("a schedule has a pass that is none of F, B, I and W");
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError((schedule_.name.empty() ? "schedule" : "schedule " + schedule_.name) + ": " + what);
  }

  // Before tables of that size are made.
  void check_sizes() const {
    if (schedule_.ranks.empty()) refuse("it has no ranks; it needs a row of operations for each");
    if (schedule_.stages < 1 || schedule_.micro_batches < 1) {
      refuse(fmt::format("it has {} stages and {} micro-batches; it needs one of each at least", schedule_.stages,
                         schedule_.micro_batches));
    }
    std::int64_t forwards = 0;
    for (int r = 0; r < schedule_.rank_count(); ++r) {
      const std::vector<Cell>& row = schedule_.ranks[static_cast<std::size_t>(r)];
      if (row.empty()) refuse(fmt::format("rank {} has nothing to do; every rank needs a stage", r));
      for (const Cell& cell : row) {
        for_each_operation(cell, [&](const Operation& o) { forwards += o.pass == Pass::kForward ? 1 : 0; });
      }
    }
    const std::int64_t needed = std::int64_t{schedule_.stages} * schedule_.micro_batches;
    if (forwards != needed) {
      refuse(fmt::format("it has {} forwards; {} stages and {} micro-batches need {}", forwards, schedule_.stages,
                         schedule_.micro_batches, needed));
    }
  }

  void enter_row(int rank) {
    const std::vector<Cell>& row = schedule_.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (row[c].beside && (row[c].operation.pass != Pass::kForward || row[c].beside->pass != Pass::kBackward)) {
        refuse(fmt::format("rank {} has {}; only an F and a B can run beside each other, F first", rank, to_text(row[c])));
      }
      for_each_operation(row[c], [&](const Operation& o) { enter(o, {rank, c}); });
    }
  }

  void enter(const Operation& o, const Place& place) {
    if (o.stage < 0 || o.stage >= schedule_.stages || o.micro_batch < 0 || o.micro_batch >= schedule_.micro_batches) {
      refuse(fmt::format("rank {} has {}; stages are 0 to {} and micro-batches 0 to {}", place.rank, to_text(o),
                         schedule_.stages - 1, schedule_.micro_batches - 1));
    }
    Place& entry = places_[index_of(o.pass)][index_of(o.stage, o.micro_batch)];
    if (entry.found()) {
      refuse(fmt::format("{} occurs twice, on rank {} and on rank {}; each operation is done once", to_text(o), entry.rank,
                         place.rank));
    }
    entry = place;
  }

  void check_passes(int stage, int micro_batch) const {
    const Operation f{stage, Pass::kForward, micro_batch}, b{stage, Pass::kBackward, micro_batch},
        i{stage, Pass::kInput, micro_batch}, w{stage, Pass::kWeight, micro_batch};
    if (!of(f).found()) refuse(fmt::format("{} is missing; every stage has every micro-batch once", to_text(f)));
    if (of(b).found()) {
      for (const Operation& half : {i, w}) {
        if (of(half).found()) {
          refuse(fmt::format("it has both {} and {}; a backward is either whole (B) or in halves (I, later W)", to_text(b),
                             to_text(half)));
        }
      }
      check_order(f, b);
      return;
    }
    if (!of(i).found() && !of(w).found())
      refuse(fmt::format("{0} is missing; after {1} it needs {0}, or {2} and later {3}", to_text(b), to_text(f), to_text(i),
                         to_text(w)));
    if (!of(i).found()) refuse(fmt::format("{} is missing; {} needs it", to_text(i), to_text(w)));
    if (!of(w).found()) refuse(fmt::format("{} is missing; after {} the weights' gradients are due", to_text(w), to_text(i)));
    check_order(f, i);
    check_order(i, w);
  }

  // Passes of one stage and micro-batch: on one rank, the earlier first.
  void check_order(const Operation& earlier, const Operation& later) const {
    const Place &a = of(earlier), &b = of(later);
    if (a.rank != b.rank) {
      refuse(fmt::format("{} is on rank {} and {} on rank {}; a stage's passes of a micro-batch belong on one rank",
                         to_text(earlier), a.rank, to_text(later), b.rank));
    }
    if (a.cell >= b.cell) {
      refuse(fmt::format("rank {0} has {1} no earlier than {2}; {1} belongs before {2}", a.rank, to_text(earlier),
                         to_text(later)));
    }
  }

  const Schedule& schedule_;
  std::vector<Place> places_[4];
};

std::string joined_text(const std::vector<int>& numbers) { return fmt::format("{}", fmt::join(numbers, ", ")); }

// The stages whose weight gradients a rank makes, in order.
std::vector<int> weight_order(const std::vector<Cell>& row) {
  std::vector<int> stages;
  for (const Cell& cell : row) {
    for_each_operation(cell, [&](const Operation& o) {
      if (o.pass == Pass::kBackward || o.pass == Pass::kWeight) stages.push_back(o.stage);
    });
  }
  return stages;
}

// A stage on two ranks is DualPipe's: they mirror each other, have half of the micro-batches each, and finish gradients in the
// same order, since these are summed over the two as over replicas.
void check_copies(const Schedule& schedule, const std::vector<std::vector<int>>& stages_of,
                  const std::vector<std::vector<int>>& holders_of, const std::vector<std::vector<int>>& ranks) {
  const auto refuse = [&](const std::string& what) { throw InputError(fmt::format("schedule {}: {}", schedule.name, what)); };
  const int last = schedule.rank_count() - 1;
  for (std::size_t s = 0; s < holders_of.size(); ++s) {
    if (holders_of[s].size() == 1) continue;
    const int a = holders_of[s].front(), b = holders_of[s].back();
    if (holders_of[s].size() > 2 || a + b != last) {
      refuse(fmt::format("stage {} is on ranks {}; a stage may be on one rank, or on two that mirror each other, as 0 and {}",
                         s, joined_text(holders_of[s]), last));
    }
    const auto &of_a = stages_of[static_cast<std::size_t>(a)], &of_b = stages_of[static_cast<std::size_t>(b)];
    if (of_a != of_b) {
      refuse(
          fmt::format("ranks {} and {} share stage {}, but have stages {} and {}; ranks that share a stage share all of theirs",
                      a, b, s, joined_text(of_a), joined_text(of_b)));
    }
    const auto on_a = std::count(ranks[s].begin(), ranks[s].end(), a);
    if (2 * on_a != schedule.micro_batches) {
      refuse(fmt::format("stage {} has {} of {} micro-batches on rank {}; each of its two ranks needs half of them", s, on_a,
                         schedule.micro_batches, a));
    }
    if (weight_order(schedule.ranks[static_cast<std::size_t>(a)]) !=
        weight_order(schedule.ranks[static_cast<std::size_t>(b)])) {
      refuse(
          fmt::format("ranks {} and {} share their stages, but finish gradients in different orders of stages; B and W must "
                      "come in the same order",
                      a, b));
    }
  }
}

void add_once(std::vector<int>& sorted, int value) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  if (at == sorted.end() || *at != value) sorted.insert(at, value);
}

}  // namespace

std::string to_text(const Operation& operation) {
  return fmt::format("{}{}{}", operation.stage, static_cast<char>(operation.pass), operation.micro_batch);
}

std::string to_text(const Cell& cell) {
  if (!cell.beside) return to_text(cell.operation);
  return "(" + to_text(cell.operation) + ";" + to_text(*cell.beside) + ")OVERLAP_F_B";
}

Assignment::Assignment(const Schedule& schedule) {
  const Places places(schedule);
  ranks_.resize(static_cast<std::size_t>(schedule.stages));
  holders_of_.resize(ranks_.size());
  stages_of_.resize(schedule.ranks.size());
  for (int s = 0; s < schedule.stages; ++s) {
    const auto stage = static_cast<std::size_t>(s);
    for (int m = 0; m < schedule.micro_batches; ++m) {
      const int rank = places.of({s, Pass::kForward, m}).rank;
      ranks_[stage].push_back(rank);
      add_once(holders_of_[stage], rank);
      add_once(stages_of_[static_cast<std::size_t>(rank)], s);
    }
  }
  check_copies(schedule, stages_of_, holders_of_, ranks_);
}

int Assignment::rank_of(int stage, int micro_batch) const {
  return ranks_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(micro_batch)];
}

const std::vector<int>& Assignment::stages_of(int rank) const { return stages_of_[static_cast<std::size_t>(rank)]; }

const std::vector<int>& Assignment::holders_of(int stage) const { return holders_of_[static_cast<std::size_t>(stage)]; }

bool Assignment::copies() const {
  return std::any_of(holders_of_.begin(), holders_of_.end(), [](const auto& holders) { return holders.size() > 1; });
}

}  // namespace ref5d::pipeline
