// Attention over a contiguous range of a model's heads that begins or ends inside a kv head's group, flash and naive: the parts
// of a cut are the whole.
#include "tests/support/attention_testing.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::of_attention_heads {
namespace {

using namespace ref5d::testing;

// Columns of a matrix, [begin, end) of `width`.
std::vector<double> columns_of(const std::vector<double>& x, std::int64_t width, std::int64_t begin, std::int64_t end) {
  std::vector<double> part;
  for (auto row = x.begin(); row != x.end(); row += width) part.insert(part.end(), row + begin, row + end);
  return part;
}
void add_columns(std::vector<double>& to, std::int64_t width, std::int64_t begin, const std::vector<double>& x,
                 std::int64_t columns) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / columns, column = static_cast<std::int64_t>(i) % columns;
    to[static_cast<std::size_t>(row * width + begin + column)] += x[i];
  }
}

// The heads begin .. end - 1 of an attention, with the kv heads that they need.
struct HeadsPart {
  std::int64_t begin, end, first_kv_head;
  AttentionCase c;
  HeadsPart(const AttentionCase& whole, std::int64_t from, std::int64_t to) : begin(from), end(to), c(whole) {
    const std::int64_t D = whole.head_dim;
    c.group = whole.heads / whole.kv_heads;
    c.head_offset = begin % c.group;
    c.heads = end - begin;
    first_kv_head = begin / c.group;
    c.kv_heads = (end - 1) / c.group + 1 - first_kv_head;
    for (auto* x : {&c.q, &c.dout}) *x = columns_of(*x, whole.heads * D, begin * D, end * D);
    for (auto* x : {&c.k, &c.v}) *x = columns_of(*x, whole.kv_heads * D, first_kv_head * D, (first_kv_head + c.kv_heads) * D);
  }
};

// The first parts have one head more if the number does not divide.
std::vector<HeadsPart> cut_heads(const AttentionCase& whole, std::int64_t parts) {
  std::vector<HeadsPart> cut;
  for (std::int64_t i = 0, begin = 0; i < parts; ++i) {
    const std::int64_t end = begin + whole.heads / parts + (i < whole.heads % parts);
    cut.emplace_back(whole, begin, end);
    begin = end;
  }
  return cut;
}

double allowed(Dtype accumulator) { return accumulator == Dtype::kFp64 ? 1e-12 : 5e-6; }

// o, lse and dq of a part are the whole's bit by bit; dk and dv of the parts sum to the whole's, here in the accumulator.
void expect_parts_are_the_whole(const AttentionCase& original, std::int64_t parts, Dtype dtype, AttentionKind kind) {
  const AttentionCase c = original.in(dtype);
  const AttentionRun run{dtype, kind, true, 3, 2};
  SCOPED_TRACE(c.name() + " in " + std::to_string(parts) + " parts " + dtype_name(dtype) +
               (kind == AttentionKind::kNaive ? " naive" : " flash"));
  const AttentionResult whole = run_attention(c, run);
  const std::int64_t D = c.head_dim, width = c.heads * D, kv_width = c.kv_heads * D;
  std::vector<double> dk(whole.dk.size(), 0.0), dv(whole.dv.size(), 0.0);
  for (const HeadsPart& part : cut_heads(c, parts)) {
    const AttentionResult r = run_attention(part.c, run), expected = reference_attention(part.c);
    EXPECT_EQ(r.o, columns_of(whole.o, width, part.begin * D, part.end * D));
    EXPECT_EQ(r.lse, columns_of(whole.lse, c.heads * c.q_len, part.begin * c.q_len, part.end * c.q_len));
    EXPECT_EQ(r.dq, columns_of(whole.dq, width, part.begin * D, part.end * D));
    EXPECT_LT(relative_error(r.o, expected.o), allowed(accumulator_of(dtype)));
    EXPECT_LT(relative_error(r.dk, expected.dk), allowed(accumulator_of(dtype)));
    EXPECT_LT(relative_error(r.dv, expected.dv), allowed(accumulator_of(dtype)));
    add_columns(dk, kv_width, part.first_kv_head * D, r.dk, part.c.kv_heads * D);
    add_columns(dv, kv_width, part.first_kv_head * D, r.dv, part.c.kv_heads * D);
  }
  EXPECT_LT(relative_error(dk, whole.dk), allowed(accumulator_of(dtype)));
  EXPECT_LT(relative_error(dv, whole.dv), allowed(accumulator_of(dtype)));
}

struct HeadsCut {
  std::int64_t heads, kv_heads, parts;
};
const std::vector<HeadsCut> kCuts = {{6, 3, 2}, {6, 2, 3}, {6, 1, 4}, {8, 2, 3}, {12, 4, 8}};

