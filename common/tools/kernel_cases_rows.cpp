// Norms, the softmax cross-entropy, biases and the rotary embedding: kernels with a block per row.
#include <fmt/format.h>

#include <memory>

#include "common/kernels/cross_entropy.h"
#include "common/kernels/cross_entropy_parts.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/layernorm.h"
#include "common/kernels/rmsnorm.h"
#include "common/kernels/rope.h"
#include "common/tensor/ignore_label.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

constexpr double kEps = 1e-5;

// `accumulate`: gradients are added to what is there, and those of parameters are in the accumulator's dtype.
struct RowSize {
  std::int64_t rows, columns;
  bool accumulate;
  [[nodiscard]] std::string name() const { return fmt::format("{}x{}", rows, columns); }
  [[nodiscard]] Shape shape() const { return {rows, columns}; }
};

// 65 rows make two partial sums over rows; 300 columns are more than a block has threads.
std::vector<RowSize> row_sizes(CaseSize size) {
  if (size == CaseSize::kLarge) return {{16384, 1024, false}};
  return {{65, 33, false}, {3, 300, true}};
}

// Where a gradient goes.
Tensor gradient(CaseInputs& in, const Shape& shape, bool accumulate, bool of_parameter) {
  const Dtype dtype = accumulate && of_parameter ? in.accumulator() : in.dtype();
  return accumulate ? in.normal_in(dtype, shape) : in.target_in(dtype, shape);
}

PreparedCase rmsnorm(CaseInputs& in, const RowSize& z) {
  const Tensor x = in.normal(z.shape()), w = in.normal({z.columns}), dy = in.normal(z.shape());
  const Tensor y = in.target(z.shape()), rstd = in.target_in(in.accumulator(), {z.rows});
  const Tensor given_rstd = in.positive_in(in.accumulator(), {z.rows});
  const Tensor dx = gradient(in, z.shape(), z.accumulate, false), dw = gradient(in, {z.columns}, z.accumulate, true);
  PreparedCase c;
  c.step("rmsnorm_forward", [=](Stream& s) { rmsnorm_forward(s, y, rstd, x, w, kEps); }, {x, w}, {y, rstd});
  c.step("rmsnorm_backward", [=](Stream& s) { rmsnorm_backward(s, dx, dw, dy, x, given_rstd, w, z.accumulate, z.accumulate); },
         {dy, x, given_rstd, w}, {dx, dw});
  c.output("y", y);
  c.output("rstd", rstd);
  c.output("dx", dx);
  c.output("dw", dw);
  return c;
}

PreparedCase rmsnorm_unfused(CaseInputs& in, const RowSize& z) {
  const Tensor x = in.normal(z.shape()), w = in.normal({z.columns}), y = in.target(z.shape());
  const Tensor squares = in.target(z.shape()), normalised = in.target(z.shape());
  const Tensor rstd = in.target_in(in.accumulator(), {z.rows});
  PreparedCase c;
  c.step("rmsnorm_forward_unfused", [=](Stream& s) { rmsnorm_forward_unfused(s, y, rstd, squares, normalised, x, w, kEps); },
         {x, x, w, squares, normalised, rstd}, {y, rstd, squares, normalised});
  c.output("y", y);
  c.output("rstd", rstd);
  c.output("squares", squares);
  c.output("normalised", normalised);
  return c;
}

PreparedCase layernorm(CaseInputs& in, const RowSize& z) {
  const Tensor x = in.normal(z.shape()), w = in.normal({z.columns}), b = in.normal({z.columns}), dy = in.normal(z.shape());
  const Tensor y = in.target(z.shape());
  const Tensor mean = in.target_in(in.accumulator(), {z.rows}), rstd = in.target_in(in.accumulator(), {z.rows});
  const Tensor given_mean = in.normal_in(in.accumulator(), {z.rows}, 0.1);
  const Tensor given_rstd = in.positive_in(in.accumulator(), {z.rows});
  const Tensor dx = gradient(in, z.shape(), z.accumulate, false);
  const Tensor dw = gradient(in, {z.columns}, z.accumulate, true), db = gradient(in, {z.columns}, z.accumulate, true);
  PreparedCase c;
  c.step("layernorm_forward", [=](Stream& s) { layernorm_forward(s, y, mean, rstd, x, w, b, kEps); }, {x, w, b},
         {y, mean, rstd});
  c.step("layernorm_backward",
         [=](Stream& s) {
           layernorm_backward(s, dx, dw, db, dy, x, given_mean, given_rstd, w, z.accumulate, z.accumulate, z.accumulate);
         },
         {dy, x, given_mean, given_rstd, w}, {dx, dw, db});
  c.output("y", y);
  c.output("mean", mean);
  c.output("rstd", rstd);
  c.output("dx", dx);
  c.output("dw", dw);
  c.output("db", db);
  return c;
}

