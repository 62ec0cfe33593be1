// Two linear layers with GELU between them, y = gelu(x W1^T) W2^T, cut in every order: what each has to send.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "03_tensor_parallel/conjugates.h"
#include "03_tensor_parallel/experiments.h"
#include "03_tensor_parallel/parallel_linear.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/gelu.h"
#include "common/kernels/random.h"
#include "common/verify/compare.h"
#include "common/verify/table.h"

namespace ref5d::tensor_parallel {

namespace {

struct Sizes {
  std::int64_t T, H, F;
};
struct Result {
  Tensor y, dx;
};

Tensor gelu(Context& ctx, const Tensor& u) {
  Tensor a = ctx.activation(u.shape());
  gelu_forward(ctx.stream, a, u);
  return a;
}
Tensor gelu_gradient(Context& ctx, const Tensor& da, const Tensor& u) {
  Tensor du = ctx.activation(u.shape());
  gelu_backward(ctx.stream, du, da, u);
  return du;
}
Tensor input_gradient(Context& ctx, const Linear& linear, const Tensor& dy) {
  Tensor dx = ctx.activation({dy.dim(0), linear.in()});
  linear.backward_input(ctx, dx, dy, false);
  return dx;
}

// What all orders share: the layers, drawn by name and place, so that every order has the same weights.
class Pair {
 public:
  Pair(Experiment& e, const Sizes& sizes) : axis(e.mesh, {}), ctx(device().compute()), sizes_(sizes) {
    ctx.dtype = Dtype::kFp64;  // a proof, whatever the run's dtype
  }
  [[nodiscard]] Linear up() const { return Linear("up", sizes_.H, sizes_.F, false, false, 0.2); }
  [[nodiscard]] Linear down() const { return Linear("down", sizes_.F, sizes_.H, false, false, 0.2); }
  [[nodiscard]] std::vector<Segment> share(std::int64_t n) const { return segments_of(share_of(n, axis.size(), axis.rank())); }
  [[nodiscard]] ColumnParallelLinear column(const Linear& l, std::int64_t outputs) {
    return ready(ColumnParallelLinear(l, share(outputs)));
  }
  [[nodiscard]] RowParallelLinear row(const Linear& l, std::int64_t inputs) {
    return ready(RowParallelLinear(l, share(inputs), axis.size()));
  }
  template <typename L>
  [[nodiscard]] L ready(L linear) {
    StorageOptions storage;
    storage.dtype = ctx.dtype;
    storage.gradients = false;
    materialise(*linear.weight, storage, ctx.stream);
    return linear;
  }

  Axis axis;
  Context ctx;

