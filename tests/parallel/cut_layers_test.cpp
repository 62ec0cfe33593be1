// How sizes are cut, and the cut layers by themselves.
#include <cmath>
#include <set>

#include "03_tensor_parallel/conjugates.h"
#include "03_tensor_parallel/parallel_linear.h"
#include "03_tensor_parallel/vocab_parallel.h"
#include "common/device/error.h"
#include "common/train/gather_parts.h"
#include "tests/support/tensor_parallel_testing.h"

namespace ref5d::testing {
namespace {

using tensor_parallel::Axis;
using tensor_parallel::Heads;
using tensor_parallel::heads_of;
using tensor_parallel::Range;
using tensor_parallel::share_of;

class CutLayers : public ParallelTest {
 protected:
  CutLayers() { ctx_.dtype = Dtype::kFp64; }
  [[nodiscard]] Tensor tensor(const std::vector<double>& values, const Shape& shape, Dtype dtype = Dtype::kFp64) {
    return Tensor::from_host(HostTensor::from_doubles(values, shape, dtype), dtype, MemoryCategory::kWorkspace, ctx_.stream);
  }
  const int n_ = world().size();
  Mesh mesh_{MeshSizes{.tp = n_}, ranks_from(0, n_)};
  Axis axis_{mesh_, {}};
  Context ctx_{device().compute()};
};

TEST_F(CutLayers, SharesAreContiguousAndDifferByOneAtMost) {
  for (std::int64_t n = 1; n < 40; ++n) {
    for (int ranks = 1; ranks <= n && ranks < 9; ++ranks) {
      std::int64_t at = 0;
      for (int r = 0; r < ranks; ++r) {
        const Range range = share_of(n, ranks, r);
        EXPECT_EQ(range.begin, at);
        EXPECT_TRUE(range.size() == n / ranks || range.size() == n / ranks + 1);
        at = range.end;
      }
      EXPECT_EQ(at, n);
    }
  }
}

// Every query head on one rank, with its kv head; and each rank that holds a kv head knows all others that do.
TEST_F(CutLayers, HeadsHaveTheirKvHeads) {
  for (std::int64_t kv_heads = 1; kv_heads <= 6; ++kv_heads) {
    for (std::int64_t group = 1; group <= 6; ++group) {
      const GptConfig c = with_heads(kv_heads * group, kv_heads);
      for (int ranks = 1; ranks <= c.heads; ++ranks) {
        std::vector<std::vector<int>> holders(static_cast<std::size_t>(kv_heads));
        for (int r = 0; r < ranks; ++r) {
          const Heads h = heads_of(c, ranks, r);
          for (std::int64_t q = 0; q < h.query.size(); ++q)
            EXPECT_EQ((q + h.offset) / group, (h.query.begin + q) / group - h.kv.begin);
          EXPECT_EQ((h.query.size() - 1 + h.offset) / group, h.kv.size() - 1);  // none that it does not need
          for (std::int64_t k = h.kv.begin; k < h.kv.end; ++k) holders[static_cast<std::size_t>(k)].push_back(r);
        }
        for (int r = 0; r < ranks; ++r) {
          const Heads h = heads_of(c, ranks, r);
          for (std::int64_t k = h.kv.begin; k < h.kv.end; ++k) {
            const Range known = h.holders[static_cast<std::size_t>(k - h.kv.begin)];
            EXPECT_EQ(ranks_from(static_cast<int>(known.begin), static_cast<int>(known.end)),
                      holders[static_cast<std::size_t>(k)]);
          }
        }
      }
    }
  }
}

TEST_F(CutLayers, WhatCannotBeCutIsRefused) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const GptConfig c = with_heads(6, 2);
    if (ranks <= 6) {
      EXPECT_NO_THROW(tensor_parallel::expect_cuttable(c, ranks));
    } else {
      EXPECT_THROW(tensor_parallel::expect_cuttable(c, ranks), InputError);
    }
  }
  GptConfig c = with_heads(6, 2);
  c.ffn = 2;
  EXPECT_THROW(tensor_parallel::expect_cuttable(c, 3), InputError);
  c = with_heads(6, 2);
  c.vocab = 2;
  EXPECT_THROW(tensor_parallel::expect_cuttable(c, 3), InputError);
}

// Three widths in one weight: cut over ranks and put together again, every element is where it was, and each rank has its
// heads.
TEST_F(CutLayers, P28_PackedWeightOfUnequalWidths) {
  const GptConfig c = with_heads(6, 2);
  const std::int64_t d = c.head_dim(), width = (c.heads + 2 * c.kv_heads) * d;
  std::vector<double> values;
  for (std::int64_t i = 0; i < width * 3; ++i) values.push_back(static_cast<double>(i));
  const HostTensor global = HostTensor::from_doubles(values, {width, 3}, Dtype::kFp64);
  for (int ranks = 1; ranks <= 6; ++ranks) {
    HostTensor again = HostTensor::from_doubles(std::vector<double>(values.size(), -1), global.shape, Dtype::kFp64);
    for (int r = 0; r < ranks; ++r) {
      const Heads h = heads_of(c, ranks, r);
      const Placement placement{.dim = 0, .segments = tensor_parallel::packed_segments(c, h)};
      const HostTensor part = cut(global, placement);
      EXPECT_EQ(part.shape[0], (h.query.size() + 2 * h.kv.size()) * d);
      const std::vector<double> rows = part.to_doubles();
      EXPECT_EQ(rows[0], static_cast<double>(h.query.begin * d * 3));
      EXPECT_EQ(rows[static_cast<std::size_t>(h.query.size() * d * 3)], static_cast<double>((c.heads + h.kv.begin) * d * 3));
      paste(again, part, placement);
    }
    EXPECT_EQ(again.to_doubles(), values) << ranks;
  }
}