// Every third label is ignored.
Tensor labels(CaseInputs& in, const RowSize& z) {
  std::vector<double> values;
  for (std::int64_t row = 0; row < z.rows; ++row)
    values.push_back(row % 3 == 1 ? kIgnoreLabel : static_cast<double>(row * 31 % z.columns));
  return in.constants(values, {z.rows}, Dtype::kInt32);
}

PreparedCase cross_entropy_case(CaseInputs& in, const RowSize& z) {
  const double scale = 1.0 / 7;
  const Tensor label = labels(in, z), logits = in.normal(z.shape(), 3), in_place = in.normal(z.shape(), 3);
  const auto losses = [&] { return in.target_in(in.accumulator(), {z.rows}); };
  const Tensor loss = losses(), loss_alone = losses(), loss_unfused = losses();
  const Tensor dlogits = in.target(z.shape()), probabilities = in.target(z.shape());
  const Tensor given_loss = in.positive_in(in.accumulator(), {z.rows}), total = in.positive_in(Dtype::kFp64, {1});
  PreparedCase c;
  c.step("cross_entropy", [=](Stream& s) { cross_entropy(s, in_place, loss, label, scale); }, {in_place, label},
         {in_place, loss});
  c.step("cross_entropy_loss", [=](Stream& s) { cross_entropy_loss(s, loss_alone, logits, label); }, {logits, label},
         {loss_alone});
  c.step("cross_entropy_unfused",
         [=](Stream& s) { cross_entropy_unfused(s, dlogits, probabilities, loss_unfused, logits, label, scale); },
         {logits, probabilities, label, label}, {probabilities, dlogits, loss_unfused});
  c.step("add_loss", [=](Stream& s) { add_loss(s, total, given_loss); }, {given_loss, total}, {total});
  c.output("dlogits", in_place);
  c.output("loss", loss);
  c.output("loss_alone", loss_alone);
  c.output("probabilities", probabilities);
  c.output("dlogits_unfused", dlogits);
  c.output("loss_unfused", loss_unfused, in.dtype());  // of rounded probabilities
  c.output("total", total);
  return c;
}

// A part of a vocabulary of three parts: of the labels some are before it, some in it, some behind it.
PreparedCase cross_entropy_parts_case(CaseInputs& in, const RowSize& z) {
  const double scale = 1.0 / 7;
  const std::int64_t first = z.columns - 1, vocab = 3 * z.columns;
  const Tensor label = labels(in, {z.rows, vocab, false});
  const Tensor logits = in.normal(z.shape()), in_place = in.normal(z.shape());
  const auto statistics = [&](const Shape& shape) { return in.target_in(in.accumulator(), shape); };
  const Tensor greatest = statistics({z.rows}), sums = statistics({2, z.rows}), loss = statistics({z.rows});
  // Of all parts; the kernels take any.
  const Tensor given_greatest = in.positive_in(in.accumulator(), {z.rows});
  const Tensor given_sums = in.positive_in(in.accumulator(), {2, z.rows});
  PreparedCase c;
  c.step("cross_entropy_part_max", [=](Stream& s) { cross_entropy_part_max(s, greatest, logits); }, {logits}, {greatest});
  c.step("cross_entropy_part_sums",
         [=](Stream& s) { cross_entropy_part_sums(s, sums, logits, given_greatest, label, first, vocab); },
         {logits, given_greatest, label}, {sums});
  c.step(
      "cross_entropy_from_parts",
      [=](Stream& s) { cross_entropy_from_parts(s, in_place, loss, given_greatest, given_sums, label, first, vocab, scale); },
      {in_place, given_greatest, given_sums, label}, {in_place, loss});
  c.exact_output("greatest", greatest);
  c.output("sums", sums);
  c.output("dlogits", in_place);
  c.output("loss", loss);
  return c;
}

