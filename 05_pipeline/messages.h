// Which message an operation makes for another rank, and which one it needs.
#pragma once

#include <optional>
#include <vector>

#include "05_pipeline/exchanges.h"

namespace ref5d::pipeline {

class Messages {
 public:
  // `schedule` must outlive it. InputError as of Assignment.
  explicit Messages(const Schedule& schedule);

  [[nodiscard]] std::optional<Message> made_by(const Operation& operation) const;
  [[nodiscard]] std::optional<Message> needed_by(const Operation& operation) const;
  // What of a neighbour stage the operation needs, be it of another rank or the same.
  [[nodiscard]] std::optional<Operation> source_of(const Operation& operation) const;
  // Of both operations of a cell.
  [[nodiscard]] std::vector<Message> made_by(const Cell& cell) const;
  [[nodiscard]] std::vector<Message> needed_by(const Cell& cell) const;

 private:
  [[nodiscard]] std::size_t at(int stage, int micro_batch) const;
  [[nodiscard]] std::optional<Message> between(const Operation& made_by, int neighbour) const;

  const Schedule& schedule_;
  const Assignment assignment_;
  std::vector<Pass> gradient_passes_;  // [stage, micro-batch]: B or I
};

}  // namespace ref5d::pipeline
