// The arithmetic of ZeRO: bytes of training state per device (Rajbhandari et al. 2020).
#pragma once

namespace ref5d::data_parallel {

// Bytes per parameter of each kind of state.
struct StateBytes {
  double weights = 2, gradients = 2, optimizer = 12;  // fp16 training of the paper: fp32 master, momentum, variance
  [[nodiscard]] double total() const { return weights + gradients + optimizer; }
};
// With bf16 weights and gradients, fp32 sums of gradients, masters and moments: 20 bytes.
inline constexpr StateBytes kTwentyBytes{2, 6, 12};

// Per parameter and device, on `devices`: stage 0 shards nothing, 1 the optimizer's state, 2 the gradients too, 3 the weights
// too.
[[nodiscard]] double bytes_per_parameter(const StateBytes& bytes, int stage, double devices);

}  // namespace ref5d::data_parallel
