// Matrix products: the library's, the hand-written tiled one, the one on tensor cores, and the copy that pads a single row.
#include <fmt/format.h>

#include <utility>

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
