// Sums, casts, copies, activations and the optimizer: kernels in which every element stands for itself.
#include <fmt/format.h>

#include "common/comm/reduce.h"
#include "common/kernels/adamw.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/gelu.h"
#include "common/kernels/grad_norm.h"
#include "common/kernels/swiglu.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16};

PreparedCase sums(CaseInputs& in, std::int64_t n) {
  const Tensor a = in.normal({n}), b = in.normal({n}), y = in.target({n}), scaled = in.normal({n});
  PreparedCase c;
  c.step("add", [=](Stream& s) { add(s, y, a, b); }, {a, b}, {y});
  c.step("scale", [=](Stream& s) { scale(s, scaled, 0.7); }, {scaled}, {scaled});
  c.output("y", y);
  c.output("scaled", scaled);
  for (const Dtype other : kDtypes) {
    const Tensor x = in.normal_in(other, {n}), to = in.normal({n});
    const std::string from = dtype_name(other);
    c.step("scaled_add_" + from, [=](Stream& s) { scaled_add(s, to, x, 0.7); }, {to, x}, {to});
    c.output("sum_" + from, to);
  }
  return c;
}

PreparedCase convert_case(CaseInputs& in, std::int64_t n) {
  const Tensor from = in.normal({n});
  PreparedCase c;
  for (const Dtype other : kDtypes) {
    const std::string name = std::string("to_") + dtype_name(other);
    const Tensor to = in.target_in(other, {n});
    c.step("convert_" + name, [=](Stream& s) { convert(s, to, from); }, {from}, {to});
    c.exact_output(name, to);
  }
  return c;
}

PreparedCase copy(CaseInputs& in, std::int64_t rows, std::int64_t columns) {
  const Tensor from = CaseInputs::inside(in.normal({rows, columns + 5})), to = in.target({rows, columns});
  PreparedCase c;
  c.step("copy_matrix", [=](Stream& s) { copy_matrix(s, to, from); }, {from}, {to});
  c.exact_output("to", to);
  return c;
}

PreparedCase add_to_matrix(CaseInputs& in, std::int64_t rows, std::int64_t columns) {
  const Tensor from = CaseInputs::inside(in.normal({rows, columns + 5})), to = in.normal({rows, columns});
  PreparedCase c;
  c.step("add_matrix", [=](Stream& s) { add_matrix(s, to, from); }, {to, from}, {to});
  c.output("to", to);
  return c;
}

// Four ranks, of which this is the third.
PreparedCase reduce(CaseInputs& in, std::int64_t n) {
  const Tensor own = in.normal({n}), received = in.normal({3, n}), sum = in.target({n}), most = in.target({n});
  PreparedCase c;
  c.step("reduce_sum", [=](Stream& s) { reduce_in_rank_order(s, sum, own, received, 2, ReduceOp::kSum); }, {own, received},
         {sum});
  c.step("reduce_max", [=](Stream& s) { reduce_in_rank_order(s, most, own, received, 2, ReduceOp::kMax); }, {own, received},
         {most});
  c.output("sum", sum);
  c.exact_output("max", most);
  return c;
}

PreparedCase gelu(CaseInputs& in, std::int64_t n) {
  const Tensor x = in.normal({n}), dy = in.normal({n}), y = in.target({n}), dx = in.target({n});
  PreparedCase c;
  c.step("gelu_forward", [=](Stream& s) { gelu_forward(s, y, x); }, {x}, {y});
  c.step("gelu_backward", [=](Stream& s) { gelu_backward(s, dx, dy, x); }, {dy, x}, {dx});
  c.output("y", y);
  c.output("dx", dx);
  return c;
}

PreparedCase swiglu(CaseInputs& in, std::int64_t n) {
  const Tensor gate = in.normal({n}), up = in.normal({n}), dy = in.normal({n}), y = in.target({n});
  const Tensor dgate = in.target({n}), dup = in.target({n}), silu = in.target({n}), unfused = in.target({n});
  PreparedCase c;
  c.step("swiglu_forward", [=](Stream& s) { swiglu_forward(s, y, gate, up); }, {gate, up}, {y});
  c.step("swiglu_backward", [=](Stream& s) { swiglu_backward(s, dgate, dup, dy, gate, up); }, {dy, gate, up}, {dgate, dup});
  c.step("swiglu_forward_unfused", [=](Stream& s) { swiglu_forward_unfused(s, unfused, silu, gate, up); }, {gate, silu, up},
         {silu, unfused});
  c.output("y", y);
  c.output("dgate", dgate);
  c.output("dup", dup);
  c.output("silu", silu);
  c.output("unfused", unfused);
  return c;
}

