// Which messages a schedule needs, and in which order each rank sends and receives them, so that nobody waits in vain even
// where a send ends only when it is received (NCCL, and MPI for long messages).
#pragma once

#include <cstddef>
#include <vector>

#include "05_pipeline/schedule.h"

namespace ref5d::pipeline {

// What `made_by` computes for a neighbour stage on another rank: of F the activation, for the next stage; of B and I the
// gradient of the stage's input, for the stage before. Neighbour stages on one rank hand it on without a message.
struct Message {
  Operation made_by;
  int from = 0, to = 0;  // ranks
  friend bool operator==(const Message&, const Message&) = default;
};

// What a rank sends and receives at one moment, as one batch (an NCCL group): none of it waits for another part of it.
struct Exchange {
  std::size_t before_cell;  // the rank's cell before which it is started; the number of cells: after the last
  std::vector<Message> sends, receives;
};

// Every rank's exchanges, in their order.
using Exchanges = std::vector<std::vector<Exchange>>;

// From a run of the schedule in unit times (F, I and W 1, B 2, F&B 3): what is sent at the end of a cell is received at that
// time, and what a rank sends and receives at one time is one exchange. InputError if the schedule waits for itself.
//
// Why nobody waits in vain: order all cells by when they begin and all exchanges by their time. A cell needs only exchanges of
// times up to its beginning; an exchange needs only cells that ended by its time, and so began before it, and on each of its
// ranks the exchanges of earlier times. So whatever is earliest of what is left can always go on. What the runtime waits for
// beside these looks back as well: for buffers (an exchange for the end of cells that began before it, a cell for exchanges two
// before the last), and in reductions of gradients, which all of their ranks start after the same cells.
[[nodiscard]] Exchanges make_exchanges(const Schedule& schedule);

// The naive way: each cell's receives, one by one, right before it, and its sends, one by one, right after it.
[[nodiscard]] Exchanges naive_exchanges(const Schedule& schedule);

// Runs cells and exchanges as a rank's two streams would, where no send has a buffer: a message passes when both of its ranks
// have started the exchange that it is in, and an exchange ends when all of its messages have passed. InputError that says
// which ranks wait for what, if they stand still; or if the two sides of a message disagree, be it on its place among those
// between its two ranks, by which alone they match.
void expect_no_deadlock(const Schedule& schedule, const Exchanges& exchanges);

}  // namespace ref5d::pipeline
