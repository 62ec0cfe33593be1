// Placements: what of a tensor is here, and the whole from its parts.
#include "common/model/parameter.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/device/error.h"
#include "common/train/optimizer.h"
#include "tests/support/io_testing.h"
#include "tests/support/kernel_testing.h"

namespace ref5d::testing {
namespace {

// 1, 2, 3, ...: every element tells where it came from, and none looks like an element nobody wrote.
HostTensor counting(const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(product(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i + 1);
  return HostTensor::from_doubles(values, shape, Dtype::kFp64);
}

Placement along(int dim, std::vector<Segment> segments) { return {dim, std::move(segments), {}}; }

class Random {
 public:
  explicit Random(unsigned seed) : generator_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(high - low + 1));
  }
  // 0 and n, and parts - 1 places between them where n is cut unevenly; parts may be empty.
  std::vector<std::int64_t> cuts(std::int64_t n, std::int64_t parts) {
    std::vector<std::int64_t> at{0, n};
    for (std::int64_t i = 1; i < parts; ++i) at.push_back(between(0, n));
    std::sort(at.begin(), at.end());
    return at;
  }

 private:
  std::mt19937_64 generator_;
};

// Placements that share out a tensor: of a packed tensor each rank has an uneven piece of every pack, and of what is left to it
// `shards` ranks have an uneven flat range each.
std::vector<Placement> random_placements(Random& random, const Shape& shape) {
  const std::int64_t ranks = random.between(1, 3), packs = random.between(1, 3), shards = random.between(1, 3);
  std::vector<Placement> all(static_cast<std::size_t>(ranks));
  const int dim = static_cast<int>(random.between(-1, static_cast<std::int64_t>(shape.size()) - 1));
  if (dim < 0) {
    all.resize(1);
  } else {
    const auto pack_at = random.cuts(shape[static_cast<std::size_t>(dim)], packs);
    for (std::size_t p = 0; p + 1 < pack_at.size(); ++p) {
      const auto at = random.cuts(pack_at[p + 1] - pack_at[p], ranks);
      for (std::size_t r = 0; r < all.size(); ++r) {
        all[r].dim = dim;
        all[r].segments.push_back({pack_at[p] + at[r], pack_at[p] + at[r + 1]});
      }
    }
  }
  if (shards == 1) return all;
  std::vector<Placement> sharded;
  for (const Placement& p : all) {
    const auto at = random.cuts(product(local_shape(shape, p)), shards);
    for (std::size_t s = 0; s + 1 < at.size(); ++s) {
      sharded.push_back(p);
      sharded.back().flat_begin = at[s];
      sharded.back().flat_end = at[s + 1];
    }
  }
  return sharded;
}

// The elements of a part by the definition of a placement, one by one.
std::vector<double> elements_of_part(const Shape& shape, const Placement& placement) {
  std::vector<std::int64_t> indices;  // of the cut dim, in local order
  for (const Segment& s : placement.segments) {
    for (std::int64_t i = s.begin; i < s.end; ++i) indices.push_back(i);
  }
  const Shape local = local_shape(shape, placement);
  std::vector<double> elements;
  for (std::int64_t at = 0; at < product(local); ++at) {
    std::int64_t rest = at, global = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      const std::int64_t index = rest % local[d];
      rest /= local[d];
      const bool is_cut = static_cast<int>(d) == placement.dim;
      global += (is_cut ? indices[static_cast<std::size_t>(index)] : index) * stride;
      stride *= shape[d];
    }
    elements.push_back(static_cast<double>(global + 1));
  }
  const auto begin = elements.begin() + static_cast<std::ptrdiff_t>(placement.flat_begin);
  return {begin, placement.flat_end < 0 ? elements.end() : elements.begin() + static_cast<std::ptrdiff_t>(placement.flat_end)};
}

TEST(Placing, UnevenCutsPackedSegmentsAndFlatRangesRoundTrip) {
  Random random(3);
  for (int trial = 0; trial < 300; ++trial) {
    Shape shape(static_cast<std::size_t>(random.between(1, 3)));
    for (auto& size : shape) size = random.between(1, 9);
    const HostTensor global = counting(shape);
    HostTensor joined =
        HostTensor::from_doubles(std::vector<double>(static_cast<std::size_t>(product(shape))), shape, Dtype::kFp64);
    std::int64_t elements = 0;
    for (const Placement& placement : random_placements(random, shape)) {
      const HostTensor part = cut(global, placement);
      EXPECT_EQ(part.to_doubles(), elements_of_part(shape, placement)) << to_string(shape) << " dim " << placement.dim;
      elements += part.numel();
      paste(joined, part, placement);
    }
    EXPECT_EQ(elements, product(shape));
    EXPECT_EQ(joined.data, global.data) << to_string(shape);
  }
}

