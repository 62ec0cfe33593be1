// Mixed precision: what each parameter costs, and why sums and masters are fp32.
#include <fmt/core.h>

#include "01_grad_accum/experiments.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/kernels/adamw.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/gemm.h"
#include "common/kernels/random.h"

namespace ref5d::grad_accum {

namespace {

struct Variant {
  const char* name;
  Dtype dtype;
  bool fused, fp32_sum;
  double expected;  // bytes per parameter
};
// bf16: weight 2 + master 4 + moments 4 + 4, and of gradients 2 + 4 (a bf16 gradient and its fp32 sum), 2 or 4.
constexpr Variant kVariants[] = {{"bf16, bf16 gradient added to an fp32 sum", Dtype::kBf16, false, true, 20},
                                 {"bf16, gradients computed into the fp32 sum", Dtype::kBf16, true, true, 18},
                                 {"bf16, no fp32 gradient", Dtype::kBf16, false, false, 16},
                                 {"fp32", Dtype::kFp32, false, true, 16},
                                 {"fp64", Dtype::kFp64, false, true, 32}};

// Bytes that the ledger holds for a trained model's state, per parameter.
double bytes_per_parameter(const Options& given, const Variant& v, double* by_category) {
  Options options = given;
  options.dtype = v.dtype;
  options.fused_grad_accum = v.fused;
  options.fp32_grads = v.fp32_sum;
  options.load.clear();
  options.gemm = "blas";  // nothing is multiplied, and tensor cores take bf16 alone
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  const Trainer trainer(trainer_options(options, model), data);
  constexpr MemoryCategory kState[] = {MemoryCategory::kParameters, MemoryCategory::kMaster, MemoryCategory::kGradients,
                                       MemoryCategory::kGradientAccumulation, MemoryCategory::kOptimizer};
  double sum = 0;
  for (std::size_t i = 0; i < std::size(kState); ++i) {
    by_category[i] = static_cast<double>(device().memory().current(kState[i])) / static_cast<double>(model.parameter_count());
    sum += by_category[i];
  }
  return sum;
}

// A weight of one element that gets `count` gradients of 1.0 as a linear layer in this mode adds them: dW += dy^T x.
double sum_of_ones(GradientMode mode, bool fp32_sum, int count) {
  Stream& stream = device().compute();
  Parameter p("ones", {1, 1}, Init::kZero, 0, false);
  StorageOptions storage;
  storage.dtype = Dtype::kBf16;
  storage.bf16_gradients = mode;
  storage.fp32_gradient_sum = fp32_sum;
  materialise(p, storage, stream);
  p.begin_step(stream, count);
  const Tensor one = Tensor::empty({1, 1}, Dtype::kBf16, MemoryCategory::kWorkspace, stream);
  fill_constant(stream, one, 1.0);
  for (int i = 0; i < count; ++i) {
    const auto [target, accumulate] = p.begin_contribution(stream);
    gemm(stream, GemmKind::kBlas, Transpose::kYes, Transpose::kNo, 1, one, one, accumulate ? 1 : 0, target);
    p.end_contribution(stream);
  }
  return p.final_gradient().to_doubles(stream)[0];
}

// A bf16 weight of 1.0 and its master.
struct Weight {
  double master, bf16;
};

// After `count` steps of AdamW, each of which moves it by -lr: Adam divides the constant gradient by its own size. A master
// that is not kept is made from the bf16 weight before every step.
Weight after_updates(bool keep_master, double lr, double gradient, int count) {
  Stream& stream = device().compute();
  auto constant = [&](Dtype dtype, double value) {
    Tensor t = Tensor::empty({1}, dtype, MemoryCategory::kWorkspace, stream);
    fill_constant(stream, t, value);
    return t;
  };
  const Tensor weight = constant(Dtype::kBf16, 1), master = constant(Dtype::kFp32, 1), grad = constant(Dtype::kFp32, gradient),
               m = constant(Dtype::kFp32, 0), v = constant(Dtype::kFp32, 0), scale = constant(Dtype::kFp64, 1);
  AdamwOptions adam;
  adam.lr = lr;
  adam.weight_decay = 0;
  for (int step = 1; step <= count; ++step) {
    if (!keep_master) convert(stream, master, weight);
    adamw(stream, weight, master, grad, m, v, scale, adam, step);
  }
  return {master.to_doubles(stream)[0], weight.to_doubles(stream)[0]};
}

}  // namespace

void precision_experiment(const Options& options, Verdict& verdict) {
  if (!options.quiet) {
    fmt::print("\nBytes per parameter, from the ledger\n");
    fmt::print("  {:<44} {:>7} {:>7} {:>9} {:>9} {:>8} {:>6}\n", "", "weight", "master", "gradient", "fp32 sum", "moments",
               "all");
  }
  for (const Variant& v : kVariants) {
    double c[5];
    const double total = bytes_per_parameter(options, v, c);
    verdict.claim(make_claim(fmt::format("precision {}: bytes per parameter", v.name), v.expected, total, 0, "bytes"));
    if (!options.quiet)
      fmt::print("  {:<44} {:>7g} {:>7g} {:>9g} {:>9g} {:>8g} {:>6g}\n", v.name, c[0], c[1], c[2], c[3], c[4], total);
  }
  // bf16 has 8 significant bits: at 256 the spacing is 2, and 256 + 1 rounds back to 256.
  verdict.claim(make_claim("precision: 512 gradients of 1.0, added to an fp32 sum", 512,
                           sum_of_ones(GradientMode::kSeparate, true, 512)));
  verdict.claim(make_claim("precision: 512 gradients of 1.0, computed into the fp32 sum", 512,
                           sum_of_ones(GradientMode::kFused, true, 512)));
  verdict.claim(
      make_claim("precision: 512 gradients of 1.0, added in bf16", 256, sum_of_ones(GradientMode::kDirect, false, 512)));
  // Just below 1.0 the spacing is 2^-8 = 0.0039: an update of 1e-3 is less than half of it.
  verdict.claim(make_claim("precision: 1.0 + 1e-4 in bf16", 1, after_updates(false, 1e-4, -1, 1).bf16));
  verdict.claim(make_claim("precision: 1.0 after ten updates of -1e-3, bf16 alone", 1, after_updates(false, 1e-3, 1, 10).bf16));
  const Weight kept = after_updates(true, 1e-3, 1, 10);
  verdict.claim(make_claim("precision: 1.0 after ten updates of -1e-3, fp32 master", 0.99, kept.master, 1e-6));
  verdict.claim(make_claim("precision: 1.0 after ten updates of -1e-3, the master's bf16 copy", 0.98828125, kept.bf16));
}

}  // namespace ref5d::grad_accum
