#include <limits>

#include "common/kernels/embedding.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

using Values = std::vector<double>;

Ints random_index(std::int64_t n, std::int64_t vocab, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<std::int64_t> any(0, vocab - 1);
  Ints v(static_cast<std::size_t>(n));
  for (auto& i : v) i = static_cast<std::int32_t>(any(generator));
  return v;
}

// Indices that are outside of a table of `vocab` rows.
Ints outside(std::int64_t vocab) {
  return {-1,
          static_cast<std::int32_t>(vocab),
          static_cast<std::int32_t>(vocab + 1),
          std::numeric_limits<std::int32_t>::min(),
          std::numeric_limits<std::int32_t>::max(),
          -100};
}

TEST(EmbeddingKernel, ForwardCopiesRowsOrAddsThem) {
  const std::int64_t vocab = 11;
  Ints index = random_index(17, vocab, 1);
  const Ints bad = outside(vocab);
  index.insert(index.end(), bad.begin(), bad.end());
  index.push_back(10);
  const auto tokens = static_cast<std::int64_t>(index.size());
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::int64_t columns : kAwkwardSizes) {
      const Values table = rounded(random_values(vocab * columns, 2), dtype),
                   before = rounded(random_values(tokens * columns, 3), dtype);
      Values copied(before.size()), added = before;
      for (std::size_t t = 0; t < index.size(); ++t) {
        if (index[t] < 0 || index[t] >= vocab) continue;
        for (std::int64_t c = 0; c < columns; ++c) {
          const auto to = t * std::size_t(columns) + std::size_t(c);
          copied[to] = table[std::size_t(index[t] * columns + c)];
          added[to] += copied[to];
        }
      }
      const Tensor ttable = device_tensor(table, {vocab, columns}, dtype), y = poisoned({tokens, columns}, dtype);
      embedding_forward(stream(), y, ttable, ints(index), false);
      EXPECT_EQ(values_of(y), copied) << columns;
      const Tensor sum = device_tensor(before, {tokens, columns}, dtype);
      embedding_forward(stream(), sum, ttable, ints(index), true);
      EXPECT_EQ(values_of(sum), rounded(added, dtype)) << columns;
    }
  }
}

TEST(EmbeddingKernel, BackwardAddsEveryTokenToItsRow) {
  for (const Dtype dtype : kFloatDtypes) {
    for (const Dtype output : {dtype, accumulator_of(dtype)}) {
      for (const std::int64_t columns : {1, 7, 33, 1023, 1024, 1025, 2100}) {  // around the kernel's tile of columns
        const std::int64_t vocab = 13;
        Ints index = random_index(50, vocab - 1, 4);  // the last row gets nothing
        const Ints bad = outside(vocab);
        index.insert(index.begin() + 20, bad.begin(), bad.end());
        const auto tokens = static_cast<std::int64_t>(index.size());
        const Values dy = rounded(random_values(tokens * columns, 5), dtype),
                     before = rounded(random_values(vocab * columns, 6), output);
        Values expected = before;
        for (std::size_t t = 0; t < index.size(); ++t) {
          if (index[t] < 0 || index[t] >= vocab) continue;
          for (std::int64_t c = 0; c < columns; ++c)
            expected[std::size_t(index[t] * columns + c)] += dy[t * std::size_t(columns) + std::size_t(c)];
        }
        const Tensor dtable = device_tensor(before, {vocab, columns}, output);
        embedding_backward(stream(), dtable, device_tensor(dy, {tokens, columns}, dtype), ints(index));
        EXPECT_LT(relative_error(values_of(dtable), expected), tolerance(output)) << columns;
        const Values result = values_of(dtable);  // an untouched row keeps its bits
        for (std::int64_t c = 0; c < columns; ++c) {
          ASSERT_EQ(result[std::size_t(12 * columns + c)], before[std::size_t(12 * columns + c)]);
        }
      }
    }
  }
}

