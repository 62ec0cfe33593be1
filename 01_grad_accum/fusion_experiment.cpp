// A kernel that does several steps at once reads its input once and writes its output once; step by step, every intermediate
// crosses memory.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "01_grad_accum/experiments.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/kernels/cross_entropy.h"
#include "common/kernels/rmsnorm.h"
#include "common/kernels/swiglu.h"

namespace ref5d::grad_accum {

namespace {

constexpr std::int64_t kRows = 2048, kHidden = 256, kFfn = 688, kVocab = 2048;

Tensor array(std::int64_t rows, std::int64_t columns, double value) {
  const std::vector<double> values(static_cast<std::size_t>(rows * columns), value);
  return Tensor::from_host(HostTensor::from_doubles(values, {rows, columns}, Dtype::kFp32), Dtype::kFp32,
                           MemoryCategory::kWorkspace, device().compute());
}

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

// Bytes of the arrays that kernels read and write, an array counted once for each kernel that touches it.
double bytes(std::initializer_list<const Tensor*> touched) {
  double sum = 0;
  for (const Tensor* t : touched) sum += static_cast<double>(t->bytes());
  return sum;
}

struct Line {
  const char* name;
  double fused_bytes, unfused_bytes, fused_ms, unfused_ms;
};

Line swiglu() {
  Stream& s = device().compute();
  const Tensor gate = array(kRows, kFfn, 0.5), up = array(kRows, kFfn, 0.25), y = array(kRows, kFfn, 0),
               scratch = array(kRows, kFfn, 0);
  // fused: gate, up -> y.  step by step: gate -> silu; silu, up -> y
  return {"SwiGLU", bytes({&gate, &up, &y}), bytes({&gate, &scratch, &scratch, &up, &y}),
          median_ms([&] { swiglu_forward(s, y, gate, up); }),
          median_ms([&] { swiglu_forward_unfused(s, y, scratch, gate, up); })};
}

Line rmsnorm() {
  Stream& s = device().compute();
  const Tensor x = array(kRows, kHidden, 0.5), y = array(kRows, kHidden, 0), squares = array(kRows, kHidden, 0),
               normalised = array(kRows, kHidden, 0);
  const Tensor w = array(1, kHidden, 1).view({kHidden}), rstd = array(1, kRows, 0).view({kRows});
  // step by step: x -> squares; squares -> rstd; x, rstd -> normalised; normalised, w -> y
  return {"RMSNorm", bytes({&x, &w, &rstd, &y}),
          bytes({&x, &squares, &squares, &rstd, &x, &rstd, &normalised, &normalised, &w, &y}),
          median_ms([&] { rmsnorm_forward(s, y, rstd, x, w, 1e-5); }),
          median_ms([&] { rmsnorm_forward_unfused(s, y, rstd, squares, normalised, x, w, 1e-5); })};
}

Line cross_entropy_line() {
  Stream& s = device().compute();
  const Tensor logits = array(kRows, kVocab, 0.5), dlogits = array(kRows, kVocab, 0), p = array(kRows, kVocab, 0),
               loss = array(1, kRows, 0).view({kRows});
  const Tensor labels = Tensor::zeros({kRows}, Dtype::kInt32, MemoryCategory::kWorkspace, s);
  // fused: logits, labels -> dlogits in their place, loss.  step by step: logits -> p; p, labels -> loss; p, labels -> dlogits
  return {"cross-entropy", bytes({&logits, &labels, &logits, &loss}),
          bytes({&logits, &p, &labels, &loss, &p, &labels, &dlogits}),
          median_ms([&] { cross_entropy(s, logits, loss, labels, 1e-3); }),
          median_ms([&] { cross_entropy_unfused(s, dlogits, p, loss, logits, labels, 1e-3); })};
}

}  // namespace

void fusion_experiment(const Options& options, Verdict& verdict) {
  const Line lines[] = {swiglu(), rmsnorm(), cross_entropy_line()};
  // In units of the large array, the small ones (weights, statistics, labels: under 1%) aside.
  const double expected[] = {5.0 / 3.0, 7.0 / 2.0, 4.0 / 2.0};
  for (std::size_t i = 0; i < std::size(lines); ++i) {
    verdict.claim(make_claim(fmt::format("fusion {}: bytes step by step / fused", lines[i].name), expected[i],
                             lines[i].unfused_bytes / lines[i].fused_bytes, 0.01));
  }
  // The whole model trains to the same values either way (another order of rounding, so not the same bits).
  auto gradients = [&](bool fused) {
    const GptConfig model = model_config(options);
    TrainerOptions t = trainer_options(options, model);
    t.storage.dtype = Dtype::kFp64;
    t.fused = fused;
    const Dataset data(dataset_options(options, model));
    Trainer trainer(t, data);
    trainer.accumulate();
    return trainer.gradients();
  };
  verdict.add_set("fused against step-by-step gradients",
                  compare_sets(gradients(false), gradients(true), CompareKind::kGradient), least_tolerance(Dtype::kFp64));
  if (options.quiet) return;
  fmt::print("\nFusion, {} rows in fp32: bytes moved and time of one call\n", kRows);
  fmt::print("  {:<14} {:>12} {:>14} {:>7} {:>10} {:>16} {:>7}\n", "", "fused, MB", "by steps, MB", "ratio", "fused, ms",
             "by steps, ms", "ratio");
  for (const Line& l : lines) {
    fmt::print("  {:<14} {:>12.2f} {:>14.2f} {:>7.2f} {:>10.3f} {:>16.3f} {:>7.2f}\n", l.name, l.fused_bytes / 1e6,
               l.unfused_bytes / 1e6, l.unfused_bytes / l.fused_bytes, l.fused_ms, l.unfused_ms, l.unfused_ms / l.fused_ms);
  }
}

}  // namespace ref5d::grad_accum
