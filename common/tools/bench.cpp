// Speed of one device: tokens/s, GFLOP/s, the share of the matrix product's, of OpenBLAS's and of the
// multipliers' own rate, and time by kernel.
#ifndef REF5D_CUDA
#include <cblas.h>
extern "C" void openblas_set_num_threads(int threads);  // another BLAS's cblas.h does not have it
#endif
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "common/app/command_line.h"
#include "common/app/output.h"
#include "common/app/program.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/kernels/random.h"
#ifndef REF5D_CUDA
#include "common/kernels/cpu/fma_peak.h"
#endif

using namespace ref5d;

namespace {

// GFLOP/s of the matrix products that the model makes, at its own shapes: what it could reach if nothing else took time.
// `multiply` computes y = x W^T, dx = dy W or dW = dy^T x, which are a linear layer's three.
template <typename Multiply>
double product_rate(const GptConfig& c, std::int64_t tokens, Dtype dtype, const Multiply& multiply) {
  Stream& s = device().compute();
  struct Size {
    std::int64_t in, out, count;
  };
  const std::int64_t kv = c.kv_heads * c.head_dim();
  const Size sizes[] = {{c.hidden, c.hidden, 2 * c.layers},
                        {c.hidden, kv, 2 * c.layers},
                        {c.hidden, c.ffn, 2 * c.layers},
                        {c.ffn, c.hidden, c.layers},
                        {c.hidden, c.vocab, 1}};
  double flops = 0, best = 0;
  for (int round = 0; round < 5; ++round) {
    double ms = 0;
    flops = 0;
    for (const Size& z : sizes) {
      auto make = [&](std::int64_t r, std::int64_t k) {
        Tensor t = Tensor::empty({r, k}, dtype, MemoryCategory::kWorkspace, s);
        fill_normal(s, t, {0, 0, k}, 1, 1, 0, 1);
        return t;
      };
      // Results go to arrays of their own: fed back, they would grow without bound.
      const Tensor x = make(tokens, z.in), y = make(tokens, z.out), w = make(z.out, z.in);
      const Tensor dx = make(tokens, z.in), out = make(tokens, z.out), dw = make(z.out, z.in);
      s.synchronize();
      const auto begin = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < z.count; ++i) {
        multiply(Transpose::kNo, Transpose::kYes, x, w, out);
        multiply(Transpose::kNo, Transpose::kNo, y, w, dx);
        multiply(Transpose::kYes, Transpose::kNo, y, x, dw);
      }
      s.synchronize();
      ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
      flops += static_cast<double>(3 * z.count * gemm_flops(tokens, z.in, z.out));
    }
    best = std::max(best, flops / ms / 1e6);
  }
  return best;
}

#ifndef REF5D_CUDA
// The same product by OpenBLAS, called as anyone would.
void multiply_by_openblas(Transpose ta, Transpose tb, const Tensor& a, const Tensor& b, const Tensor& c) {
  const auto [m, n, k] = gemm_size(ta, tb, a, b, c);
  const auto i = [](std::int64_t x) { return static_cast<int>(x); };
  const auto op = [](Transpose t) { return t == Transpose::kYes ? CblasTrans : CblasNoTrans; };
  cblas_sgemm(CblasRowMajor, op(ta), op(tb), i(m), i(n), i(k), 1, a.data<float>(), i(a.ld()), b.data<float>(), i(b.ld()), 0,
              c.data<float>(), i(c.ld()));
}
#endif

constexpr std::int64_t kProfiledSteps = 3;

void print_time_by_kernel() {
  constexpr double steps = kProfiledSteps;
  const auto totals = device().profiler().by_name();
  std::vector<std::pair<std::string, Profiler::Total>> rows(totals.begin(), totals.end());
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  double all = 0;
  for (const auto& r : rows) all += r.second.us;
  fmt::print("\n{:<44} {:>10} {:>12} {:>7}\n", "kernel", "calls/step", "ms/step", "share");
  for (const auto& [name, t] : rows) {
    if (t.us < 0.002 * all) continue;
    fmt::print("{:<44} {:>10.0f} {:>12.3f} {:>6.1f}%\n", name, static_cast<double>(t.calls) / steps, t.us / 1e3 / steps,
               100 * t.us / all);
  }
  fmt::print("{:<44} {:>10} {:>12.3f}\n", "all kernels", "", all / 1e3 / steps);
}

// Forward, backward and AdamW, `steps` times, after two steps that are not counted.
RunRecord train(Trainer& trainer, const Options& options) {
  const StepPrinter printer(options.steps, options.quiet);
  for (int warm = 0; warm < 2; ++warm) (void)trainer.step();
  return record_run(trainer, options.steps, 0, [&](std::int64_t s, const StepResult& r) { printer.step(s, r); });
}

void profile(Trainer& trainer) {
  device().profiler().start();
  for (std::int64_t i = 0; i < kProfiledSteps; ++i) (void)trainer.step();
  device().synchronize();
  device().profiler().stop();
}

double linear_flops(const RunRecord& run) {
  return static_cast<double>(run.flops_per_step.count(FlopsKind::kBlockLinear) + run.flops_per_step.count(FlopsKind::kHead));
}

