// Counter-based random numbers (Philox 4x32-10; Salmon et al. 2011) and the initialisation of weights. A number depends on
// its key and its index alone, so any rank makes its own shard of a parameter and no rank needs the whole.
#pragma once

#include <string_view>

#include "common/tensor/tensor.h"

namespace ref5d {

// A stable 64-bit hash (FNV-1a); with the hash of what came before, that of both together.
[[nodiscard]] std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t hash = 14695981039346656037u);

// Where a local tensor lies in its global one, as a matrix: local row r, column c is global row row_begin + r, column
// column_begin + c of a matrix with global_columns columns. Element i = global row * global_columns + global column.
struct GlobalWindow {
  std::int64_t row_begin = 0, column_begin = 0, global_columns = 0;
};

// out [R, C] = mean + std * normal(seed, key, i), drawn in fp64, rounded to fp32 and then to out's dtype, so that every dtype
// starts from the same weights. Elements 2p and 2p + 1 are the two numbers of one Box-Muller step, from the 128 random bits of
// Philox(seed)(p low, p high, key low, key high).
void fill_normal(Stream& stream, const Tensor& out, const GlobalWindow& window, std::uint64_t seed, std::uint64_t key,
                 double mean, double std);

void fill_constant(Stream& stream, const Tensor& out, double value);

}  // namespace ref5d