TEST(EmbeddingKernel, BackwardIsTheGradientOfForward) {
  const std::int64_t vocab = 5, columns = 3;
  const Ints index{4, 1, 1, 0, 4, 4, 9};
  const Values table = random_values(vocab * columns, 7), dy = random_values(7 * columns, 8);
  auto forward = [&](const Values& at) {
    const Tensor y = poisoned({7, columns}, Dtype::kFp64);
    embedding_forward(stream(), y, device_tensor(at, {vocab, columns}, Dtype::kFp64), ints(index), false);
    return values_of(y);
  };
  const Tensor dtable = device_tensor(Values(std::size_t(vocab * columns), 0.0), {vocab, columns}, Dtype::kFp64);
  embedding_backward(stream(), dtable, device_tensor(dy, {7, columns}, Dtype::kFp64), ints(index));
  EXPECT_LT(relative_error(values_of(dtable), finite_difference(forward, table, dy)), 1e-7);
}

// The sum is formed in fp32 and rounded once, also into bf16: 512 gradients of 1.0 do not stick at 256 (P13).
TEST(EmbeddingKernel, P13_BackwardSumsBf16InFp32) {
  const Tensor dtable = device_tensor({0, 0}, {2, 1}, Dtype::kBf16);
  embedding_backward(stream(), dtable, device_tensor(Values(512, 1.0), {512, 1}, Dtype::kBf16), ints(Ints(512, 1)));
  EXPECT_EQ(values_of(dtable), (Values{0, 512}));
}

// Every run of equal indices is summed in token order, so these cancel exactly.
TEST(EmbeddingKernel, BackwardSumsInTokenOrder) {
  const Tensor dtable = device_tensor({0, 0}, {2, 1}, Dtype::kFp32);
  embedding_backward(stream(), dtable, device_tensor({1e8, 7, -1e8, 1, 7}, {5, 1}, Dtype::kFp32), ints({1, 0, 1, 1, 0}));
  EXPECT_EQ(values_of(dtable), (Values{14, 1}));
}

