#include <bit>
#include <cstring>
#include <limits>

#include "common/kernels/elementwise.h"
#include "tests/support/kernel_repeat.h"

namespace ref5d::testing {
namespace {

using Values = std::vector<double>;

TEST(AddKernel, SumsInEveryDtypeAlsoInPlace) {
  for (const Dtype dtype : kFloatDtypes) {
    std::vector<std::int64_t> sizes = kAwkwardSizes;
    sizes.push_back(kSeveralBlocks);
    for (const std::int64_t n : sizes) {
      const Values a = rounded(random_values(n, 1), dtype), b = rounded(random_values(n, 2), dtype);
      Values sum(a);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
      const Values expected = rounded(sum, dtype);  // one rounding, so exact
      const Tensor ta = device_tensor(a, {n}, dtype), tb = device_tensor(b, {n}, dtype), y = poisoned({n}, dtype);
      add(stream(), y, ta, tb);
      EXPECT_EQ(values_of(y), expected) << n;
      add(stream(), ta, ta, tb);
      EXPECT_EQ(values_of(ta), expected) << n;
      const Tensor again = device_tensor(a, {n}, dtype);
      add(stream(), tb, again, tb);
      EXPECT_EQ(values_of(tb), expected) << n;
    }
  }
}

TEST(AddMatrixKernel, AddsBetweenLeadingDimsInEveryDtypeAndLeavesTheRest) {
  std::vector<std::int64_t> widths = kAwkwardSizes;
  widths.push_back(300);  // more than a block has threads
  for (const Dtype dtype : kFloatDtypes)
    for (const std::int64_t columns : widths) {
      const std::int64_t rows = 1 + columns % 5, to_ld = columns + 3, from_ld = columns + 2;
      const Values to = rounded(random_values(rows * to_ld, 1), dtype), from = rounded(random_values(rows * from_ld, 2), dtype);
      Values sum(to);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
          sum[std::size_t(r * to_ld + 1 + c)] += from[std::size_t(r * from_ld + 2 + c)];
      const Tensor y = device_tensor(to, {rows, to_ld}, dtype), x = device_tensor(from, {rows, from_ld}, dtype);
      add_matrix(stream(), y.columns(1, 1 + columns), x.columns(2, 2 + columns));
      EXPECT_EQ(values_of(y), rounded(sum, dtype)) << columns;  // one rounding, so exact
      EXPECT_EQ(values_of(x), from) << columns;
    }
}

TEST(AddMatrixKernel, RepeatsBitwise) {
  const Values to = random_values(301 * 33, 1), from = random_values(301 * 33, 2);
  expect_repeatable([&] {
    const Tensor y = device_tensor(to, {301, 33}, Dtype::kBf16);
    add_matrix(stream(), y, device_tensor(from, {301, 33}, Dtype::kBf16));
    return y;
  });
}

TEST(BiasKernel, ForwardAddsToEachRowAndLeavesTheRestOfAWiderMatrix) {
  for (const Dtype dtype : kFloatDtypes) {
    for (const std::int64_t columns : kAwkwardSizes) {
      const std::int64_t rows = 3, wide = columns + 4;
      const Values y = rounded(random_values(rows * wide, 3), dtype), bias = rounded(random_values(columns, 4), dtype);
      const Tensor whole = device_tensor(y, {rows, wide}, dtype);
      bias_forward(stream(), whole.columns(1, 1 + columns), device_tensor(bias, {columns}, dtype));
      Values expected = y;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) expected[std::size_t(r * wide + 1 + c)] += bias[std::size_t(c)];
      }
      EXPECT_EQ(values_of(whole), rounded(expected, dtype)) << columns;
    }
  }
}

