// Tiny kernels for the tests of the device layer.
#pragma once

#include <cstdint>

#include "common/tensor/tensor.h"

namespace ref5d::testing {

// x += v, by launch<add_constant_kernel<T>> over the whole tensor.
void add_constant(Stream& stream, const Tensor& x, double v);
// The same with a grid of the caller's.
void add_constant(Stream& stream, const Tensor& x, double v, unsigned grid_x, unsigned grid_y, unsigned grid_z);
// out = a * x, same dtype.
void multiply(Stream& stream, const Tensor& out, const Tensor& x, double a);

// counts [n] int32: += 1 at each index that grid_range(n) visits, over `blocks` blocks.
void count_visits(Stream& stream, const Tensor& counts, std::int64_t n, unsigned blocks);
// What launches use for n elements.
[[nodiscard]] unsigned blocks_for(std::int64_t n);
// out [z, y, x] int32 = 1 + the number of the block that ran there.
void number_blocks(Stream& stream, const Tensor& out);

// Threads of a block that asks for 256.
[[nodiscard]] std::int64_t threads_per_block();
// sums, maxima [threads]: what block_sum and block_max over x [n] give each thread of one block.
void reduce_in_block(Stream& stream, const Tensor& sums, const Tensor& maxima, const Tensor& x);
// out [n] = x [n] back to front, by way of n elements of dynamic shared memory of one block. fp64.
void reverse_in_shared(Stream& stream, const Tensor& out, const Tensor& x);

// out = exp_of(x), fp32 or fp64.
void exponential(Stream& stream, const Tensor& out, const Tensor& x);
// out = exp_of_negative(x), fp32.
void exponential_of_negative(Stream& stream, const Tensor& out, const Tensor& x);
// out [n] bf16 = bf16(x [n] fp32); back [n] fp32 = float(out).
void to_bf16(Stream& stream, const Tensor& out, const Tensor& back, const Tensor& x);
// out [4] int32 = philox(key, counter).
void philox_on_device(Stream& stream, const Tensor& out, std::uint64_t key, std::uint64_t counter_low,
                      std::uint64_t counter_high);

}  // namespace ref5d::testing
