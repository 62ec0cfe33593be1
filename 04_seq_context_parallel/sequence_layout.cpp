#include "04_seq_context_parallel/sequence_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "03_tensor_parallel/cut.h"
#include "common/device/error.h"

namespace ref5d::context_parallel {

namespace {

using tensor_parallel::share_of;

Places stretch(std::int64_t begin, std::int64_t end) {
  Places places(static_cast<std::size_t>(end - begin));
  std::iota(places.begin(), places.end(), static_cast<std::int32_t>(begin));
  return places;
}

Places contiguous_places(std::int64_t length, int ranks, int rank) {
  const auto share = share_of(length, ranks, rank);
  return stretch(share.begin, share.end);
}

// One chunk from the front and one from the back: little to see for the queries of the first, all the more for the second's.
Places zigzag_places(std::int64_t length, int ranks, int rank) {
  const auto early = share_of(length, 2 * ranks, rank), late = share_of(length, 2 * ranks, 2 * ranks - 1 - rank);
  Places places = stretch(early.begin, early.end);
  const Places second = stretch(late.begin, late.end);
  places.insert(places.end(), second.begin(), second.end());
  return places;
}

Places striped_places(std::int64_t length, int ranks, int rank) {
  Places places;
  for (std::int64_t i = rank; i < length; i += ranks) places.push_back(static_cast<std::int32_t>(i));
  return places;
}

struct NamedLayout {
  const char* name;
  Places (*places)(std::int64_t length, int ranks, int rank);
};
constexpr NamedLayout kLayouts[] = {{"contiguous", contiguous_places}, {"zigzag", zigzag_places}, {"striped", striped_places}};

}  // namespace

std::int64_t SequenceLayout::length() const {
  std::int64_t n = 0;
  for (const Places& p : places) n += static_cast<std::int64_t>(p.size());
  return n;
}

std::int64_t SequenceLayout::shortest() const {
  std::int64_t least = length(0);
  for (int r = 1; r < ranks(); ++r) least = std::min(least, length(r));
  return least;
}

std::int64_t SequenceLayout::longest() const {
  std::int64_t most = 0;
  for (const Places& p : places) most = std::max(most, static_cast<std::int64_t>(p.size()));
  return most;
}

std::vector<std::string> layout_names() {
  std::vector<std::string> names;
  for (const NamedLayout& l : kLayouts) names.emplace_back(l.name);
  return names;
}

SequenceLayout make_layout(const std::string& name, std::int64_t length, int ranks) {
  if (length < ranks)
    throw InputError(
        fmt::format("--cp {0} cannot cut sequences of {1} token{2}: every rank needs one at least; use --cp {1} "
                    "or less, or a longer --seq",
                    ranks, length, length == 1 ? "" : "s"));
  for (const NamedLayout& l : kLayouts) {
    if (name != l.name) continue;
    SequenceLayout layout;
    for (int r = 0; r < ranks; ++r) layout.places.push_back(l.places(length, ranks, r));
    return layout;
  }
  throw InputError("--cp-layout " + name + " is not known; use contiguous, zigzag or striped");
}

SequenceLayout joined(const SequenceLayout& layout, int size) {
  SequenceLayout groups;
  for (int first = 0; first < layout.ranks(); first += size) {
    Places& all = groups.places.emplace_back();
    for (int r = first; r < first + size; ++r) all.insert(all.end(), layout.of(r).begin(), layout.of(r).end());
    std::sort(all.begin(), all.end());
  }
  return groups;
}

Row part_of(const Row& whole, const Places& places) {
  Row part;
  for (const std::int32_t at : places) {
    const auto i = static_cast<std::size_t>(at);
    part.tokens.push_back(whole.tokens[i]);
    part.labels.push_back(whole.labels[i]);
    part.order.push_back(whole.order[i]);
    part.start.push_back(whole.start[i]);
    part.useful += at < whole.useful ? 1 : 0;
  }
  return part;
}

Unsharding unsharding(const SequenceLayout& layout, std::int64_t batch, bool padded) {
  const Places all = joined(layout, layout.ranks()).of(0);
  const auto length = static_cast<std::int64_t>(all.size());
  Unsharding u;
  u.to_sequence.resize(static_cast<std::size_t>(batch * length));
  for (int r = 0; r < layout.ranks(); ++r) {
    const auto first = static_cast<std::int64_t>(u.to_ranks.size());
    for (std::int64_t b = 0; b < batch; ++b) {
      for (const std::int32_t place : layout.of(r)) {
        // Where the token stands among those of all ranks, which need not be the whole sequence.
        const std::int64_t at = std::lower_bound(all.begin(), all.end(), place) - all.begin();
        u.to_sequence[static_cast<std::size_t>(b * length + at)] = static_cast<std::int32_t>(u.to_ranks.size());
        u.to_ranks.push_back(static_cast<std::int32_t>(b * length + at));
      }
    }
    if (padded) u.to_ranks.resize(static_cast<std::size_t>(first + batch * layout.longest()), -1);
  }
  return u;
}

}  // namespace ref5d::context_parallel
