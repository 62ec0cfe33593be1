#include "common/app/program.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <thread>

#include "common/device/device.h"
#include "common/device/error.h"

namespace ref5d {

namespace {

int report_error(const std::string& name, const char* message, int status) {
  std::fflush(stdout);
  fmt::print(stderr, "{}: {}\n", name, message);
  return status;
}

// OpenMP's threads spin while they wait, which starves whoever shares the cores: other ranks, another program (a step took 190 times as long beside a
// compiler). The runtime reads its policy from the environment before main, so the program starts itself again with the policy set.
void share_cores_politely(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // returns only if that failed; then go on as we are
}

}  // namespace

int run_program(const std::string& name, char** argv, const std::function<int()>& body) {
  share_cores_politely(argv);
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write(), which AtomicFile reports
  device().set_threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  try {
    return body();
  } catch (const InputError& e) {
    return report_error(name, e.what(), kExitBadInput);
  } catch (const std::bad_alloc&) {
    return report_error(name, "out of memory on the host; use a smaller model or micro-batch", kExitBroken);
  } catch (const std::exception& e) {
    return report_error(name, e.what(), kExitBroken);
  }
}

void StepPrinter::step(std::int64_t index, const StepResult& r) const {
  if (quiet_) return;
  const std::int64_t every = std::max<std::int64_t>(1, (steps_ + 39) / 40);
  if ((index + 1) % every != 0 && index != 0 && index + 1 != steps_) return;
  fmt::print("step {}/{} | loss {:.4f} | grad norm {:.3g} | {:.0f} tok/s | {:.3g} ms\n", index + 1, steps_, r.loss, r.grad_norm,
             static_cast<double>(r.tokens) / r.ms * 1e3, r.ms);
  std::fflush(stdout);
}

void StepPrinter::progress(const std::string& what, std::int64_t index, double step_ms) const {
  if (quiet_ || isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r{}: step {}/{}, {:.0f} s left \x1b[K", what, index + 1, steps_,
             static_cast<double>(steps_ - index - 1) * step_ms / 1e3);
  std::fflush(stderr);
}

void StepPrinter::done() const {
  if (quiet_ || isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace ref5d
