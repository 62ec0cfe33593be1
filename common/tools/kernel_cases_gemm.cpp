// Matrix products: the library's, the hand-written tiled one, the one on tensor cores, and the copy that pads a single row.
#include <fmt/format.h>

#include <numeric>
#include <utility>
#include <vector>

#include "common/device/device.h"
#include "common/kernels/gemm.h"
#include "common/kernels/gemm_backend.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

struct GemmCaseSize {
  std::int64_t m, n, k;
  [[nodiscard]] std::string name() const { return fmt::format("{}x{}x{}", m, n, k); }
};

constexpr struct {
  Transpose a, b;
  const char* name;
} kTransposes[] = {{Transpose::kNo, Transpose::kNo, "nn"},
                   {Transpose::kNo, Transpose::kYes, "nt"},
                   {Transpose::kYes, Transpose::kNo, "tn"},
                   {Transpose::kYes, Transpose::kYes, "tt"}};

// A matrix, or its transpose, as columns of a wider one.
Tensor operand(CaseInputs& in, std::int64_t rows, std::int64_t columns, Transpose transpose) {
  if (transpose == Transpose::kYes) std::swap(rows, columns);
  return CaseInputs::inside(in.normal({rows, columns + 5}));
}

void add_product(CaseInputs& in, PreparedCase& c, GemmKind kind, const GemmCaseSize& z, int transposes, Dtype result,
                 double beta) {
  const auto& t = kTransposes[transposes];
  const Transpose ta = t.a, tb = t.b;
  const Tensor a = operand(in, z.m, z.k, ta), b = operand(in, z.k, z.n, tb);
  const Tensor product = beta == 0 ? in.target_in(result, {z.m, z.n}) : in.normal_in(result, {z.m, z.n});
  const std::string name = fmt::format("{}{}{}", t.name, result == in.dtype() ? "" : "_wide", beta == 0 ? "" : "_add");
  const auto flops = static_cast<double>(gemm_flops(z.m, z.n, z.k));
  c.step(
      "gemm_" + name, [=](Stream& s) { gemm(s, kind, ta, tb, 0.5, a, b, beta, product); }, {a, b}, {product}, flops);
  c.output(name, product);
}

// Every transpose overwrites; one adds to a result of the accumulator's dtype, as weight gradients do.
PreparedCase products(CaseInputs& in, GemmKind kind, const GemmCaseSize& z) {
  PreparedCase c;
  for (int t = 0; t < 4; ++t) add_product(in, c, kind, z, t, in.dtype(), 0);
  add_product(in, c, kind, z, 2, in.accumulator(), 0.25);
  if (in.accumulator() != in.dtype()) {
    for (int t = 0; t < 4; ++t) add_product(in, c, kind, z, t, in.accumulator(), 0);
  }
  return c;
}

// Experts of H x F with so many rows each: what they compute of x, of the results' gradient, and for their weights.
struct GroupSize {
  const char* name;
  std::vector<std::int64_t> rows;
  std::int64_t hidden, ffn;
};
PreparedCase grouped_products(CaseInputs& in, const GroupSize& z) {
  const std::int64_t all = std::accumulate(z.rows.begin(), z.rows.end(), std::int64_t{0});
  const auto experts = static_cast<std::int64_t>(z.rows.size());
  const Tensor x = CaseInputs::inside(in.normal({all, z.hidden + 5})), dy = in.normal({all, z.ffn});
  const Tensor weights = in.normal({experts * z.ffn, z.hidden}), y = in.target_in(in.dtype(), {all, z.ffn});
  const Tensor dx = in.normal({all, z.hidden}), dweights = in.normal_in(in.accumulator(), {experts * z.ffn, z.hidden});
  std::vector<GemmOperands> forward, backward, of_weights;
  for (std::int64_t e = 0, at = 0; e < experts; at += z.rows[static_cast<std::size_t>(e++)]) {
    const auto own = [&](const Tensor& t) { return t.rows(at, at + z.rows[static_cast<std::size_t>(e)]); };
    const auto of_expert = [&](const Tensor& t) { return t.rows(e * z.ffn, (e + 1) * z.ffn); };
    forward.push_back({own(x), of_expert(weights), own(y)});
    backward.push_back({own(dy), of_expert(weights), own(dx), 1.0});
    of_weights.push_back({own(dy), own(x), of_expert(dweights), e % 2 == 0 ? 1.0 : 0.0});
  }
  const auto flops = static_cast<double>(gemm_flops(all, z.hidden, z.ffn));
  PreparedCase c;
  const auto add = [&](const char* name, Transpose ta, Transpose tb, const std::vector<GemmOperands>& group,
                       std::initializer_list<Tensor> reads, const Tensor& result) {
    c.step(
        fmt::format("gemm_grouped_{}", name), [=](Stream& s) { gemm_grouped_hand(s, ta, tb, 1.0, group); }, reads, {result},
        flops);
    c.output(name, result);
  };
  add("forward", Transpose::kNo, Transpose::kYes, forward, {x, weights}, y);
  add("backward", Transpose::kNo, Transpose::kNo, backward, {dy, weights}, dx);
  add("weights", Transpose::kYes, Transpose::kNo, of_weights, {dy, x}, dweights);
  return c;
}

