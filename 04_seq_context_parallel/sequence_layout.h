// Which tokens of a sequence are on which rank of the context-parallel axis: data, from which everything else follows.
//
//   16 tokens over 4 ranks, by rank:
//   contiguous   0 0 0 0  1 1 1 1  2 2 2 2  3 3 3 3
//   zigzag       0 0  1 1  2 2  3 3  3 3  2 2  1 1  0 0     2N chunks: rank r has chunks r and 2N-1-r
//   striped      0 1 2 3  0 1 2 3  0 1 2 3  0 1 2 3
//
// Nothing is padded and nothing is trimmed (pitfall P29): lengths that the ranks do not divide give some ranks a token more
// than others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/io/documents.h"

namespace ref5d::context_parallel {

// Places in a sequence, ascending.
using Places = std::vector<std::int32_t>;

struct SequenceLayout {
  std::vector<Places> places;  // by rank; each token is on one of them
  [[nodiscard]] int ranks() const { return static_cast<int>(places.size()); }
  [[nodiscard]] const Places& of(int rank) const { return places[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::int64_t length(int rank) const { return static_cast<std::int64_t>(of(rank).size()); }
  // Of all ranks.
  [[nodiscard]] std::int64_t length() const;
  // Of the rank that has most.
  [[nodiscard]] std::int64_t longest() const;
  [[nodiscard]] std::int64_t shortest() const;
};

[[nodiscard]] std::vector<std::string> layout_names();
// One of those names. InputError if some rank would have no token.
[[nodiscard]] SequenceLayout make_layout(const std::string& name, std::int64_t length, int ranks);

// What groups of `size` neighbours have together.
[[nodiscard]] SequenceLayout joined(const SequenceLayout& layout, int size);

// The part of a row that has these places: tokens, labels, order and start stay with each other. A label is the next token of
// the whole row, so it is known before the row is cut and is not looked for afterwards (pitfall P30).
[[nodiscard]] Row part_of(const Row& whole, const Places& places);

// Ranks' parts of `batch` sequences, one after the other, are rows of a matrix: rank by rank, of each rank sequence by
// sequence. (After a gather, say.) to_sequence[i] is the row in which token i of the joined sequences stands; to_ranks[j] is
// the token that stands in row j, or -1 if none does. padded: each rank has batch * longest() rows, since parts travel in one
// length.
struct Unsharding {
  std::vector<std::int32_t> to_sequence, to_ranks;
};
[[nodiscard]] Unsharding unsharding(const SequenceLayout& layout, std::int64_t batch, bool padded);

}  // namespace ref5d::context_parallel
