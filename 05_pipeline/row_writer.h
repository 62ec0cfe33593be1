// Writes a rank's row pass by pass, as one would tell it: "a forward, a backward, ...".
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "05_pipeline/schedule.h"

namespace ref5d::pipeline {

using CellRow = std::vector<Cell>;

// A stage that the rank has, and the first of the micro-batches that go through it there.
struct Lane {
  int stage = 0, first_micro_batch = 0;
};

// Each pass takes the lane's next micro-batch that has not had it: in every schedule here micro-batches go through a stage in
// ascending order, so that a row is known by its passes and lanes.
class RowWriter {
 public:
  explicit RowWriter(const std::vector<Lane>& lanes) {
    for (const Lane& l : lanes) next_.push_back({l.stage, l.first_micro_batch, l.first_micro_batch});
  }

  void forward(int lane) { row_.push_back({next_forward(lane), std::nullopt}); }
  void backward(int lane) { row_.push_back({next_backward(lane, Pass::kBackward), std::nullopt}); }
  // F&B: the forward of one lane beside the backward of another.
  void forward_beside_backward(int forward_lane, int backward_lane) {
    const Operation f = next_forward(forward_lane);
    row_.push_back({f, next_backward(backward_lane, Pass::kBackward)});
  }
  // I; its W is due from then on.
  void input(int lane) {
    row_.push_back({next_backward(lane, Pass::kInput), std::nullopt});
    due_.push_back(row_.back().operation);
  }
  // The W that has been due longest.
  void weight() {
    row_.push_back({{due_.front().stage, Pass::kWeight, due_.front().micro_batch}, std::nullopt});
    due_.pop_front();
  }
  [[nodiscard]] int weights_due() const { return static_cast<int>(due_.size()); }

  [[nodiscard]] CellRow take() { return std::move(row_); }

 private:
  struct Next {
    int stage, forward, backward;
  };
  Operation next_forward(int lane) {
    Next& n = next_[static_cast<std::size_t>(lane)];
    return {n.stage, Pass::kForward, n.forward++};
  }
  Operation next_backward(int lane, Pass pass) {
    Next& n = next_[static_cast<std::size_t>(lane)];
    return {n.stage, pass, n.backward++};
  }

  std::vector<Next> next_;
  std::deque<Operation> due_;
  CellRow row_;
};

}  // namespace ref5d::pipeline