TEST(AttentionHeads, PartsOfTheHeadsAreTheWholeInEveryDtype) {
  for (const HeadsCut& cut : kCuts)
    for (const auto kind : {AttentionKind::kFlash, AttentionKind::kNaive})
      for (const Dtype dtype : kFloatDtypes) {
        const AttentionCase c = make_case(Layout::kDocuments, 2, 37, 37, cut.heads, cut.kv_heads, 20);
        expect_parts_are_the_whole(c, cut.parts, dtype, kind);
      }
}

TEST(AttentionHeads, EveryCutIsTheWhole) {
  for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {5, 1}, {6, 3}, {9, 3}})
    for (std::int64_t parts = 1; parts <= heads; ++parts)
      for (const auto kind : {AttentionKind::kFlash, AttentionKind::kNaive})
        expect_parts_are_the_whole(make_case(Layout::kCausal, 1, 5, 5, heads, kv_heads, 3), parts, Dtype::kFp64, kind);
}

TEST(AttentionHeads, TheExampleOfTheHeader) {
  const std::vector<HeadsPart> ranks = cut_heads(make_case(Layout::kCausal, 1, 2, 2, 6, 3, 1), 2);
  EXPECT_EQ(ranks[0].c.kv_heads, 2);
  EXPECT_EQ(ranks[0].c.head_offset, 0);
  EXPECT_EQ(ranks[1].c.kv_heads, 2);
  EXPECT_EQ(ranks[1].c.head_offset, 1);
}

// Heads 1, 2, 3 of 6: the last head of the first group, and all of the second.
TEST(AttentionHeads, GradientsMatchFiniteDifferences) {
  for (const auto kind : {AttentionKind::kFlash, AttentionKind::kNaive}) {
    const AttentionCase c = HeadsPart(make_case(Layout::kShuffled, 1, 5, 7, 6, 3, 3, 5), 1, 4).c;
    const AttentionResult r = run_attention(c, {Dtype::kFp64, kind});
    const auto gradient_of = [&](std::vector<double> AttentionCase::*member) {
      return finite_difference(
          [&](const std::vector<double>& x) {
            AttentionCase moved = c;
            moved.*member = x;
            return run_attention(moved, {Dtype::kFp64, kind}).o;
          },
          c.*member, c.dout);
    };
    EXPECT_LT(relative_error(r.dq, gradient_of(&AttentionCase::q)), 1e-7);
    EXPECT_LT(relative_error(r.dk, gradient_of(&AttentionCase::k)), 1e-7);
    EXPECT_LT(relative_error(r.dv, gradient_of(&AttentionCase::v)), 1e-7);
  }
}

TEST(AttentionHeads, AGroupThatIsGivenChangesNothing) {
  AttentionCase c = make_case(Layout::kCausal, 1, 20, 20, 6, 2, 8);
  const AttentionResult without = run_attention(c, {Dtype::kFp32});
  c.group = 3;
  const AttentionResult with = run_attention(c, {Dtype::kFp32});
  EXPECT_EQ(with.o, without.o);
  EXPECT_EQ(with.dq, without.dq);
  EXPECT_EQ(with.dk, without.dk);
  EXPECT_EQ(with.dv, without.dv);
}

TEST(AttentionHeads, MapsThatDoNotFitAreRefused) {
  struct Map {
    std::int64_t heads, kv_heads, group, head_offset;
  };
  const auto run = [](const Map& map) {
    AttentionCase c = make_case(Layout::kCausal, 1, 2, 2, map.heads, map.kv_heads, 4);
    c.group = map.group, c.head_offset = map.head_offset;
    (void)run_attention(c, {Dtype::kFp32});
  };
  for (const Map& map : {Map{3, 2, 0, 0}, Map{4, 2, 0, 1}, Map{4, 2, -2, 0}, Map{4, 2, 2, -1}, Map{4, 2, 2, 2}, Map{2, 2, 2, 2},
                         Map{4, 2, 2, 1}, Map{4, 3, 2, 0}, Map{4, 1, 2, 0}, Map{3, 1, 2, 1}, Map{1, 2, 4, 0}}) {
    EXPECT_THROW(run(map), std::logic_error) << map.heads << " " << map.kv_heads << " " << map.group << " " << map.head_offset;
  }
  for (const Map& map : {Map{3, 2, 2, 0}, Map{3, 2, 2, 1}, Map{4, 3, 2, 1}, Map{1, 1, 4, 3}, Map{2, 2, 8, 7}})
    EXPECT_NO_THROW(run(map)) << map.heads << " " << map.kv_heads << " " << map.group << " " << map.head_offset;
}

}  // namespace
}  // namespace ref5d::of_attention_heads