TEST(BiasKernel, BackwardSumsRowsIntoEitherDtypeAndAccumulates) {
  for (const Dtype dtype : kFloatDtypes) {
    for (const Dtype output : {dtype, accumulator_of(dtype)}) {
      for (const std::int64_t rows : {0, 1, 2, 31, 64, 65, 130, 2100}) {
        const std::int64_t columns = 7, wide = 10;
        const Values dy = rounded(random_values(rows * wide, 5), dtype), before = rounded(random_values(columns, 6), output);
        Values sum(std::size_t(columns), 0.0);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < columns; ++c) sum[std::size_t(c)] += dy[std::size_t(r * wide + 2 + c)];
        }
        const Tensor whole = device_tensor(dy, {rows, wide}, dtype), db = poisoned({columns}, output);
        bias_backward(stream(), db, whole.columns(2, 2 + columns), false);
        EXPECT_LT(relative_error(values_of(db), sum), tolerance(output)) << rows;
        const Tensor added = device_tensor(before, {columns}, output);
        bias_backward(stream(), added, whole.columns(2, 2 + columns), true);
        for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += before[c];
        EXPECT_LT(relative_error(values_of(added), sum), tolerance(output)) << rows;
      }
    }
  }
}

TEST(BiasKernel, BackwardIsTheGradientOfForward) {
  for (const std::int64_t rows : {1, 5, 65}) {
    const std::int64_t columns = 7;
    const Values y = random_values(rows * columns, 1), bias = random_values(columns, 2), dy = random_values(rows * columns, 3);
    const auto forward = [&](const Values& at) {
      const Tensor t = device_tensor(y, {rows, columns}, Dtype::kFp64);
      bias_forward(stream(), t, device_tensor(at, {columns}, Dtype::kFp64));
      return values_of(t);
    };
    const Tensor db = poisoned({columns}, Dtype::kFp64);
    bias_backward(stream(), db, device_tensor(dy, {rows, columns}, Dtype::kFp64), false);
    EXPECT_LT(relative_error(values_of(db), finite_difference(forward, bias, dy)), 1e-8) << rows;
  }
}

TEST(BiasKernel, BackwardRepeatsBitwise) {
  expect_repeatable([] {
    const Tensor db = poisoned({33}, Dtype::kFp32);
    bias_backward(stream(), db, device_tensor(random_values(500 * 33, 7), {500, 33}, Dtype::kFp32), false);
    return db;
  });
}

TEST(ConvertKernel, BetweenAllDtypesRoundsOnceToNearestEven) {
  Values values = random_values(1000, 8, 3);
  const double ties[] = {1 + 0x1p-8,
                         1 + 3 * 0x1p-8,
                         1 + 0x1p-24,
                         1 + 3 * 0x1p-24,
                         1e-40,
                         0x1p-133,
                         0x1p-134,
                         1e39,
                         3.4e38,
                         INFINITY,
                         0.0,
                         1 + 0x1p-8 + 0x1p-40,
                         1 + 3 * 0x1p-8 - 0x1p-40,
                         1 + 0x1p-8 - 0x1p-50};
  for (const double v : ties) values.insert(values.end(), {v, -v});
  const auto n = static_cast<std::int64_t>(values.size());
  for (const Dtype from : kFloatDtypes) {
    for (const Dtype to : kFloatDtypes) {
      const Values source = rounded(values, from);
      const Tensor out = poisoned({n}, to);
      convert(stream(), out, device_tensor(source, {n}, from));
      EXPECT_EQ(bits_of(out), HostTensor::from_doubles(source, {n}, to).data) << dtype_name(from) << " to " << dtype_name(to);
    }
  }
  // A hair above the tie between two bf16 numbers, which a float cannot hold, goes up; rounded twice it would go down.
  const Tensor hair = poisoned({2}, Dtype::kBf16);
  convert(stream(), hair, device_tensor({1 + 0x1p-8 + 0x1p-40, -1 - 0x1p-8 - 0x1p-40}, {2}, Dtype::kFp64));
  EXPECT_EQ(values_of(hair), (Values{1 + 0x1p-7, -1 - 0x1p-7}));
}

