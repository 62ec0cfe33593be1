// A kernel that does several steps at once reads its input once and writes its output once; step by step, every intermediate
// crosses memory.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "01_grad_accum/experiments.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/kernels/cross_entropy.h"
#include "common/kernels/rmsnorm.h"
#include "common/kernels/swiglu.h"
#include "common/verify/compare.h"

namespace ref5d::grad_accum {

namespace {

constexpr std::int64_t kRows = 2048, kHidden = 256, kFfn = 688, kVocab = 2048;

Tensor input(const Shape& shape, double phase) {
  std::vector<double> values(static_cast<std::size_t>(product(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.7 * static_cast<double>(i) + phase);
  return Tensor::from_host(HostTensor::from_doubles(values, shape, Dtype::kFp32), Dtype::kFp32, MemoryCategory::kWorkspace,
                           device().compute());
}
Tensor output(const Shape& shape) { return Tensor::empty(shape, Dtype::kFp32, MemoryCategory::kWorkspace, device().compute()); }

double median_ms(const std::function<void()>& work) {
  std::vector<double> ms;
  for (int i = 0; i < 11; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    device().compute().synchronize();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

// One way to compute an operation: what a call of it moves by the ledger, what it returns, and how long it takes.
struct Way {
  double bytes = 0, ms = 0;
  NamedValues results;
};

Way measure(const std::function<void()>& work, std::initializer_list<std::pair<const char*, const Tensor*>> results) {
  Way way;
  device().bytes().reset();
  work();
  way.bytes = static_cast<double>(device().bytes().total());
  for (const auto& [name, tensor] : results) way.results[name] = tensor->to_doubles(device().compute());
  way.ms = median_ms(work);
  return way;
}

// The expected ratio counts the large arrays; the small ones (weights, statistics, labels) are under 1%.
struct Operation {
  const char* name;
  double expected_ratio;
  Way fused, steps;
};

// fused: gate, up -> y.  step by step: gate -> silu; silu, up -> y
Operation swiglu() {
  Stream& s = device().compute();
  const Shape shape{kRows, kFfn};
  const Tensor gate = input(shape, 0), up = input(shape, 1), y = output(shape), silu = output(shape);
  return {"SwiGLU", 5.0 / 3.0, measure([&] { swiglu_forward(s, y, gate, up); }, {{"SwiGLU y", &y}}),
          measure([&] { swiglu_forward_unfused(s, y, silu, gate, up); }, {{"SwiGLU y", &y}})};
}

// fused: x -> y.  step by step: x -> squares; squares -> rstd; x -> normalised; normalised -> y
Operation rmsnorm() {
  Stream& s = device().compute();
  const Shape shape{kRows, kHidden};
  const Tensor x = input(shape, 0), w = input({kHidden}, 1), rstd = output({kRows}), y = output(shape), squares = output(shape),
               normalised = output(shape);
  return {"RMSNorm", 7.0 / 2.0,
          measure([&] { rmsnorm_forward(s, y, rstd, x, w, 1e-5); }, {{"RMSNorm y", &y}, {"RMSNorm rstd", &rstd}}),
          measure([&] { rmsnorm_forward_unfused(s, y, rstd, squares, normalised, x, w, 1e-5); },
                  {{"RMSNorm y", &y}, {"RMSNorm rstd", &rstd}})};
}

// fused: logits -> dlogits in their place.  step by step: logits -> p; one p of each row -> loss; p -> dlogits
Operation cross_entropy_operation() {
  Stream& s = device().compute();
  const Shape shape{kRows, kVocab};
  const Tensor logits = input(shape, 0), in_place = input(shape, 0), dlogits = output(shape), p = output(shape),
               loss = output({kRows});
  const Tensor labels = Tensor::zeros({kRows}, Dtype::kInt32, MemoryCategory::kWorkspace, s);
  return {"cross-entropy", 4.0 / 2.0,
          measure([&] { cross_entropy(s, in_place, loss, labels, 1e-3); },
                  {{"cross-entropy dlogits", &in_place}, {"cross-entropy loss", &loss}}),
          measure([&] { cross_entropy_unfused(s, dlogits, p, loss, logits, labels, 1e-3); },
                  {{"cross-entropy dlogits", &dlogits}, {"cross-entropy loss", &loss}})};
}

NamedValues gradients(const Options& options, bool fused) {
  const GptConfig model = model_config(options);
  TrainerOptions t = trainer_options(options, model);
  t.storage.dtype = Dtype::kFp64;
  t.gemm = GemmKind::kBlas;  // tensor cores do not take fp64
  t.fused = fused;
  const Dataset data(dataset_options(options, model));
  Trainer trainer(t, data);
  trainer.accumulate();
  return trainer.gradients();
}

}  // namespace

void fusion_experiment(const Options& options, Verdict& verdict) {
  const Operation operations[] = {swiglu(), rmsnorm(), cross_entropy_operation()};
  for (const Operation& o : operations) {
    verdict.claim(make_claim(fmt::format("fusion {}: bytes step by step / fused", o.name), o.expected_ratio,
                             o.steps.bytes / o.fused.bytes, 0.01));
    verdict.add_set("fused against step-by-step outputs",
                    compare_sets(o.steps.results, o.fused.results, CompareKind::kActivation), least_tolerance(Dtype::kFp32));
  }
  // The whole model has the same gradients either way (another order of rounding, so not the same bits).
  verdict.add_set("fused against step-by-step gradients",
                  compare_sets(gradients(options, false), gradients(options, true), CompareKind::kGradient),
                  least_tolerance(Dtype::kFp64));
  if (options.quiet) return;
  fmt::print("\nFusion, {} rows in fp32: bytes moved and time of one call\n", kRows);
  fmt::print("  {:<14} {:>12} {:>14} {:>7} {:>10} {:>16} {:>7}\n", "", "fused, MB", "by steps, MB", "ratio", "fused, ms",
             "by steps, ms", "ratio");
  for (const Operation& o : operations) {
    fmt::print("  {:<14} {:>12.2f} {:>14.2f} {:>7.2f} {:>10.3f} {:>16.3f} {:>7.2f}\n", o.name, o.fused.bytes / 1e6,
               o.steps.bytes / 1e6, o.steps.bytes / o.fused.bytes, o.fused.ms, o.steps.ms, o.steps.ms / o.fused.ms);
  }
}

}  // namespace ref5d::grad_accum