TEST(Placing, APartWithoutAFlatRangeKeepsItsDims) {
  EXPECT_EQ(cut(counting({4, 6}), along(1, {{2, 3}, {4, 6}})).shape, (Shape{4, 3}));
  EXPECT_EQ(cut(counting({4, 6}), {1, {{2, 3}, {4, 6}}, 5, 9}).shape, (Shape{4}));
  EXPECT_EQ(cut(counting({4, 6}), along(1, {{2, 2}})).numel(), 0);
}

TEST(Placing, ARangeOutsideOfThePartIsAnError) {
  const HostTensor global = counting({4, 6});
  HostTensor target = global;
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 13}, {-1, 4}, {5, 4}, {13, -1}}) {
    const Placement placement{0, {{0, 2}}, begin, end};
    EXPECT_THROW((void)cut(global, placement), std::logic_error) << begin << " " << end;
    EXPECT_THROW(paste(target, global, placement), std::logic_error);
  }
  EXPECT_THROW(paste(target, global, along(0, {{0, 2}})), std::logic_error) << "too many elements";
}

StorageOptions in(Dtype dtype) {
  StorageOptions storage;
  storage.dtype = dtype;
  return storage;
}

TEST(Placing, TheGlobalTensorNeedsAGatherOnlyWhereSomeOfItIsElsewhere) {
  // All of it is here: uncut, held by every rank of an axis, in another order, or in one flat range.
  for (const Placement& placement :
       {Placement{}, along(0, {{0, 4, 8}}), along(1, {{4, 6}, {0, 4}}), Placement{-1, {}, 0, 24}}) {
    Parameter whole("w", {4, 6}, Init::kNormal, 0.02, true), p("w", {4, 6}, Init::kNormal, 0.02, true);
    p.placement = placement;
    for (Parameter* each : {&whole, &p}) materialise(*each, in(Dtype::kFp32), stream());
    const HostTensor global = gather_global(p, p.weight, stream());
    EXPECT_EQ(global.shape, (Shape{4, 6}));
    EXPECT_EQ(global.data, whole.weight.to_host(stream()).data) << placement.dim;
    int calls = 0;
    (void)gather_global(p, p.weight, stream(), [&](const Parameter&, const HostTensor&) { return ++calls, global; });
    const bool cut_somewhere = placement.dim >= 0 || placement.flat_end >= 0;
    EXPECT_EQ(calls, cut_somewhere ? 1 : 0) << "other ranks may hold nothing, and wait for this one";
  }
  for (const Placement& placement : {along(1, {{0, 5}}), Placement{-1, {}, 0, 23}, Placement{0, {{0, 2}}, 3, 3}}) {
    Parameter p("model.w", {4, 6}, Init::kNormal, 0.02, true);
    p.placement = placement;
    materialise(p, in(Dtype::kFp32), stream());
    const std::string error = error_of<std::logic_error>([&] { (void)gather_global(p, p.weight, stream()); });
    expect_contains(error, "model.w is cut");
    const HostTensor expected = counting({4, 6});
    const HostTensor global = gather_global(p, p.weight, stream(), [&](const Parameter& which, const HostTensor& part) {
      EXPECT_EQ(&which, &p);
      EXPECT_EQ(part.numel(), cut(expected, p.placement).numel()) << "the flat range only, although all of the weight is here";
      return expected;
    });
    EXPECT_EQ(global.data, expected.data);
  }
}

TEST(Placing, TheHeldPartIsTheFlatRangeOfAWholeTensorOrATensorOfTheRange) {
  Parameter p("w", {4, 6}, Init::kNormal, 0.02, true);
  p.placement = {0, {{1, 3}}, 5, 9};
  materialise(p, in(Dtype::kFp64), stream());
  const std::vector<double> all = values_of(p.weight), part = values_of(held_part(p, p.weight));
  EXPECT_EQ(part, std::vector<double>(all.begin() + 5, all.begin() + 9));
  const Tensor four = poisoned({4}, Dtype::kFp64);
  EXPECT_EQ(held_part(p, four).raw(), four.raw());
  EXPECT_FALSE(held_part(p, Tensor()));
  expect_contains(error_of<std::logic_error>([&] { (void)held_part(p, poisoned({5}, Dtype::kFp64)); }), "w has 5 elements");
}