// Every bf16 number, and the fp32 numbers at, just above and just below the middle between it and the next.
TEST(ConvertKernel, Bf16RoundingIsRightAroundEveryNumber) {
  std::vector<float> sources;
  std::vector<std::uint16_t> expected;
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      auto put = [&](std::uint32_t wide, std::uint32_t narrow) {
        sources.push_back(std::bit_cast<float>(wide | sign << 16));
        expected.push_back(static_cast<std::uint16_t>(narrow | sign));
      };
      const std::uint32_t exact = bits << 16, up = bits + 1;
      put(exact, bits);
      put(exact + 1, bits);
      put(exact + 0x7fff, bits);
      put(exact + 0x8000, bits % 2 == 0 ? bits : up);
      put(exact + 0x8001, up);
      put(exact + 0xffff, up);
    }
  }
  const auto n = static_cast<std::int64_t>(sources.size());
  const Tensor from = Tensor::empty({n}, Dtype::kFp32, MemoryCategory::kWorkspace, stream());
  copy_to_device(stream(), from.raw(), sources.data(), from.bytes());
  const Tensor to = poisoned({n}, Dtype::kBf16);
  convert(stream(), to, from);
  const auto bits = bits_of(to);
  ASSERT_EQ(bits.size(), expected.size() * 2);
  EXPECT_EQ(std::memcmp(bits.data(), expected.data(), bits.size()), 0);
  // And back: exact.
  const Tensor wide = poisoned({n}, Dtype::kFp32);
  convert(stream(), wide, to);
  const Values back = values_of(wide);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(static_cast<float>(back[i]), std::bit_cast<float>(std::uint32_t{expected[i]} << 16));
  }
}

TEST(ConvertKernel, NanStaysNan) {
  for (const Dtype from : kFloatDtypes) {
    for (const Dtype to : kFloatDtypes) {
      const Tensor out = device_tensor({0, 0}, {2}, to);
      convert(stream(), out, device_tensor({std::nan(""), -std::nan("")}, {2}, from));
      for (const double v : values_of(out)) EXPECT_TRUE(std::isnan(v)) << dtype_name(from) << " to " << dtype_name(to);
    }
  }
}

TEST(ScaledAddKernel, EveryPairOfDtypesRoundsTheSumOnce) {
  const std::int64_t n = 129;
  const double alpha = -0.7;
  for (const Dtype ytype : kFloatDtypes) {
    for (const Dtype xtype : kFloatDtypes) {
      const Values y = rounded(random_values(n, 9), ytype), x = rounded(random_values(n, 10), xtype);
      Values sum(y);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += alpha * x[i];
      const Tensor out = device_tensor(y, {n}, ytype);
      scaled_add(stream(), out, device_tensor(x, {n}, xtype), alpha);
      EXPECT_LT(relative_error(values_of(out), sum), tolerance(ytype)) << dtype_name(ytype) << " += " << dtype_name(xtype);
    }
  }
}

// 512 gradients of 1.0: fp32 accumulation gives 512; bf16 sticks at 256, where adding 1 rounds back.
TEST(ScaledAddKernel, P13_Bf16AccumulationLosesGradients) {
  const Tensor one = device_tensor({1.0}, {1}, Dtype::kBf16);
  const Tensor fp32 = device_tensor({0.0}, {1}, Dtype::kFp32), bf16 = device_tensor({0.0}, {1}, Dtype::kBf16);
  for (int i = 0; i < 512; ++i) {
    scaled_add(stream(), fp32, one, 1.0);
    scaled_add(stream(), bf16, one, 1.0);
  }
  EXPECT_EQ(values_of(fp32)[0], 512);
  EXPECT_EQ(values_of(bf16)[0], 256);
}

TEST(ScaleKernel, MultipliesAndZeroClearsWhateverWasThere) {
  for (const Dtype dtype : kFloatDtypes) {
    const Values y = rounded(random_values(kSeveralBlocks, 11), dtype);
    const Tensor t = device_tensor(y, {kSeveralBlocks}, dtype);
    scale(stream(), t, 0.3);
    Values expected(y);
    for (double& v : expected) v *= 0.3;
    EXPECT_LT(relative_error(values_of(t), expected), tolerance(dtype));
    const Tensor bad = device_tensor({std::nan(""), HUGE_VAL, -HUGE_VAL, 3}, {4}, dtype);
    scale(stream(), bad, 0);
    EXPECT_EQ(values_of(bad), Values(4, 0.0));
  }
}

