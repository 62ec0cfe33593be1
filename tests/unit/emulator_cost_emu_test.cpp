// What the emulator's parts cost. Times are the best of many: the machine has other things to do.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "common/device/emu/fiber.h"

namespace ref5d::emu {
namespace {

constexpr int kSwitches = 100000;

struct PingPong {
  Fiber host, other;
};
PingPong* ping_pong = nullptr;

void answer() {
  while (true) switch_to(ping_pong->other, ping_pong->host);
}

TEST(EmulatorCost, FibersSwitchInTensOfNanoseconds) {
  PingPong both;
  ping_pong = &both;
  prepare(both.other, 0, answer);
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSwitches / 2; ++i) switch_to(both.host, both.other);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / kSwitches);
  }
  RecordProperty("ns", std::to_string(best));
  std::printf("%.1f ns a switch\n", best);
  EXPECT_LT(best, 100);
}

}  // namespace
}  // namespace ref5d::emu