// What the step is to be set against: the matrix product's own rate, and on the CPU in fp32 OpenBLAS's and the multipliers'.
void measure_bounds(std::map<std::string, double>& timing, const TrainerOptions& settings, double linear_rate) {
  const std::int64_t tokens = settings.micro_batch * settings.model.seq;
  timing["gemm_gflops"] = product_rate(settings.model, tokens, settings.storage.dtype,
                                       [&](Transpose ta, Transpose tb, const Tensor& a, const Tensor& b, const Tensor& c) {
                                         gemm(device().compute(), settings.gemm, ta, tb, 1, a, b, 0, c);
                                       });
  timing["share_of_gemm"] = linear_rate / timing["gemm_gflops"];
#ifndef REF5D_CUDA
  if (settings.storage.dtype != Dtype::kFp32) return;
  timing["fma_peak_gflops"] = fma_peak_gflops(device().threads());
  openblas_set_num_threads(device().threads());
  timing["openblas_gflops"] = product_rate(settings.model, tokens, Dtype::kFp32, multiply_by_openblas);
  timing["share_of_openblas"] = linear_rate / timing["openblas_gflops"];
#endif
}

void print_summary(const Report& report, const Options& options, const GptConfig& model, const RunRecord& run) {
  const auto timing = [&](const char* key) {
    const auto found = report.timing.find(key);
    return found == report.timing.end() ? 0.0 : found->second;
  };
  const int threads = device().threads();
  const std::string with = Device::mode() == "cuda" ? "" : fmt::format("{} thread{} on ", threads, threads == 1 ? "" : "s");
  const std::int64_t sequences = options.micro_batch * options.grad_accum;
  fmt::print("\n{} parameters, {} x {} tokens a step, {}, {}{}\n", model.parameter_count(), sequences, model.seq,
             dtype_name(options.dtype), with, Device::description());
  fmt::print("step                       {:>10.1f} ms (median of {})\n", timing("step_ms"), options.steps);
  fmt::print("tokens/s                   {:>10.0f}\n", timing("tokens_per_s"));
  fmt::print("GFLOP a step               {:>10.2f} linear + {:.2f} attention\n", linear_flops(run) / 1e9,
             static_cast<double>(run.flops_per_step.count(FlopsKind::kAttention)) / 1e9);
  fmt::print("GFLOP/s                    {:>10.1f}\n", timing("gflops"));
  const auto print_rate = [&](const std::string& name, double rate, double share) {
    if (rate > 0) {
      fmt::print("{:<26} {:>10.1f} GFLOP/s at the same products; the step's linear flops run at {:.1f}% of it\n", name, rate,
                 100 * share);
    }
  };
  const bool packed = Device::mode() == "cpu" && options.gemm == "blas";
  print_rate(fmt::format("gemm ({})", packed ? "packed" : options.gemm), timing("gemm_gflops"), timing("share_of_gemm"));
  print_rate("OpenBLAS", timing("openblas_gflops"), timing("share_of_openblas"));
  if (const double peak = timing("fma_peak_gflops"); peak > 0) {
    const double bound_ms = static_cast<double>(run.flops_per_step.total()) / peak / 1e6;
    fmt::print("multiply-adds alone        {:>10.1f} GFLOP/s: a step's flops would take {:.1f} ms, {:.0f} tokens/s\n", peak,
               bound_ms, static_cast<double>(sequences * model.seq) / bound_ms * 1e3);
  }
  if (const double mfu = timing("mfu"); mfu > 0)
    fmt::print("mfu                        {:>9.1f}% (of --peak-tflops)\n", 100 * mfu);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("bench", argv, [&] {
    Options defaults;
    defaults.model = "bench";
    defaults.micro_batch = 8;
    defaults.steps = 10;
    defaults.verify = false;
    CommandLine line("bench", "Measures a training step on one device.", defaults);
    std::int64_t threads = device().threads();
    line.group("Bench");
    line.add_option("--threads", threads, "host threads for kernels and BLAS", {1, 1024});
    for (const char* flag : {"--verify", "--verify-steps", "--sabotage", "--trace", "--dump", "--dump-level", "--sample",
                             "--load", "--save", "--resume"})
      line.forbid(flag, "bench only measures; the lessons' programs have it");
    if (line.parse(argc, argv) == ParseOutcome::kEnd) return 0;
    Device::select(0);
    const Options& options = line.options();
    check_output_paths(options);
    device().set_threads(static_cast<int>(threads));
    if (device().threads() < threads)
      throw InputError(fmt::format("--threads {}, but OMP_THREAD_LIMIT allows {}", threads, device().threads()));

    const GptConfig model = model_config(options);
    const Dataset data(dataset_options(options, model));
    Trainer trainer(trainer_options(options, model), data);
    const RunRecord run = train(trainer, options);
    profile(trainer);

    Report report = new_report("bench", options, model);
    fill_report(report, options, model, run, Verdict());
    report.timing["threads"] = static_cast<double>(threads);
    measure_bounds(report.timing, trainer.options(), linear_flops(run) / report.timing["step_ms"] / 1e6);
    if (!options.json.empty()) report.write_json(options.json);
    print_time_by_kernel();
    print_summary(report, options, model, run);
    return 0;
  });
}
