// How much of attention each rank of a ring does at each hop, counted, and how long the ring takes for it.
#pragma once

#include <cstdint>
#include <vector>

#include "04_seq_context_parallel/sequence_layout.h"
#include "common/device/timeline.h"

namespace ref5d::context_parallel {

// For each rank and hop a number: of visible pairs, or microseconds.
template <typename T>
using ByHop = std::vector<std::vector<T>>;

// Visible pairs of (query, key) by rank and hop; at hop h rank r has the keys of rank r - h. The row says where documents
// begin; sequences of one document are causal alone.
[[nodiscard]] ByHop<std::int64_t> count_pairs(const SequenceLayout& layout, const Row& row);
// One document of so many tokens.
[[nodiscard]] Row one_document(std::int64_t length);

// Of one rank over all hops, and of all.
[[nodiscard]] std::int64_t pairs_of(const ByHop<std::int64_t>& pairs, int rank);
[[nodiscard]] std::int64_t pairs_of_all(const ByHop<std::int64_t>& pairs);
// Hops at which a rank has anything to compute.
[[nodiscard]] int hops_with_work(const ByHop<std::int64_t>& pairs, int rank);
// The most that two ranks differ by at any one hop.
[[nodiscard]] std::int64_t unevenness(const ByHop<std::int64_t>& pairs);
// Where every hop lasts as long as the rank with most to do needs: the share of that time in which ranks compute. 1 is a ring
// in which all have the same to do at every hop.
[[nodiscard]] double balance(const ByHop<std::int64_t>& pairs);

// Contiguous layout, c tokens on each of N ranks: N c (N c + 1) / 2 pairs in all, and the hops' greatest are c (c + 1) / 2 at
// the first, where each rank has its own keys, and c^2 at the N - 1 others, where the last rank sees all of another's keys:
//   balance = (N c + 1) / (c + 1 + 2 (N - 1) c),  which nears (N / 2) / (N - 1/2) as c grows.
[[nodiscard]] double contiguous_balance(std::int64_t ranks, std::int64_t tokens_each);
[[nodiscard]] double contiguous_balance(std::int64_t ranks);

// The ring in virtual time. A hop begins when the hop before has ended and its keys are there; keys leave for the next rank as
// soon as the rank has them and the hop before has ended on both, and take what the link says for `bytes`.
struct RingSpan {
  int rank, hop;
  double start_us, duration_us;
  bool communication;
};
struct RingTimeline {
  std::vector<RingSpan> spans;
  double total_us = 0;
};
[[nodiscard]] RingTimeline ring_timeline(const ByHop<double>& hop_us, const Link& link, std::int64_t bytes);

}  // namespace ref5d::context_parallel
