// A pipeline schedule as data: what each rank computes, and in which order. Everything else follows from it, by passes over the
// data: which messages travel (exchanges.h), that nobody waits in vain (exchanges.h), how long it takes (simulate.h) and what a
// rank keeps (live.h). One runtime executes whatever they accept (runtime.h).
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

namespace ref5d::pipeline {

// I and W are the halves of B: a stage's gradient of its input, for which the stage before waits, and those of its weights, for
// which nobody does.
enum class Pass : char { kForward = 'F', kBackward = 'B', kInput = 'I', kWeight = 'W' };

// One micro-batch through one stage of the model. Stages are numbered as the model's layers are, over all ranks: a rank may
// have several (its chunks), and a stage may be on two ranks, each of which computes other micro-batches (DualPipe's
// directions).
struct Operation {
  int stage = 0;
  Pass pass = Pass::kForward;
  int micro_batch = 0;
  friend auto operator<=>(const Operation&, const Operation&) = default;  // NOLINT(modernize-use-nullptr): the hidden 0
};
// "2F0": stage 2, forward, micro-batch 0.
[[nodiscard]] std::string to_text(const Operation& operation);

// What a rank does at a time: an operation, or a forward and a whole backward whose phases take turns (DualPipe's F&B).
struct Cell {
  Operation operation;
  std::optional<Operation> beside;  // the backward, where `operation` is the forward
  friend bool operator==(const Cell&, const Cell&) = default;
};
// "2F0", or as PyTorch writes it "(2F4;5B1)OVERLAP_F_B".
[[nodiscard]] std::string to_text(const Cell& cell);

struct Schedule {
  std::string name;
  int stages = 0, micro_batches = 0;
  std::vector<std::vector<Cell>> ranks;  // each rank's cells, in order
  [[nodiscard]] int rank_count() const { return static_cast<int>(ranks.size()); }
};

// Calls each(operation) for every operation of a cell: one or two.
template <typename F>
void for_each_operation(const Cell& cell, F&& each) {
  each(cell.operation);
  if (cell.beside) each(*cell.beside);
}

// Which rank computes what: found from the schedule, and with it that the schedule is whole.
class Assignment {
 public:
  // InputError, saying what is wrong, unless every stage has for every micro-batch one F, and then one B or one I and then one
  // W, all on one rank and there in this order; every rank has a stage; and a stage on two ranks is a copy as DualPipe has it.
  explicit Assignment(const Schedule& schedule);

  // Of the micro-batch's passes through this stage.
  [[nodiscard]] int rank_of(int stage, int micro_batch) const;
  // Ascending.
  [[nodiscard]] const std::vector<int>& stages_of(int rank) const;
  [[nodiscard]] const std::vector<int>& holders_of(int stage) const;
  // Whether stages are on two ranks (DualPipe).
  [[nodiscard]] bool copies() const;

 private:
  std::vector<std::vector<int>> ranks_;  // [stage][micro-batch]
  std::vector<std::vector<int>> stages_of_, holders_of_;
};

}  // namespace ref5d::pipeline
