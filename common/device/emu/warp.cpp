// What the lanes of a warp do together.
#include <fmt/core.h>

#include <bit>

#include "common/device/emu/block.h"
#include "common/device/emu/kernel_emu.h"

namespace ref5d::emu {
std::uint64_t Block::warp(const WarpOperation& operation, const Site& site) {
  Thread& self = *current_thread;
  if (++self.accesses % kStretch == 0) after_stretch();
  const unsigned lane = self.self.thread % kWarp;
  if ((operation.mask >> lane & 1u) == 0) {
    std::string what = fmt::format("lane {} calls an operation of its warp whose mask {:#010x} leaves it out, at {}", lane,
                                   operation.mask, site.describe());
    fail(Fault::kMissingLane, std::move(what));
  }
  self.operation = operation;
  self.site = site;
  self.state = Thread::State::kInWarp;
  if (!complete_warp_operation(self)) park();
  return self.operation.result;
}

// If all lanes of the mask are there: gives each its result, and lets the others go on.
bool Block::complete_warp_operation(Thread& last) {
  const WarpOperation& op = last.operation;
  const unsigned first = last.self.thread / kWarp * kWarp;
  std::uint32_t votes = 0, step = 0;
  for (std::uint32_t rest = op.mask; rest != 0; rest &= rest - 1) {
    const unsigned lane = static_cast<unsigned>(std::countr_zero(rest));
    if (first + lane >= launch_->threads) fail_at_missing_lane(last);
    const Thread& t = threads_[first + lane];
    if (t.state != Thread::State::kInWarp || t.operation.kind != op.kind || t.operation.mask != op.mask ||
        !t.site.same_line(last.site))
      return false;
    if (t.operation.value != 0) votes |= 1u << lane;
    step = std::max(step, t.self.warp_step);
  }
  const std::uint32_t mask = op.mask;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Thread& t = threads_[first + static_cast<unsigned>(std::countr_zero(rest))];
    switch (t.operation.kind) {
      case WarpKind::kSync: t.self.warp_step = step + 1; break;
      case WarpKind::kBallot: t.operation.result = votes; break;
      case WarpKind::kShuffle: {
        const auto source = static_cast<unsigned>(t.operation.source);
        if ((mask >> source & 1u) == 0) {
          std::string what = fmt::format("thread {} takes the value of lane {}, which the mask {:#010x} leaves out, at {}",
                                         +t.self.thread, source, mask, t.site.describe());
          fail(Fault::kMissingLane, std::move(what));
        }
        t.operation.result = threads_[first + source].operation.value;
        break;
      }
    }
  }
  last.state = Thread::State::kReady;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Thread& t = threads_[first + static_cast<unsigned>(std::countr_zero(rest))];
    if (&t != &last) make_ready(t);
  }
  return true;
}

// Called where `waiting` will wait for ever.
void Block::fail_at_missing_lane(const Thread& waiting) {
  const unsigned first = waiting.self.thread / kWarp * kWarp;
  std::string what = fmt::format(
      "thread {} waits for lanes of its warp (mask {:#010x}) that do not come: {}{}", waiting.self.thread,
      waiting.operation.mask,
      first + kWarp > launch_->threads ? fmt::format("the block's {} threads do not fill the warp; ", launch_->threads) : "",
      who_waits_where());
  if (current_thread != nullptr) fail(Fault::kMissingLane, std::move(what));
  throw_fault(Fault::kMissingLane, what);
}

// Which lanes run together is the hardware's affair: any that have not left may, and only the caller must.
std::uint32_t Block::active_lanes() {
  const Thread& self = *current_thread;
  const unsigned first = self.self.thread / kWarp * kWarp;
  std::uint32_t lanes = 0;
  for (unsigned lane = 0; lane < kWarp && first + lane < launch_->threads; ++lane) {
    const Thread& t = threads_[first + lane];
    if (&t == &self || (t.state == Thread::State::kReady && (in_order_ || random_.below(2) == 0))) lanes |= 1u << lane;
  }
  return lanes;
}

}  // namespace ref5d::emu