TEST(PartRowsKernel, GivesTheRowHereOrMinusOne) {
  const Ints tokens{
      0, 2, 3, 4, 6, 7, -1, -100, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()};
  const auto rows_of = [&](std::int64_t first, std::int64_t count, bool clamp) {
    const Tensor rows = ints(Ints(tokens.size(), 77));
    part_rows(stream(), rows, ints(tokens), first, count, clamp);
    return values_of(rows);
  };
  EXPECT_EQ(rows_of(3, 4, false), (Values{-1, -1, 0, 1, 3, -1, -1, -1, -1, -1}));
  EXPECT_EQ(rows_of(3, 4, true), (Values{0, 0, 0, 1, 3, 0, 0, 0, 0, 0}));
  EXPECT_EQ(rows_of(0, 3, false), (Values{0, 2, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(rows_of(3, 0, false), Values(10, -1.0));
}

// A table cut into uneven parts, each with its own rows of the tokens.
struct TablePart {
  std::int64_t first, count;
  Tensor rows;
};
std::vector<TablePart> parts_of_table(const Ints& tokens, bool clamp) {
  std::vector<TablePart> parts;
  std::int64_t first = 0;
  for (const std::int64_t count : {5, 1, 0, 4, 1}) {
    const Tensor rows = ints(Ints(tokens.size(), 77));
    part_rows(stream(), rows, ints(tokens), first, count, clamp);
    parts.push_back({first, count, rows});
    first += count;
  }
  return parts;
}

TEST(PartRowsKernel, ForwardsOfThePartsSumToTheWhole) {
  const std::int64_t vocab = 11, columns = 7, tokens = 40;
  const Ints index = random_index(tokens, vocab, 12);
  for (const Dtype dtype : kFloatDtypes) {
    const Values table = rounded(random_values(vocab * columns, 13), dtype);
    const Tensor whole = poisoned({tokens, columns}, dtype);
    embedding_forward(stream(), whole, device_tensor(table, {vocab, columns}, dtype), ints(index), false);
    const auto sum_of_parts = [&](bool clamp) {
      Values sum(std::size_t(tokens * columns), 0.0);
      for (const TablePart& part : parts_of_table(index, clamp)) {
        const auto begin = table.begin() + part.first * columns;
        const Tensor own = device_tensor({begin, begin + part.count * columns}, {part.count, columns}, dtype),
                     y = poisoned({tokens, columns}, dtype);
        embedding_forward(stream(), y, own, part.rows, false);
        const Values values = values_of(y);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
      }
      return sum;
    };
    EXPECT_EQ(sum_of_parts(false), values_of(whole));
    EXPECT_GT(relative_error(sum_of_parts(true), values_of(whole)), 0.5);  // the mistake shows
  }
}

TEST(PartRowsKernel, BackwardOfAPartIsTheWholesRows) {
  const std::int64_t vocab = 11, columns = 7, tokens = 40;
  const Ints index = random_index(tokens, vocab, 14);
  for (const Dtype dtype : kFloatDtypes) {
    const Tensor dy = device_tensor(random_values(tokens * columns, 15), {tokens, columns}, dtype),
                 whole = device_tensor(Values(std::size_t(vocab * columns), 0.0), {vocab, columns}, dtype);
    embedding_backward(stream(), whole, dy, ints(index));
    Values joined;
    for (const TablePart& part : parts_of_table(index, false)) {
      const Tensor own = device_tensor(Values(std::size_t(part.count * columns), 0.0), {part.count, columns}, dtype);
      embedding_backward(stream(), own, dy, part.rows);
      const Values values = values_of(own);
      joined.insert(joined.end(), values.begin(), values.end());
    }
    EXPECT_EQ(joined, values_of(whole));
  }
}

TEST(EmbeddingKernel, RepeatsBitwise) {
  expect_repeatable([] {
    const Tensor dtable = device_tensor(Values(40 * 65, 0.0), {40, 65}, Dtype::kFp32);
    embedding_backward(stream(), dtable, device_tensor(random_values(1500 * 65, 9), {1500, 65}, Dtype::kFp32),
                       ints(random_index(1500, 40, 10)));
    return dtable;
  });
}

TEST(EmbeddingKernel, TakesNoTokens) {
  const Values before = random_values(6, 11);
  const Tensor table = device_tensor(before, {2, 3}, Dtype::kFp64), none = poisoned({0, 3}, Dtype::kFp64);
  embedding_forward(stream(), none, table, ints({}), false);
  embedding_backward(stream(), table, none, ints({}));
  part_rows(stream(), ints({}), ints({}), 0, 2);
  EXPECT_EQ(values_of(table), before);
}

TEST(EmbeddingKernel, WrongShapesAndDtypesAreRefused) {
  const Tensor table = poisoned({4, 3}, Dtype::kBf16), y = poisoned({2, 3}, Dtype::kBf16),
               wide = poisoned({2, 6}, Dtype::kBf16), fp32 = poisoned({2, 3}, Dtype::kFp32),
               fp64 = poisoned({4, 3}, Dtype::kFp64), index = ints({0, 1});
  EXPECT_THROW(embedding_forward(stream(), poisoned({3, 3}, Dtype::kBf16), table, index, false), std::logic_error);
  EXPECT_THROW(embedding_forward(stream(), fp32, table, index, false), std::logic_error);
  EXPECT_THROW(embedding_forward(stream(), wide.columns(0, 3), table, index, false), std::logic_error);
  EXPECT_THROW(embedding_forward(stream(), y, table, y, false), std::logic_error);
  EXPECT_THROW(embedding_backward(stream(), table, wide, index), std::logic_error);
  EXPECT_THROW(embedding_backward(stream(), fp64, y, index), std::logic_error);
  EXPECT_THROW(embedding_backward(stream(), table, fp32, index), std::logic_error);
  EXPECT_THROW(part_rows(stream(), ints({0}), index, 0, 4), std::logic_error);
  EXPECT_THROW(part_rows(stream(), poisoned({2}, Dtype::kFp32), index, 0, 4), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