// A weight that is whole beside a master of the flat range alone: both load from the same global tensor.
TEST(Placing, LoadingFillsWhatEachTensorHolds) {
  const HostTensor global = HostTensor::from_doubles(random_values(24, 8), {4, 6}, Dtype::kFp64);
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    Parameter plain("w", {4, 6}, Init::kZero, 0, true), sharded("w", {4, 6}, Init::kZero, 0, true);
    plain.placement = sharded.placement = along(1, {{0, 1}, {3, 6}});
    for (Parameter* p : {&plain, &sharded}) materialise(*p, in(dtype), stream());
    sharded.placement.flat_begin = 3;
    sharded.placement.flat_end = 10;
    if (dtype == Dtype::kBf16) sharded.master = Tensor::zeros({7}, Dtype::kFp32, MemoryCategory::kMaster, stream());
    for (Parameter* p : {&plain, &sharded}) load_weight(*p, global, stream());
    EXPECT_EQ(values_of(sharded.weight), values_of(plain.weight)) << dtype_name(dtype);
    EXPECT_EQ(values_of(plain.weight),
              rounded(rounded(cut(global, plain.placement).to_doubles(), accumulator_of(dtype)), dtype));
    if (dtype != Dtype::kBf16) continue;
    const std::vector<double> all = values_of(plain.master);
    EXPECT_EQ(values_of(sharded.master), std::vector<double>(all.begin() + 3, all.begin() + 10));
  }
  Parameter p("w", {6, 4}, Init::kZero, 0, true);
  materialise(p, in(Dtype::kFp32), stream());
  EXPECT_THROW(load_weight(p, global, stream()), InputError);
}

// The partials of one parameter, cut so; gradients are small integers, so that every sum is exact.
std::vector<double> partials_of(const Shape& shape, const Placement& placement) {
  Parameter p("w", shape, Init::kZero, 0, true);
  p.placement = placement;
  materialise(p, in(Dtype::kFp32), stream());
  std::vector<double> values = counting(shape).to_doubles();
  for (double& v : values) v = static_cast<double>(static_cast<std::int64_t>(v * 7) % 13) - 6;
  load_part(p, p.gradient, HostTensor::from_doubles(values, shape, Dtype::kFp32), stream());
  std::vector<double> partials;
  OptimizerOptions options;
  options.reduce_partials = [&](Stream&, const std::vector<OptimizerState>& states, const Tensor& all) {
    EXPECT_EQ(states.size(), 1u);
    EXPECT_EQ(states[0].partials.raw(), all.raw());
    partials = values_of(all);
  };
  Optimizer optimizer({&p}, options, stream());
  optimizer.step(stream());
  return partials;
}

void add(std::vector<double>& sum, const std::vector<double>& more) {
  ASSERT_EQ(sum.size(), more.size()) << "as many partials on every rank";
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

TEST(GradientNorm, PartialsOfShardsSumToThoseOfTheWhole) {
  Random random(5);
  for (int trial = 0; trial < 60; ++trial) {
    Shape shape(static_cast<std::size_t>(random.between(1, 3)));
    for (auto& size : shape) size = random.between(1, shape.size() == 1 ? 20000 : shape.size() == 2 ? 200 : 40);
    const std::vector<double> whole = partials_of(shape, {});
    std::vector<double> sum(whole.size());
    for (const Placement& placement : random_placements(random, shape)) add(sum, partials_of(shape, placement));
    EXPECT_EQ(sum, whole) << to_string(shape);
  }
}

// Four ranks share q evenly; two hold each half of k and v, and all hold the last rows.
TEST(GradientNorm, WhatSeveralRanksHoldCountsOnce) {
  const Shape shape{16 + 4 + 4 + 3, 400};
  std::vector<double> sum(partials_of(shape, {}).size());
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const std::int64_t kv = rank / 2 * 2;
    add(sum,
        partials_of(shape, along(0, {{rank * 4, rank * 4 + 4}, {16 + kv, 18 + kv, 2}, {20 + kv, 22 + kv, 2}, {24, 27, 4}})));
  }
  EXPECT_EQ(sum, partials_of(shape, {}));
}

TEST(UndefinedTensor, HasNoElementsAndNoBytes) {
  EXPECT_EQ(Tensor().numel(), 0);
  EXPECT_EQ(Tensor().bytes(), 0u);
  const Tensor scalar = Tensor::zeros({}, Dtype::kFp64, MemoryCategory::kWorkspace, stream());
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.bytes(), 8u);
}

}  // namespace
}  // namespace ref5d::testing