// Zero input, bias 1: the output is 1 and not the number of ranks; its gradient is the sum over rows, on every rank.
TEST_F(CutLayers, P24_ARowParallelBiasIsAddedOnce) {
  const std::int64_t inputs = 2 * n_ + 1;
  for (const bool wrong : {false, true}) {
    const tensor_parallel::RowParallelLinear linear(
        Linear("w", inputs, 3, true, false, 0.1), tensor_parallel::segments_of(share_of(inputs, n_, axis_.rank())), n_, wrong);
    for (const auto& p : {linear.weight, linear.bias}) {
      materialise(*p, storage_of(Dtype::kFp64), ctx_.stream);
      p->begin_step(ctx_.stream, 1);
    }
    fill_constant(ctx_.stream, linear.bias->weight, 1.0);
    const Tensor x = Tensor::zeros({4, linear.in()}, Dtype::kFp64, MemoryCategory::kWorkspace, ctx_.stream);
    const Tensor y = tensor_parallel::all_reduce(axis_, ctx_, linear.multiply(ctx_, x), "test");
    linear.add_bias(ctx_, y);
    EXPECT_EQ(unlike(wrong ? n_ : 1, y.to_doubles(ctx_.stream)), "");
    WeightGrads work;
    ctx_.weight_grads = &work;
    linear.backward_bias(ctx_, tensor(std::vector<double>(12, 0.5), {4, 3}));
    work.run_all();
    EXPECT_EQ(unlike(2, linear.bias->gradient.to_doubles(ctx_.stream)), "");
    // Its input's gradient is the whole layer's, at this rank's inputs.
    const Linear whole("w", inputs, 3, true, false, 0.1);
    materialise(*whole.weight, storage_of(Dtype::kFp64), ctx_.stream);
    const Tensor dy = tensor({1, -2, 3, 4, 5, -6}, {2, 3}), dx = ctx_.activation({2, inputs});
    const Tensor own_dx = ctx_.activation({2, linear.in()});
    whole.backward_input(ctx_, dx, dy, false);
    linear.backward_input(ctx_, own_dx, dy, false);
    EXPECT_EQ(own_dx.to_doubles(ctx_.stream), tensor_parallel::own_columns(axis_, ctx_, dx).to_doubles(ctx_.stream));
  }
}

// Logits of 0 over 5 entries, which more ranks than one cannot share equally: ln 5, and not ln 6.
TEST_F(CutLayers, P25_NoPaddingInTheSoftmax) {
  if (n_ > 5) GTEST_SKIP() << "needs 1 to 5 ranks";
  const Range here = share_of(5, n_, axis_.rank());
  const Tensor logits = tensor(std::vector<double>(std::size_t(2 * here.size()), 0.0), {2, here.size()});
  const Tensor loss = ctx_.statistic({2});
  const Tensor labels = tensor({0, 4}, {2}, Dtype::kInt32);
  tensor_parallel::vocab_parallel_cross_entropy(axis_, ctx_, logits, loss, labels, here, 5, 1.0);
  EXPECT_EQ(unlike(std::log(5.0), loss.to_doubles(ctx_.stream), 1e-15), "");
  const std::vector<double> gradient = logits.to_doubles(ctx_.stream);
  for (std::int64_t row = 0; row < 2; ++row)
    for (std::int64_t i = 0; i < here.size(); ++i)
      EXPECT_NEAR(gradient[static_cast<std::size_t>(row * here.size() + i)], 0.2 - (here.begin + i == row * 4 ? 1 : 0), 1e-15);
}

// The label's logit is not where the greatest is.
TEST_F(CutLayers, P26_LargeLogitsOnOtherRanks) {
  if (n_ > 5) GTEST_SKIP() << "needs 1 to 5 ranks";
  const std::vector<double> all{1000, 999, 0, -1000, 998};
  const Range here = share_of(5, n_, axis_.rank());
  const Tensor logits = tensor({all.begin() + here.begin, all.begin() + here.end}, {1, here.size()});
  const Tensor loss = ctx_.statistic({1});
  tensor_parallel::vocab_parallel_cross_entropy(axis_, ctx_, logits, loss, tensor({1}, {1}, Dtype::kInt32), here, 5, 1.0);
  EXPECT_NEAR(loss.to_doubles(ctx_.stream)[0], 1.407606, 5e-7);
  const double sum = 1 + std::exp(-1.0) + std::exp(-2.0);
  const std::vector<double> expected{1 / sum, std::exp(-1.0) / sum - 1, 0, 0, std::exp(-2.0) / sum};
  const std::vector<double> gradient = logits.to_doubles(ctx_.stream);
  for (std::int64_t i = 0; i < here.size(); ++i)
    EXPECT_NEAR(gradient[std::size_t(i)], expected[std::size_t(here.begin + i)], 1e-15) << here.begin + i;
}