TEST(CopyMatrixKernel, BetweenLeadingDimsKeepsBitsAndNeighbours) {
  for (const Dtype dtype : kFloatDtypes) {
    const Values from = rounded(random_values(5 * 13, 12), dtype);
    const Tensor source = device_tensor(from, {5, 13}, dtype), target = device_tensor(Values(5 * 9, 7.0), {5, 9}, dtype);
    copy_matrix(stream(), target.columns(1, 8), source.columns(6, 13));
    Values expected(5 * 9, 7.0);
    for (std::size_t r = 0; r < 5; ++r) {
      for (std::size_t c = 0; c < 7; ++c) expected[r * 9 + 1 + c] = from[r * 13 + 6 + c];
    }
    EXPECT_EQ(values_of(target), expected);
  }
  const Tensor nan = poisoned({2, 3}, Dtype::kBf16), copy = device_tensor(Values(6, 0.0), {2, 3}, Dtype::kBf16);
  copy_matrix(stream(), copy, nan);
  EXPECT_EQ(bits_of(copy), bits_of(nan));
  const Tensor ints = device_ints({1, -2, 3, 2147483647}, {2, 2}), int_copy = device_ints({0, 0, 0, 0}, {2, 2});
  copy_matrix(stream(), int_copy, ints);
  EXPECT_EQ(values_of(int_copy), values_of(ints));
}

TEST(ElementwiseKernels, TakeNoRows) {
  const Tensor none = poisoned({0, 8}, Dtype::kFp32), bias = device_tensor(Values(8, 1.0), {8}, Dtype::kFp32);
  add(stream(), none, none, none);
  add_matrix(stream(), none, poisoned({0, 8}, Dtype::kFp32));
  add_matrix(stream(), poisoned({3, 0}, Dtype::kFp32), poisoned({3, 0}, Dtype::kFp32));
  bias_forward(stream(), none, bias);
  convert(stream(), none, none);
  scaled_add(stream(), none, none, 2);
  scale(stream(), none, 2);
  scale(stream(), none, 0);
  copy_matrix(stream(), none, none);
  bias_backward(stream(), bias, none, true);
  EXPECT_EQ(values_of(bias), Values(8, 1.0));
  bias_backward(stream(), bias, none, false);
  EXPECT_EQ(values_of(bias), Values(8, 0.0));
}

TEST(ElementwiseKernels, WrongShapesAndDtypesAreRefused) {
  const Tensor a = poisoned({2, 3}, Dtype::kFp32), b = poisoned({3, 2}, Dtype::kFp32), c = poisoned({2, 3}, Dtype::kBf16),
               four = poisoned({4}, Dtype::kFp32), ints = device_ints({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_THROW(add(stream(), a, a, b), std::logic_error);
  EXPECT_THROW(add(stream(), c, a, a), std::logic_error);
  EXPECT_THROW(add(stream(), ints, ints, ints), std::logic_error);
  EXPECT_THROW(add_matrix(stream(), a, b), std::logic_error);
  EXPECT_THROW(add_matrix(stream(), a, c), std::logic_error);
  EXPECT_THROW(add_matrix(stream(), poisoned({1, 3}, Dtype::kFp32), a), std::logic_error);
  EXPECT_THROW(add_matrix(stream(), ints, device_ints({1, 2, 3, 4, 5, 6}, {2, 3})), std::logic_error);
  EXPECT_THROW(bias_forward(stream(), a, four), std::logic_error);
  EXPECT_THROW(bias_backward(stream(), four, a, false), std::logic_error);
  EXPECT_THROW(bias_backward(stream(), poisoned({3}, Dtype::kBf16), a, false), std::logic_error);
  EXPECT_THROW(convert(stream(), four, a), std::logic_error);
  EXPECT_THROW(convert(stream(), ints, a), std::logic_error);
  EXPECT_THROW(scaled_add(stream(), a, four, 1), std::logic_error);
  EXPECT_THROW(copy_matrix(stream(), a, c), std::logic_error);
  EXPECT_THROW(copy_matrix(stream(), a, b), std::logic_error);
  EXPECT_THROW(scale(stream(), poisoned({2, 4}, Dtype::kFp32).columns(0, 2), 1), std::logic_error);
}

}  // namespace
}  // namespace ref5d::testing
