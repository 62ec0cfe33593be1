// Private to the flash attention kernels: which keys a query sees, one by one and by runs of tokens.
#pragma once

#include "common/device/kernel.h"
#include "common/kernels/attention_kernels.h"

namespace ref5d {

// Which runs of a tile's queries see which runs of its keys: nothing, some or all. Bit q_run * kKeyRuns + k_run. (A tile of 8
// tokens has the run it lies in.)
template <int kQueries, int kKeys>
struct VisibleRuns {
  static constexpr int kRun = static_cast<int>(kTokenRun);
  static constexpr int kQueryRuns = (kQueries + kRun - 1) / kRun, kKeyRuns = (kKeys + kRun - 1) / kRun;
  static constexpr int kQueryStep = kQueries < kRun ? kQueries : kRun, kKeyStep = kKeys < kRun ? kKeys : kRun;
  static_assert(kQueryRuns * kKeyRuns <= 32);
  unsigned some_bits = 0, all_bits = 0;

  // The run tables of one sequence; the tiles' first tokens; the sequences' lengths.
  __device__ VisibleRuns(const std::int32_t* __restrict__ q_runs, std::int64_t q_begin, std::int64_t q_len,
                         const std::int32_t* __restrict__ k_runs, std::int64_t k_begin, std::int64_t k_len) {
    for (int q = 0; q < kQueryRuns; ++q) {
      if (q_begin + q * kRun >= q_len) break;
      const std::int32_t* qr = q_runs + (q_begin / kRun + q) * 4;
      const std::int32_t min_order = qr[0], max_order = qr[1], min_start = qr[2], max_start = qr[3];
      for (int k = 0; k < kKeyRuns; ++k) {
        const std::int64_t first = k_begin + k * kRun;
        if (first >= k_len) break;
        const std::int32_t *kr = k_runs + first / kRun * 2, min_key = kr[0], max_key = kr[1];
        const unsigned bit = 1u << (q * kKeyRuns + k);
        if (min_key <= max_order && max_key >= min_start) some_bits |= bit;
        // A run that the sequence's end cuts short is filled up with keys that must not count.
        if (max_key <= min_order && min_key >= max_start && first + kRun <= k_len) all_bits |= bit;
      }
    }
  }
  // Of the runs that hold a query and a key of the tile.
  [[nodiscard]] __device__ bool some(int query, int key) const {
    return some_bits >> (query / kRun * kKeyRuns + key / kRun) & 1u;
  }
  [[nodiscard]] __device__ bool all(int query, int key) const {
    return all_bits >> (query / kRun * kKeyRuns + key / kRun) & 1u;
  }
  // f(first) for each run of keys that the query's run sees some of, and for each run of queries that see some of the key's.
  template <typename F>
  __device__ __forceinline__ void for_keys_of(int query, F&& f) const {
    for (int key = 0; key < kKeys; key += kRun)
      if (some(query, key)) f(key);
  }
  template <typename F>
  __device__ __forceinline__ void for_queries_of(int key, F&& f) const {
    for (int query = 0; query < kQueries; query += kRun)
      if (some(query, key)) f(query);
  }
};

// A query sees the keys of its document up to itself.
__device__ __forceinline__ bool sees(std::int32_t q_order, std::int32_t q_start, std::int32_t k_order) {
  return static_cast<int>(k_order <= q_order) & static_cast<int>(k_order >= q_start);
}
// What fills a tile up: a key that no query sees, a query that sees no key.
inline constexpr std::int32_t kNoKey = INT32_MAX, kNoQuery = INT32_MIN;

}  // namespace ref5d