PreparedCase bias(CaseInputs& in, const RowSize& z) {
  const Shape wide{z.rows, z.columns + 5};
  const Tensor y = CaseInputs::inside(in.normal(wide)), dy = CaseInputs::inside(in.normal(wide));
  const Tensor b = in.normal({z.columns}), db = gradient(in, {z.columns}, z.accumulate, true);
  PreparedCase c;
  c.step("bias_forward", [=](Stream& s) { bias_forward(s, y, b); }, {y, b}, {y});
  c.step("bias_backward", [=](Stream& s) { bias_backward(s, db, dy, z.accumulate); }, {dy}, {db});
  c.output("y", y);
  c.output("db", db);
  return c;
}

struct RopeSize {
  std::int64_t tokens, heads, head_dim;
  [[nodiscard]] std::string name() const { return fmt::format("{}x{}x{}", tokens, heads, head_dim); }
};

PreparedCase rope_case(CaseInputs& in, const RopeSize& z) {
  const Shape shape{z.tokens, z.heads * z.head_dim}, half{z.tokens, z.head_dim / 2};
  const Tensor order = in.integers({z.tokens}, 50, 90), start = in.integers({z.tokens}, 0, 50);
  // Not those of angles: the product is all that is compared, and numbers of one's own do not depend on a library's cosine.
  const RopeTable given{in.normal_in(in.accumulator(), half), in.normal_in(in.accumulator(), half)};
  const Tensor x = CaseInputs::inside(in.normal({z.tokens, shape[1] + 5})), dy = in.normal(shape);
  const auto made = std::make_shared<RopeTable>();
  const Dtype dtype = in.dtype();
  PreparedCase c;
  c.step("make_rope_table", [=](Stream& s) { *made = make_rope_table(s, order, start, z.head_dim, 10000, dtype); },
         {order, start}, {given.cos, given.sin});
  c.step("rope", [=](Stream& s) { rope(s, x, given, z.heads, false); }, {x, given.cos, given.sin}, {x});
  c.step("rope_inverse", [=](Stream& s) { rope(s, dy, given, z.heads, true); }, {dy, given.cos, given.sin}, {dy});
  c.made_output(
      "cos", [=] { return made->cos; }, in.accumulator());
  c.made_output(
      "sin", [=] { return made->sin; }, in.accumulator());
  c.output("y", x);
  c.output("dx", dy);
  return c;
}

}  // namespace

void add_row_cases(CaseList& list, CaseSize size) {
  const bool large = size == CaseSize::kLarge;
  const auto add = [&](const std::string& op, PreparedCase (*make)(CaseInputs&, const RowSize&),
                       const std::vector<RowSize>& sizes) {
    for (const RowSize& z : sizes) add_case(list, op + "/" + z.name(), [=](CaseInputs& in) { return make(in, z); });
  };
  add("rmsnorm", rmsnorm, row_sizes(size));
  add("rmsnorm_unfused", rmsnorm_unfused, row_sizes(size));
  add("layernorm", layernorm, row_sizes(size));
  add("cross_entropy", cross_entropy_case,
      large ? std::vector<RowSize>{{1024, 32768, false}}
            : std::vector<RowSize>{{7, 33, false}, {4, 300, false}, {261, 5, false}});
  add("cross_entropy_parts", cross_entropy_parts_case,
      large ? std::vector<RowSize>{{1024, 16384, false}} : std::vector<RowSize>{{7, 33, false}, {4, 300, false}});
  add("bias", bias, row_sizes(size));
  // Half a head of 5 channels, and of more than a block has threads.
  for (const RopeSize& z : large ? std::vector<RopeSize>{{16384, 16, 64}} : std::vector<RopeSize>{{7, 3, 10}, {2, 2, 520}})
    add_case(list, "rope/" + z.name(), [=](CaseInputs& in) { return rope_case(in, z); });
}

}  // namespace ref5d
