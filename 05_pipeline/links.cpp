#include "05_pipeline/links.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "common/comm/world.h"
#include "common/kernels/random.h"

namespace ref5d::pipeline {

namespace {

// The name of what an operation makes: a stage's gradient of its input is the same thing whether B or I makes it.
Operation name_of(Operation made_by) {
  if (made_by.pass != Pass::kForward) made_by.pass = Pass::kBackward;
  return made_by;
}

// Exchanges that may still be on their way when the next one starts.
constexpr std::size_t kSending = 2;

}  // namespace

void Links::put(const Operation& operation, Tensor tensor, std::size_t cell) {
  tensor.set_category(MemoryCategory::kCommunication);
  made_[name_of(operation)] = {std::move(tensor), cell};
}

void Links::end_of_cell() { cells_.emplace_back().record(compute_); }

// For the cells whose results are sent, and for all cells but the newest, which may be running. In the times of which exchanges
// were planned they are over by now, and with them the copies of what had been received.
void Links::wait_for_cells(const Exchange& exchange) {
  std::size_t cells = cells_.size() - std::min<std::size_t>(cells_.size(), 1);
  for (const Message& m : exchange.sends) cells = std::max(cells, made_.at(name_of(m.made_by)).cell + 1);
  if (cells > 0) wait(comm_, cells_[cells - 1]);
  drop_copied(cells);
}

void Links::exchange(const Exchange& exchange, const Shape& shape, Dtype dtype) {
  wait_for_cells(exchange);
  std::vector<ref5d::Message> sends, receives;
  Sending sending{{}, std::make_shared<Event>()};
  for (const Message& m : exchange.sends) {
    const Tensor tensor = std::move(made_.extract(name_of(m.made_by)).mapped().tensor);
    if (options_.reuse_before_sent) {  // the next kernel has the buffer, and is faster than the message
      fill_zero(compute_, tensor.raw(), tensor.bytes());
      order(compute_, comm_);
    }
    sends.push_back({tensor, m.to});
    sending.tensors.push_back(tensor);
  }
  for (const Message& m : exchange.receives) {
    receives.push_back({Tensor::empty(shape, dtype, MemoryCategory::kCommunication, comm_), m.from});
    received_[name_of(m.made_by)] = {receives.back().tensor, sending.left};
  }
  const TrafficLedger::Phase phase(world().traffic(), "boundaries");
  ranks_.p2p_batch(comm_, sends, receives);
  sending.left->record(comm_);
  if (sends.empty()) return;
  sending_.push_back(std::move(sending));
  drop_sent(kSending);
}

Tensor Links::take(const Operation& made_by, std::size_t cell) {
  if (const auto here = made_.extract(name_of(made_by))) {  // by the rank's own other stage
    here.mapped().tensor.set_category(MemoryCategory::kActivations);
    return here.mapped().tensor;
  }
  const auto received = received_.extract(name_of(made_by));
  if (!received) throw std::logic_error("a cell needs " + to_text(made_by) + ", for which no message was received");
  const Tensor& from = received.mapped().tensor;
  wait(compute_, *received.mapped().arrived);
  Tensor copy = Tensor::empty(from.shape(), from.dtype(), MemoryCategory::kActivations, compute_);
  copy_on_device(compute_, copy.raw(), from.raw(), from.bytes());
  copied_.push_back({from, cell});
  return copy;
}

void Links::give_away(const Tensor& tensor, Stream& stream) const {
  if (options_.poison) fill_constant(stream, tensor, std::numeric_limits<double>::quiet_NaN());
}

// Of received buffers, which belong to the communication stream: those that cells before number `cells` have copied, for which
// it waits.
void Links::drop_copied(std::size_t cells) {
  while (!copied_.empty() && copied_.front().cell < cells) {
    give_away(copied_.front().tensor, comm_);
    copied_.pop_front();
  }
}

// What was sent belongs to the compute stream.
void Links::drop_sent(std::size_t but_for) {
  while (sending_.size() > but_for) {
    wait(compute_, *sending_.front().left);
    for (const Tensor& tensor : sending_.front().tensors) give_away(tensor, compute_);
    sending_.pop_front();
  }
}

void Links::end_of_run() {
  drop_sent(0);
  order(compute_, comm_);
  drop_copied(cells_.size());
  if (!made_.empty() || !received_.empty()) throw std::logic_error("a run of the schedule left messages that nobody took");
  cells_.clear();
}

}  // namespace ref5d::pipeline