// Join and split are each other's inverse, also where shares differ and travel padded.
TEST_F(CutLayers, ColumnsJoinedAndSplit) {
  for (std::int64_t columns : {std::int64_t{n_}, std::int64_t{2 * n_ + 1}, std::int64_t{7 * n_}}) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < 3 * columns; ++i) values.push_back(static_cast<double>(i));
    const Tensor whole = tensor(values, {3, columns}), own = tensor_parallel::own_columns(axis_, ctx_, whole);
    EXPECT_EQ(own.dim(1), share_of(columns, n_, axis_.rank()).size());
    EXPECT_EQ(tensor_parallel::all_gather_columns(axis_, ctx_, own, columns, "test").to_doubles(ctx_.stream), values);
  }
}

// Each rank is in subgroups of the axis with its neighbours; sums go over exactly those. Two ranks may be in several together,
// so messages of each have a tag of their own.
TEST_F(CutLayers, SubgroupsOfAnAxis) {
  std::set<int> tags;
  std::size_t subgroups = 0;
  for (int begin = 0; begin < n_; ++begin) {
    for (int end = begin + 1; end <= n_; ++end) {
      if (axis_.rank() < begin || axis_.rank() >= end) {
        EXPECT_THROW((void)mesh_.subgroup("tp", begin, end), std::logic_error);
        continue;
      }
      const Tensor x = tensor({double(1 << axis_.rank())}, {1});
      mesh_.subgroup("tp", begin, end).all_reduce(ctx_.stream, x);
      tags.insert(mesh_.subgroup("tp", begin, end).group().tag);
      ++subgroups;
      EXPECT_EQ(x.to_doubles(ctx_.stream)[0], double((1 << end) - (1 << begin))) << begin << " to " << end;
    }
  }
  EXPECT_EQ(tags.size(), subgroups);
  EXPECT_THROW((void)mesh_.subgroup("tp", 0, n_ + 1), std::logic_error);
}

// An activation from parts: rows by replica, columns by rank, and shares of a sum.
TEST_F(CutLayers, ActivationsAreGatheredFromTheirParts) {
  const int rank = world().rank();
  const std::int64_t columns = 2 * n_ + 1;
  const Range own = share_of(columns, n_, rank);
  std::vector<double> mine;
  for (std::int64_t row = 0; row < 3; ++row)
    for (std::int64_t c = own.begin; c < own.end; ++c) mine.push_back(static_cast<double>(10 * row + c));
  const HostTensor part = HostTensor::from_doubles(mine, {3, own.size()}, Dtype::kFp32);
  const HostTensor whole =
      gather_activation(mesh_.everyone(), part, {.rows = {}, .columns = tensor_parallel::segments_of(own)});
  const HostTensor total = gather_activation(mesh_.everyone(), HostTensor::from_doubles({1, 2}, {1, 2}, Dtype::kFp32),
                                             {.rows = {}, .columns = {{0, 2}}, .partial = true});
  const HostTensor rows = gather_activation(mesh_.everyone(), HostTensor::from_doubles({double(rank)}, {1, 1}, Dtype::kFp32),
                                            {.rows = {{rank, rank + 1}}, .columns = {}});
  if (rank != 0) return;
  EXPECT_EQ(whole.shape, (Shape{3, columns}));
  for (std::int64_t row = 0; row < 3; ++row)
    for (std::int64_t c = 0; c < columns; ++c)
      EXPECT_EQ(whole.to_doubles()[std::size_t(row * columns + c)], double(10 * row + c));
  EXPECT_EQ(total.to_doubles(), (std::vector<double>{double(n_), 2.0 * n_}));
  for (int r = 0; r < n_; ++r) EXPECT_EQ(rows.to_doubles()[std::size_t(r)], r);
}

// Elements that several ranks hold, of parts that overlap in some of them only.
TEST_F(CutLayers, UnequalElementsAreCounted) {
  const int rank = world().rank();
  Parameter p("p", {n_ + 1, 2}, Init::kZero, 0, true);
  p.placement = {.dim = 0, .segments = {{rank, rank + 2}}};  // each row but the first and the last on two ranks
  materialise(p, storage_of(Dtype::kFp64), ctx_.stream);
  EXPECT_EQ(unequal_elements(world().everyone(), {&p}, ctx_.stream), 0);
  if (rank == n_ - 1) p.weight.copy_from(HostTensor::from_doubles({0, 1, 0, 1}, {2, 2}, Dtype::kFp64), ctx_.stream);
  const std::int64_t unequal = unequal_elements(world().everyone(), {&p}, ctx_.stream);
  EXPECT_EQ(unequal, rank == 0 && n_ > 1 ? 1 : 0);
}

}  // namespace
}  // namespace ref5d::testing
