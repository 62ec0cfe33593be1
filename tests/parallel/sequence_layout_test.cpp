// Which tokens are on which rank, as numbers: nothing here is sent.
#include "common/device/error.h"
#include "tests/support/seq_context_testing.h"

namespace ref5d::testing {
namespace {

using context_parallel::joined;
using context_parallel::layout_names;
using context_parallel::make_layout;
using context_parallel::part_of;
using context_parallel::Places;
using context_parallel::SequenceLayout;
using context_parallel::Unsharding;
using context_parallel::unsharding;

class SequenceLayouts : public ParallelTest {};

// Calls check(layout, name) for each of them and of many lengths over up to 8 ranks; where there are several, over as many.
void for_every_layout(const std::function<void(const SequenceLayout&, const std::string&)>& check) {
  for (const std::string& name : layout_names())
    for (int ranks = 1; ranks <= 8; ++ranks)
      if (world().size() == 1 || world().size() == ranks)
        for (std::int64_t length = ranks; length <= 40; ++length)
          check(make_layout(name, length, ranks),
                name + ", " + std::to_string(length) + " tokens over " + std::to_string(ranks));
}

TEST_F(SequenceLayouts, AreThoseOfThePicture) {
  const std::vector<Places> contiguous{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}},
      zigzag{{0, 1, 14, 15}, {2, 3, 12, 13}, {4, 5, 10, 11}, {6, 7, 8, 9}},
      striped{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}};
  EXPECT_EQ(make_layout("contiguous", 16, 4).places, contiguous);
  EXPECT_EQ(make_layout("zigzag", 16, 4).places, zigzag);
  EXPECT_EQ(make_layout("striped", 16, 4).places, striped);
}

// Every token on one rank, none twice and none nowhere; ascending; no rank has two more than another, or none.
TEST_F(SequenceLayouts, P29_EveryTokenIsOnOneRank) {
  for_every_layout([](const SequenceLayout& layout, const std::string& what) {
    std::vector<int> seen(static_cast<std::size_t>(layout.length()), 0);
    std::int64_t least = layout.length(), most = 0;
    for (const Places& places : layout.places) {
      EXPECT_TRUE(std::is_sorted(places.begin(), places.end())) << what;
      for (const std::int32_t place : places) ++seen.at(static_cast<std::size_t>(place));
      least = std::min(least, static_cast<std::int64_t>(places.size()));
      most = std::max(most, static_cast<std::int64_t>(places.size()));
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << what;
    EXPECT_GE(least, 1) << what;
    EXPECT_LE(most - least, 1) << what;
    EXPECT_EQ(layout.longest(), most) << what;
  });
  std::int64_t tokens = 0;
  for (int rank : {0, 1}) tokens += make_layout("zigzag", 7, 2).length(rank);
  EXPECT_EQ(tokens, 7);
}

// The rows of a matrix that ranks' parts were gathered into, padded to one length or not, in the sequence's order again; and
// back.
TEST_F(SequenceLayouts, P35_UnshardingUndoesSharding) {
  for_every_layout([](const SequenceLayout& layout, const std::string& what) {
    const std::int64_t length = layout.length();
    for (const bool padded : {false, true}) {
      for (const std::int64_t batch : {1, 3}) {
        std::vector<std::int64_t> rows, all;  // gathered; of the sequences, numbered through
        for (int r = 0; r < layout.ranks(); ++r) {
          for (std::int64_t b = 0; b < batch; ++b)
            for (const std::int32_t place : layout.of(r)) rows.push_back(b * length + place);
          if (padded) rows.resize(static_cast<std::size_t>((r + 1) * batch * layout.longest()), -1);
        }
        for (std::int64_t i = 0; i < batch * length; ++i) all.push_back(i);
        const Unsharding u = unsharding(layout, batch, padded);
        std::vector<std::int64_t> sequence, again;
        for (const std::int32_t row : u.to_sequence) sequence.push_back(rows.at(static_cast<std::size_t>(row)));
        for (const std::int32_t token : u.to_ranks)
          again.push_back(token < 0 ? -1 : sequence.at(static_cast<std::size_t>(token)));
        EXPECT_EQ(sequence, all) << what << (padded ? ", padded" : "");
        EXPECT_EQ(again, rows) << what << (padded ? ", padded" : "");
      }
    }
  });
}

// Some neighbours' tokens among themselves are in the order of the sequence, though they are not all of it.
TEST_F(SequenceLayouts, P35_UnshardingOfAGroup) {
  for_every_layout([](const SequenceLayout& layout, const std::string& what) {
    for (int size = 1; size <= layout.ranks(); ++size) {
      if (layout.ranks() % size != 0) continue;
      const SequenceLayout groups = joined(layout, size);
      EXPECT_EQ(groups.ranks(), layout.ranks() / size);
      EXPECT_EQ(groups.length(), layout.length());
      for (int g = 0; g < groups.ranks(); ++g) {
        SequenceLayout group;
        Places rows;
        for (int r = g * size; r < (g + 1) * size; ++r) {
          group.places.push_back(layout.of(r));
          rows.insert(rows.end(), layout.of(r).begin(), layout.of(r).end());
        }
        Places sequence;
        for (const std::int32_t row : unsharding(group, 1, false).to_sequence)
          sequence.push_back(rows.at(static_cast<std::size_t>(row)));
        EXPECT_EQ(sequence, groups.of(g)) << what << ", groups of " << size;
      }
    }
  });
}

// Tokens, labels, orders and starts go together; what is padding stays so.
TEST_F(SequenceLayouts, P30_PartsOfARowKeepTheirLabels) {
  Row row = some_rows(with_length(small(), 13), 1)[0];
  row.useful = 11;
  for (const std::string& name : layout_names()) {
    const SequenceLayout layout = make_layout(name, 13, 4);
    std::int64_t useful = 0;
    for (const Places& places : layout.places) {
      const Row part = part_of(row, places);
      ASSERT_EQ(part.tokens.size(), places.size());
      for (std::size_t i = 0; i < places.size(); ++i) {
        const auto at = static_cast<std::size_t>(places[i]);
        EXPECT_EQ(part.tokens[i], row.tokens[at]) << name;
        EXPECT_EQ(part.labels[i], row.labels[at]) << name;
        EXPECT_EQ(part.order[i], row.order[at]) << name;
        EXPECT_EQ(part.start[i], row.start[at]) << name;
      }
      useful += part.useful;
    }
    EXPECT_EQ(useful, row.useful) << name;
  }
}

TEST_F(SequenceLayouts, ARankWithoutATokenIsRefused) {
  for (const std::string& name : layout_names()) {
    EXPECT_NO_THROW((void)make_layout(name, 5, 5));
    EXPECT_THROW((void)make_layout(name, 4, 5), InputError);
  }
  EXPECT_THROW((void)make_layout("zig-zag", 8, 2), InputError);
}

}  // namespace
}  // namespace ref5d::testing