// Cut off on one side, padded on the other.
PreparedCase corner(CaseInputs& in, std::int64_t rows, std::int64_t columns) {
  const Tensor from = CaseInputs::inside(in.normal({rows, columns + 5}));
  PreparedCase c;
  for (const Dtype other : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    const Tensor padded = in.target_in(other, {rows + 2, columns - 1}), cut = in.target_in(other, {rows - 1, columns + 7});
    const std::string name = dtype_name(other);
    c.step("copy_corner_" + name,
           [=](Stream& s) {
             gemm_backend::copy_corner(s, padded, from);
             gemm_backend::copy_corner(s, cut, from);
           },
           {from, from}, {padded, cut});
    c.exact_output("padded_" + name, padded);
    c.exact_output("cut_" + name, cut);
  }
  return c;
}

}  // namespace

void add_gemm_cases(CaseList& list, CaseSize size) {
  const bool large = size == CaseSize::kLarge;
  using Sizes = std::vector<GemmCaseSize>;
  const auto add = [&](const std::string& op, GemmKind kind, const Sizes& sizes, std::initializer_list<Dtype> dtypes) {
    for (const GemmCaseSize& z : sizes) {
      for (const Dtype dtype : dtypes)
        list.push_back(
            {op + "/" + z.name(), dtype, kind == GemmKind::kBlas, [=](CaseInputs& in) { return products(in, kind, z); }});
    }
  };
  const auto all = {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16};
  const GemmCaseSize linear{2048, 1024, 1024};
  add("gemm", GemmKind::kBlas, large ? Sizes{linear} : Sizes{{70, 67, 19}, {1, 67, 37}}, all);
  add("gemm_hand", GemmKind::kHand, large ? Sizes{linear} : Sizes{{70, 67, 19}, {1, 5, 37}}, all);
  std::vector<std::int64_t> many(40, 1);  // more than one launch takes
  many[3] = 0;
  const std::vector<GroupSize> groups =
      large ? std::vector<GroupSize>{{"8_even", std::vector<std::int64_t>(8, 512), 1024, 512},
                                     {"8_uneven", {3000, 800, 200, 60, 20, 10, 6, 0}, 1024, 512}}
            : std::vector<GroupSize>{{"uneven", {0, 1, 70, 0, 5}, 19, 67}, {"many", many, 5, 3}};
  for (const GroupSize& z : groups)
    for (const Dtype dtype : all)
      list.push_back(
          {fmt::format("gemm_grouped/{}", z.name), dtype, false, [=](CaseInputs& in) { return grouped_products(in, z); }});
  // Where there are no tensor cores the tiled kernel gives the values to compare with; there is nothing to time there.
  const bool tensor_cores = Device::mode() == "cuda";
  if (tensor_cores || !large) {
    add("gemm_tensor_core", tensor_cores ? GemmKind::kTensorCore : GemmKind::kHand,
        large ? Sizes{linear} : Sizes{{133, 131, 37}}, {Dtype::kBf16});
  }
  const std::vector<Shape> shapes = large ? std::vector<Shape>{{16384, 1024}} : std::vector<Shape>{{5, 33}, {2, 300}};
  for (const Shape& z : shapes)
    add_case(list, fmt::format("gemm_corner/{}x{}", z[0], z[1]), [=](CaseInputs& in) { return corner(in, z[0], z[1]); });
}

}  // namespace ref5d