// bf16 weights have fp32 masters, and gradients of either dtype.
void adamw_step(CaseInputs& in, PreparedCase& c, std::int64_t n, const std::string& op, Dtype grad_dtype) {
  const bool masters = in.accumulator() != in.dtype();
  const Tensor weight = in.normal({n}), master = masters ? in.normal_in(in.accumulator(), {n}) : Tensor();
  const Tensor grad = in.normal_in(grad_dtype, {n}), m = in.normal_in(in.accumulator(), {n}, 0.1);
  const Tensor v = in.positive_in(in.accumulator(), {n}), scale = in.constants({0.25}, {1}, Dtype::kFp64);
  const auto run = [=](Stream& s) { adamw(s, weight, master, grad, m, v, scale, AdamwOptions(), 3); };
  // Weights that have masters are only written.
  if (masters) {
    c.step(op, run, {master, grad, m, v}, {weight, master, m, v});
    c.output(op + "_master", master);
  } else {
    c.step(op, run, {weight, grad, m, v}, {weight, m, v});
  }
  c.output(op + "_weight", weight);
  c.output(op + "_m", m);
  c.output(op + "_v", v);
}

PreparedCase adamw_case(CaseInputs& in, std::int64_t n) {
  PreparedCase c;
  adamw_step(in, c, n, "adamw", in.dtype());
  if (in.accumulator() != in.dtype()) adamw_step(in, c, n, "adamw_wide_grad", in.accumulator());
  return c;
}

PreparedCase grad_norm(CaseInputs& in, std::int64_t n) {
  const std::int64_t blocks = norm_blocks(n);
  const Tensor x = in.normal({n}), partials = in.target_in(Dtype::kFp64, {blocks});
  // The first half of the elements is every other stretch of 10 of the whole tensor.
  const Tensor part = in.normal({n / 20 * 10}), part_partials = in.positive_in(Dtype::kFp64, {blocks});
  const Runs runs{n / 20, 10, 0, 10, 0, 20};
  const Tensor given = in.positive_in(Dtype::kFp64, {300});
  const Tensor clip = in.target_in(Dtype::kFp64, {1}), norm = in.target_in(Dtype::kFp64, {1});
  PreparedCase c;
  c.step("sum_of_squares", [=](Stream& s) { sum_of_squares(s, partials, x); }, {x}, {partials});
  c.step("sum_of_squares_of_part", [=](Stream& s) { sum_of_squares_of_part(s, part_partials, part, runs, 0, 0.5, true); },
         {part, part_partials}, {part_partials});
  c.step("clip_scale", [=](Stream& s) { clip_scale(s, clip, norm, given, 1.5); }, {given}, {clip, norm});
  c.output("partials", partials);
  c.output("part_partials", part_partials);
  c.output("clip", clip);
  c.output("norm", norm);
  return c;
}

}  // namespace

void add_elementwise_cases(CaseList& list, CaseSize size) {
  const bool large = size == CaseSize::kLarge;
  const auto add = [&](const std::string& op, PreparedCase (*make)(CaseInputs&, std::int64_t),
                       const std::vector<std::int64_t>& sizes) {
    for (const std::int64_t n : sizes) add_case(list, fmt::format("{}/{}", op, n), [=](CaseInputs& in) { return make(in, n); });
  };
  constexpr std::int64_t kHidden = 16384 * 1024, kFfn = 16384 * 2816;
  using Sizes = std::vector<std::int64_t>;
  const Sizes small = {33, 700};  // less than two warps, and three blocks
  add("sums", sums, large ? Sizes{kHidden} : small);
  add("convert", convert_case, large ? Sizes{kHidden} : small);
  add("gelu", gelu, large ? Sizes{kFfn} : small);
  add("swiglu", swiglu, large ? Sizes{kFfn} : small);
  add("adamw", adamw_case, large ? Sizes{16 << 20} : small);
  add("reduce", reduce, large ? Sizes{16 << 20} : Sizes{33, 4811});
  add("grad_norm", grad_norm, large ? Sizes{16 << 20} : Sizes{33, 4811});  // one block of the norm, and two
  const std::vector<Shape> shapes = large ? std::vector<Shape>{{16384, 1024}} : std::vector<Shape>{{5, 33}, {3, 300}};
  for (const Shape& z : shapes) {
    add_case(list, fmt::format("copy_matrix/{}x{}", z[0], z[1]), [=](CaseInputs& in) { return copy(in, z[0], z[1]); });
    add_case(list, fmt::format("add_matrix/{}x{}", z[0], z[1]), [=](CaseInputs& in) { return add_to_matrix(in, z[0], z[1]); });
  }
}

}  // namespace ref5d
