#pragma once

namespace ref5d {

// GFLOP/s in fp32 of `threads` threads that do nothing but multiply and add in registers: no product is faster. MODE=cpu.
[[nodiscard]] double fma_peak_gflops(int threads);

}  // namespace ref5d
