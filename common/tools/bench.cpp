// Speed of one device: tokens/s, GFLOP/s, the share of the matrix product's, of OpenBLAS's and of the
// multipliers' own rate, and time by kernel.
#ifndef REF5D_CUDA
#include <cblas.h>
extern "C" void openblas_set_num_threads(int threads);  // another BLAS's cblas.h does not have it
#endif
#include <fmt/core.h>

#include <algorithm>
#include <chrono>

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

void print_time_by_kernel(std::int64_t steps) {
  const auto totals = device().profiler().by_name();
  std::vector<std::pair<std::string, Profiler::Total>> rows(totals.begin(), totals.end());
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  double all = 0;
  for (const auto& r : rows) all += r.second.us;
  fmt::print("\n{:<44} {:>10} {:>12} {:>7}\n", "kernel", "calls/step", "ms/step", "share");
  for (const auto& [name, t] : rows) {
    if (t.us < 0.002 * all) continue;
    fmt::print("{:<44} {:>10.0f} {:>12.3f} {:>6.1f}%\n", name, static_cast<double>(t.calls) / static_cast<double>(steps),
               t.us / 1e3 / static_cast<double>(steps), 100 * t.us / all);
  }
  fmt::print("{:<44} {:>10} {:>12.3f}\n", "all kernels", "", all / 1e3 / static_cast<double>(steps));
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
    DatasetOptions from = dataset_options(options, model);
    const Dataset data(from);
    Trainer trainer(trainer_options(options, model), data);
    const StepPrinter printer(options.steps, options.quiet);
    for (int warm = 0; warm < 2; ++warm) (void)trainer.step();
    const RunRecord run =
        record_run(trainer, options.steps, 0, [&](std::int64_t s, const StepResult& r) { printer.step(s, r); });

    device().profiler().start();
    constexpr std::int64_t kProfiled = 3;
    for (std::int64_t i = 0; i < kProfiled; ++i) (void)trainer.step();
    device().synchronize();
    device().profiler().stop();

    const std::int64_t tokens = options.micro_batch * model.seq;
    const double ms = run.median_step_ms(), gflops = static_cast<double>(run.flops_per_step.total()) / ms / 1e6;
    const GemmKind kind = trainer_options(options, model).gemm;
    const double rate = product_rate(model, tokens, options.dtype,
                                     [&](Transpose ta, Transpose tb, const Tensor& a, const Tensor& b, const Tensor& c) {
                                       gemm(device().compute(), kind, ta, tb, 1, a, b, 0, c);
                                     });
    const auto linear =
        static_cast<double>(run.flops_per_step.count(FlopsKind::kBlockLinear) + run.flops_per_step.count(FlopsKind::kHead));
    Report report = new_report("bench", options, model);
    fill_report(report, options, model, run, Verdict());
    report.timing["gemm_gflops"] = rate;
    report.timing["share_of_gemm"] = linear / ms / 1e6 / rate;
#ifndef REF5D_CUDA
    if (options.dtype == Dtype::kFp32) {
      report.timing["fma_peak_gflops"] = fma_peak_gflops(static_cast<int>(threads));
      openblas_set_num_threads(static_cast<int>(threads));
      report.timing["openblas_gflops"] = product_rate(model, tokens, options.dtype, multiply_by_openblas);
      report.timing["share_of_openblas"] = linear / ms / 1e6 / report.timing["openblas_gflops"];
    }
#endif
    report.timing["threads"] = static_cast<double>(threads);
    if (!options.json.empty()) report.write_json(options.json);

    print_time_by_kernel(kProfiled);
    const std::string with = Device::mode() == "cuda" ? "" : fmt::format("{} thread{} on ", threads, threads == 1 ? "" : "s");
    fmt::print("\n{} parameters, {} x {} tokens a step, {}, {}{}\n", model.parameter_count(),
               options.micro_batch * options.grad_accum, model.seq, dtype_name(options.dtype), with, Device::description());
    fmt::print("step                       {:>10.1f} ms (median of {})\n", ms, options.steps);
    fmt::print("tokens/s                   {:>10.0f}\n", report.timing["tokens_per_s"]);
    fmt::print("GFLOP a step               {:>10.2f} linear + {:.2f} attention\n", linear / 1e9,
               static_cast<double>(run.flops_per_step.count(FlopsKind::kAttention)) / 1e9);
    fmt::print("GFLOP/s                    {:>10.1f}\n", gflops);
    const auto print_rate = [&](const char* name, double gflops_of) {
      fmt::print("{:<26} {:>10.1f} GFLOP/s at the same products; the step's linear flops run at {:.1f}% of it\n", name,
                 gflops_of, 100 * linear / ms / 1e6 / gflops_of);
    };
    const bool packed = std::string_view(Device::mode()) == "cpu" && options.gemm == "blas";
    print_rate(fmt::format("gemm ({})", packed ? "packed" : options.gemm).c_str(), rate);
    if (report.timing.contains("openblas_gflops")) print_rate("OpenBLAS", report.timing["openblas_gflops"]);
    if (const auto peak = report.timing.find("fma_peak_gflops"); peak != report.timing.end()) {
      const double bound = static_cast<double>(run.flops_per_step.total()) / peak->second / 1e6;
      fmt::print("multiply-adds alone        {:>10.1f} GFLOP/s: a step's flops would take {:.1f} ms, {:.0f} tokens/s\n",
                 peak->second, bound, static_cast<double>(tokens * options.grad_accum) / bound * 1e3);
    }
    if (const auto mfu = report.timing.find("mfu"); mfu != report.timing.end())
      fmt::print("mfu                        {:>9.1f}% (of --peak-tflops)\n", 100 * mfu->second);
    return 0;
  });
}
