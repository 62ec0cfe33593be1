// The loss from logits that are gathered on every rank, and from three numbers a token.
#include <fmt/format.h>

#include "03_tensor_parallel/conjugates.h"
#include "03_tensor_parallel/experiments.h"
#include "03_tensor_parallel/vocab_parallel.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/random.h"
#include "common/verify/table.h"

namespace ref5d::tensor_parallel {

namespace {

struct Outcome {
  double loss = 0;                // of all tokens
  std::int64_t sent = 0;          // by all ranks of the axis; on its rank 0
  std::int64_t logits_bytes = 0;  // of the largest array
};

}  // namespace

void loss_experiment(Experiment& e) {
  const GptConfig c = model_config(e.options);
  const std::int64_t T = e.options.micro_batch * c.seq, V = c.vocab;
  Axis axis(e.mesh, {});
  const int N = axis.size();
  const Range here = share_of(V, N, axis.rank());
  Context ctx(device().compute());
  ctx.dtype = e.options.dtype;
  std::vector<double> values;
  for (std::int64_t t = 0; t < T; ++t) values.push_back(static_cast<double>((t * 37 + 11) % V));
  const Tensor labels = Tensor::from_host(HostTensor::from_doubles(values, {T}, Dtype::kInt32), Dtype::kInt32,
                                          MemoryCategory::kWorkspace, ctx.stream);
  const auto own_logits = [&] {
    Tensor logits = ctx.activation({T, here.size()});
    fill_normal(ctx.stream, logits, {0, here.begin, V}, 1, 3, 0.0, 5.0);
    return logits;
  };
  const auto measure = [&](const auto& compute) {
    e.world.traffic().reset();
    const Tensor total = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, ctx.stream), loss = ctx.statistic({T});
    const std::int64_t bytes = compute(loss);
    add_loss(ctx.stream, total, loss);
    Outcome o{total.to_doubles(ctx.stream)[0], 0, bytes};
    o.sent = sent_by_axis(e).wire;
    return o;
  };
  const Outcome gathered = measure([&](const Tensor& loss) {
    const Tensor logits = all_gather_columns(axis, ctx, own_logits(), V, "gather");
    cross_entropy(ctx.stream, logits, loss, labels, 1.0);
    return static_cast<std::int64_t>(logits.bytes());
  });
  const Outcome parallel = measure([&](const Tensor& loss) {
    const Tensor logits = own_logits();
    vocab_parallel_cross_entropy(axis, ctx, logits, loss, labels, here, V, 1.0);
    return static_cast<std::int64_t>(logits.bytes());
  });
  if (!e.world.is_root()) return;
  const auto element = static_cast<std::int64_t>(dtype_size(ctx.dtype));
  const auto statistic = static_cast<std::int64_t>(dtype_size(accumulator_of(ctx.dtype)));
  const std::int64_t widest = share_of(V, N, 0).size();
  const auto claim = [&](const char* name, std::int64_t expected, std::int64_t measured) {
    e.report.claims.push_back(make_claim(name, static_cast<double>(expected), static_cast<double>(measured), 0, "bytes"));
  };
  if (transport_counts_wire()) {
    claim("loss from gathered logits: sent by all ranks", T * widest * N * element * (N - 1), gathered.sent);
    claim("loss from three numbers a token: sent by all ranks", 2 * 3 * T * statistic * (N - 1), parallel.sent);
  }
  e.report.claims.push_back(make_claim("loss: of the parallel way, of the gathered way", gathered.loss, parallel.loss,
                                       ctx.dtype == Dtype::kFp64 ? 1e-12 : 1e-5, "nats"));
  if (!e.prints()) return;
  std::vector<std::vector<std::string>> table{{"logits", "sent per rank", "largest array", "loss of all tokens"}};
  for (const auto& [name, o] : {std::pair{"gathered", gathered}, {"cut by vocabulary", parallel}})
    table.push_back({name, grouped_digits(o.sent / N), human_bytes(o.logits_bytes), fmt::format("{:.10g}", o.loss)});
  fmt::print("\nThe loss of {} tokens over {} entries on {} ranks, {}\n{}", T, V, N, dtype_name(ctx.dtype),
             format_table(table, "lrrr"));
}

}  // namespace ref5d::tensor_parallel
