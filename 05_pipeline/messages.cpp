#include "05_pipeline/messages.h"

namespace ref5d::pipeline {

namespace {

// Whether the pass ends with the gradient of the stage's input.
bool makes_gradient(Pass pass) { return pass == Pass::kBackward || pass == Pass::kInput; }

}  // namespace

Messages::Messages(const Schedule& schedule) : schedule_(schedule), assignment_(schedule) {
  gradient_passes_.resize(static_cast<std::size_t>(schedule.stages) * static_cast<std::size_t>(schedule.micro_batches));
  for (const std::vector<Cell>& row : schedule.ranks) {
    for (const Cell& cell : row) {
      for_each_operation(cell, [&](const Operation& o) {
        if (makes_gradient(o.pass)) gradient_passes_[at(o.stage, o.micro_batch)] = o.pass;
      });
    }
  }
}

std::optional<Message> Messages::made_by(const Operation& o) const {
  if (o.pass == Pass::kForward && o.stage + 1 < schedule_.stages) return between(o, o.stage + 1);
  if (makes_gradient(o.pass) && o.stage > 0) return between(o, o.stage - 1);
  return std::nullopt;
}

std::optional<Operation> Messages::source_of(const Operation& o) const {
  if (o.pass == Pass::kForward && o.stage > 0) return Operation{o.stage - 1, Pass::kForward, o.micro_batch};
  if (!makes_gradient(o.pass) || o.stage + 1 == schedule_.stages) return std::nullopt;
  return Operation{o.stage + 1, gradient_passes_[at(o.stage + 1, o.micro_batch)], o.micro_batch};
}

std::optional<Message> Messages::needed_by(const Operation& o) const {
  const auto source = source_of(o);
  return source ? made_by(*source) : std::nullopt;
}

std::vector<Message> Messages::made_by(const Cell& cell) const {
  std::vector<Message> messages;
  for_each_operation(cell, [&](const Operation& o) {
    if (const auto message = made_by(o)) messages.push_back(*message);
  });
  return messages;
}

std::vector<Message> Messages::needed_by(const Cell& cell) const {
  std::vector<Message> messages;
  for_each_operation(cell, [&](const Operation& o) {
    if (const auto message = needed_by(o)) messages.push_back(*message);
  });
  return messages;
}

std::size_t Messages::at(int stage, int micro_batch) const {
  return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
         static_cast<std::size_t>(micro_batch);
}

std::optional<Message> Messages::between(const Operation& made_by, int neighbour) const {
  const int from = assignment_.rank_of(made_by.stage, made_by.micro_batch);
  const int to = assignment_.rank_of(neighbour, made_by.micro_batch);
  if (from == to) return std::nullopt;
  return Message{made_by, from, to};
}

}  // namespace ref5d::pipeline
