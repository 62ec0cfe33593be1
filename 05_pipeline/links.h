// A rank's messages to and from neighbour stages: activations forward, their gradients backward, on a stream of their own.
//
// A buffer is in two streams' hands, so it may go only when the second has passed it. What is sent was made by the compute
// stream: it is kept until the message has left (pitfall P39). What is received belongs to the communication stream: it is kept
// until the compute stream has copied it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "05_pipeline/exchanges.h"
#include "common/comm/communicator.h"

namespace ref5d::pipeline {

// Mistakes to show (--sabotage), and a help to find them.
struct LinkOptions {
  bool reuse_before_sent = false;  // a buffer is given away before its message has left (P39)
  bool poison = false;             // buffers are filled with NaN when they are given away
};

class Links {
 public:
  Links(Communicator& ranks, Stream& compute, const LinkOptions& options)
      : ranks_(ranks), compute_(compute), options_(options) {}

  // What `operation` has made, for another stage.
  void put(const Operation& operation, Tensor tensor, std::size_t cell);
  // The rank's next cell has been enqueued.
  void end_of_cell();
  // Starts an exchange; receives are of this shape and dtype.
  void exchange(const Exchange& exchange, const Shape& shape, Dtype dtype);
  // What `made_by` made for cell number `cell`, as a tensor of the compute stream.
  [[nodiscard]] Tensor take(const Operation& made_by, std::size_t cell);
  // A run of the schedule has been enqueued: lets go of all buffers once nothing is on its way.
  void end_of_run();
  [[nodiscard]] Stream& stream() { return comm_; }

 private:
  struct Made {
    Tensor tensor;
    std::size_t cell;
  };
  struct Received {
    Tensor tensor;
    std::shared_ptr<Event> arrived;
  };
  struct Sending {
    std::vector<Tensor> tensors;
    std::shared_ptr<Event> left;
  };
  void wait_for_cells(const Exchange& exchange);
  void drop_copied(std::size_t cells);
  void drop_sent(std::size_t but_for);
  void give_away(const Tensor& tensor, Stream& stream) const;

  Communicator& ranks_;
  Stream& compute_;
  LinkOptions options_;
  std::map<Operation, Made> made_;
  std::map<Operation, Received> received_;
  std::deque<Sending> sending_;
  std::deque<Made> copied_;   // received buffers, and the cell that copied them
  std::vector<Event> cells_;  // the end of each
  Stream comm_{"pp"};
};

}  // namespace ref5d::pipeline