 private:
  Sizes sizes_;
};

Result on_one_device(Pair& p, const Sizes&, const Tensor& x, const Tensor& dy) {
  const Linear up = p.ready(p.up()), down = p.ready(p.down());
  const Tensor u = up.multiply(p.ctx, x);
  const Tensor y = down.multiply(p.ctx, gelu(p.ctx, u));
  return {y, input_gradient(p.ctx, up, gelu_gradient(p.ctx, input_gradient(p.ctx, down, dy), u))};
}

// The real way: a rank's columns of u are what its rows of W2 need, so nothing travels between the two.
Result column_row(Pair& p, const Sizes& s, const Tensor& x, const Tensor& dy) {
  const auto up = p.column(p.up(), s.F);
  const auto down = p.row(p.down(), s.F);
  const Tensor u = up.multiply(p.ctx, x);
  const Tensor y = all_reduce(p.axis, p.ctx, down.multiply(p.ctx, gelu(p.ctx, u)), "forward");
  const Tensor du = gelu_gradient(p.ctx, input_gradient(p.ctx, down, dy), u);
  return {y, all_reduce(p.axis, p.ctx, input_gradient(p.ctx, up, du), "backward")};
}

// Each layer's output is joined, since the next one needs a whole input.
Result column_column(Pair& p, const Sizes& s, const Tensor& x, const Tensor& dy) {
  const auto up = p.column(p.up(), s.F), down = p.column(p.down(), s.H);
  const Tensor u = all_gather_columns(p.axis, p.ctx, up.multiply(p.ctx, x), s.F, "forward");
  const Tensor y = all_gather_columns(p.axis, p.ctx, down.multiply(p.ctx, gelu(p.ctx, u)), s.H, "forward");
  const Tensor da = all_reduce(p.axis, p.ctx, input_gradient(p.ctx, down, own_columns(p.axis, p.ctx, dy)), "backward");
  const Tensor du = own_columns(p.axis, p.ctx, gelu_gradient(p.ctx, da, u));
  return {y, all_reduce(p.axis, p.ctx, input_gradient(p.ctx, up, du), "backward")};
}

// A term of u is not u: gelu(a) + gelu(b) is not gelu(a + b). So u is summed first, and every rank computes all of it.
Result row_column(Pair& p, const Sizes& s, const Tensor& x, const Tensor& dy) {
  const auto up = p.row(p.up(), s.H);
  const auto down = p.column(p.down(), s.H);
  const Tensor u = all_reduce(p.axis, p.ctx, up.multiply(p.ctx, own_columns(p.axis, p.ctx, x)), "forward");
  const Tensor y = all_gather_columns(p.axis, p.ctx, down.multiply(p.ctx, gelu(p.ctx, u)), s.H, "forward");
  const Tensor da = all_reduce(p.axis, p.ctx, input_gradient(p.ctx, down, own_columns(p.axis, p.ctx, dy)), "backward");
  const Tensor dx = input_gradient(p.ctx, up, gelu_gradient(p.ctx, da, u));
  return {y, all_gather_columns(p.axis, p.ctx, dx, s.H, "backward")};
}

// The first layer as in row, column; the second needs a rank's columns of gelu(u) only, and of them makes a term of y.
Result row_row(Pair& p, const Sizes& s, const Tensor& x, const Tensor& dy) {
  const auto up = p.row(p.up(), s.H), down = p.row(p.down(), s.F);
  const Tensor u = all_reduce(p.axis, p.ctx, up.multiply(p.ctx, own_columns(p.axis, p.ctx, x)), "forward");
  const Tensor own_u = own_columns(p.axis, p.ctx, u);
  const Tensor y = all_reduce(p.axis, p.ctx, down.multiply(p.ctx, gelu(p.ctx, own_u)), "forward");
  const Tensor own_du = gelu_gradient(p.ctx, input_gradient(p.ctx, down, dy), own_u);
  const Tensor du = all_gather_columns(p.axis, p.ctx, own_du, s.F, "backward");
  return {y, all_gather_columns(p.axis, p.ctx, input_gradient(p.ctx, up, du), s.H, "backward")};
}

// And if it is not summed first.
Result row_column_of_terms(Pair& p, const Sizes& s, const Tensor& x, const Tensor& dy) {
  const auto up = p.row(p.up(), s.H);
  const auto down = p.ready(p.down());
  const Tensor u = up.multiply(p.ctx, own_columns(p.axis, p.ctx, x));
  return {all_reduce(p.axis, p.ctx, down.multiply(p.ctx, gelu(p.ctx, u)), "forward"), dy};
}

double relative_error(Context& ctx, const Tensor& a, const Tensor& b) {
  return tensor_error(a.to_doubles(ctx.stream), b.to_doubles(ctx.stream), 0).relative;
}

// Over N ranks, an all-reduce of n columns is 2 T n (N-1) elements sent by all, an all-gather T n (N-1), padding included.
struct Order {
  const char* name;
  Result (*run)(Pair&, const Sizes&, const Tensor& x, const Tensor& dy);
  std::int64_t calls;
  std::int64_t (*columns)(std::int64_t H, std::int64_t F, std::int64_t padded_H, std::int64_t padded_F);
};
constexpr std::array kOrders = {
    Order{"column, row", column_row, 2, [](std::int64_t H, std::int64_t, std::int64_t, std::int64_t) { return 4 * H; }},
    Order{"column, column", column_column, 4,
          [](std::int64_t H, std::int64_t F, std::int64_t pH, std::int64_t pF) { return pF + pH + 2 * F + 2 * H; }},
    Order{"row, column", row_column, 4,
          [](std::int64_t, std::int64_t F, std::int64_t pH, std::int64_t) { return 2 * F + pH + 2 * F + pH; }},
    Order{"row, row", row_row, 4,
          [](std::int64_t H, std::int64_t F, std::int64_t pH, std::int64_t pF) { return 2 * F + 2 * H + pF + pH; }}};

Tensor drawn(const Context& ctx, const Shape& shape, std::uint64_t key) {
  Tensor t = ctx.activation(shape);
  fill_normal(ctx.stream, t, {0, 0, shape[1]}, 1, key, 0.0, 1.0);
  return t;
}

std::int64_t padded(std::int64_t n, int ranks) { return (n + ranks - 1) / ranks * ranks; }

}  // namespace

void pairs_experiment(Experiment& e) {
  const GptConfig c = model_config(e.options);
  const Sizes s{e.options.micro_batch * c.seq, c.hidden, c.ffn};
  const int N = e.mesh["tp"].size();
  Pair pair(e, s);
  const Tensor x = drawn(pair.ctx, {s.T, s.H}, 1), dy = drawn(pair.ctx, {s.T, s.H}, 2);
  const Result truth = on_one_device(pair, s, x, dy);
  std::vector<std::vector<std::string>> table{{"cut", "calls", "sent per rank", "/ (T H e)", "error of y", "of dx"}};
  std::vector<TrafficCount> sent;
  const auto element = static_cast<std::int64_t>(dtype_size(pair.ctx.dtype));
  for (const Order& order : kOrders) {
    e.world.traffic().reset();
    const Result r = order.run(pair, s, x, dy);
    device().synchronize();
    sent.push_back(sent_by_axis(e));
    const double error_y = relative_error(pair.ctx, r.y, truth.y), error_dx = relative_error(pair.ctx, r.dx, truth.dx);
    if (!e.world.is_root()) continue;
    const std::string name = fmt::format("pairs, {}: ", order.name);
    const std::int64_t columns = order.columns(s.H, s.F, padded(s.H, N), padded(s.F, N));
    const double tolerance = least_tolerance(pair.ctx.dtype);
    e.report.claims.push_back(
        make_claim(name + "operations", static_cast<double>(order.calls), static_cast<double>(sent.back().calls)));
    if (transport_counts_wire())
      e.report.claims.push_back(make_claim(name + "sent by all ranks", static_cast<double>(s.T * columns * element * (N - 1)),
                                           static_cast<double>(sent.back().wire), 0, "bytes"));
    e.report.claims.push_back(make_claim(name + "y and dx within tolerance", 1,
                                         error_y <= tolerance && error_dx <= tolerance ? 1 : 0, 0, "",
                                         fmt::format("errors {:.1e}, {:.1e}", error_y, error_dx)));
    table.push_back(
        {order.name, fmt::format("{}", sent.back().calls), grouped_digits(sent.back().wire / N),
         fmt::format("{:.2f}", static_cast<double>(sent.back().wire) / N / static_cast<double>(s.T * s.H * element)),
         fmt::format("{:.1e}", error_y), fmt::format("{:.1e}", error_dx)});
  }
  const double wrong = relative_error(pair.ctx, row_column_of_terms(pair, s, x, dy).y, truth.y);
  if (!e.world.is_root()) return;
  if (N > 1)
    e.report.claims.push_back(make_claim("pairs: operations of column, row / of column, column", 0.5,
                                         static_cast<double>(sent[0].calls) / static_cast<double>(sent[1].calls)));
  if (e.prints())
    fmt::print(
        "\ngelu(x W1^T) W2^T, forward and backward, over {} ranks, T {} H {} F {}, {}\n{}GELU of the terms and not of "
        "their sum (row, column without its first sum): error of y {:.1e}\n",
        N, s.T, s.H, s.F, dtype_name(pair.ctx.dtype), format_table(table, "lrrrrr"), wrong);
}

}  // namespace ref5d::tensor_parallel
