#include "common/app/program.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <thread>

#include "common/device/device.h"
#include "common/device/error.h"

namespace ref5d {

namespace {

// OpenMP's threads spin while they wait, by default so long that whoever shares the cores starves (beside two busy programs on
// two cores a step of the tiny model took 3263 ms); without spinning every kernel pays for waking a thread (71 ms a step on
// idle cores). A short spin takes 17 ms and 46 ms. The runtime reads this from the environment before main, so the program
// starts itself again with it set.
void share_cores_politely(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "10000", 1);
  execv("/proc/self/exe", argv);  // returns only if that failed; then go on as we are
}

// A whole number of at least 0 from the environment, -1 if it is absent or something else.
int number_from_environment(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return -1;
  const std::string_view digits = text;
  int value = -1;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return result.ec == std::errc() && result.ptr == digits.data() + digits.size() ? value : -1;
}

// What has not reached stdout by now never will.
int flushed(const std::string& name, int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return report_failure(name, {kExitBroken, "cannot write to stdout: the disk is full or the reader is gone"});
}

}  // namespace

int threads_per_process(int processes) {
  const int asked = number_from_environment("OMP_NUM_THREADS");
  return asked > 0 ? std::min(asked, 1024) : std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / processes);
}

Failure current_failure() {
  try {
    throw;
  } catch (const InputError& e) {
    return {kExitBadInput, e.what()};
  } catch (const std::bad_alloc&) {
    return {kExitBroken, "out of memory on the host; use a smaller model or micro-batch"};
  } catch (const std::exception& e) {
    return {kExitBroken, e.what()};
  }
}

// If stderr is closed, the exit status must do.
int report_failure(const std::string& name, const Failure& failure) {
  std::fflush(stdout);
  std::fputs(error_line(name, failure.message).c_str(), stderr);
  return failure.status;
}

std::string error_line(const std::string& program, std::string_view message) {
  constexpr std::size_t kMost = 2000;
  std::string line = fmt::format("{}: {}", program, message);
  if (line.size() > kMost) line = line.substr(0, kMost / 2) + " ... " + line.substr(line.size() - kMost / 2);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return line + "\n";
}

int run_program(const std::string& name, char** argv, const std::function<int()>& body) {
  share_cores_politely(argv);
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write(), which AtomicFile reports
  try {
    device().set_threads(threads_per_process(1));
    return flushed(name, body());
  } catch (...) {
    return report_failure(name, current_failure());
  }
}

void require_one_process(const std::string& name) {
  // What MPICH (and others that speak PMI), Open MPI and srun tell each process. SLURM_NTASKS would not do: a batch script has
  // it too.
  constexpr struct {
    const char *size, *rank;
  } kLaunchers[] = {
      {"PMI_SIZE", "PMI_RANK"}, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
  for (const auto& launcher : kLaunchers) {
    const int size = number_from_environment(launcher.size);
    if (size <= 1) continue;
    if (number_from_environment(launcher.rank) > 0) std::exit(kExitBadInput);
    throw InputError(fmt::format(
        "{} is a program of one process, but {} were started; start it without mpiexec or srun, or with one rank", name, size));
  }
}

void StepPrinter::step(std::int64_t index, const StepResult& r) const {
  if (quiet_) return;
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const std::int64_t every = std::max<std::int64_t>(1, (steps_ + 39) / 40);
  if ((index + 1) % every == 0 || index == 0 || index + 1 == steps_) {
    if (terminal) done();
    const std::string aux = r.aux_loss ? fmt::format("aux loss {:.4f} | ", *r.aux_loss) : "";
    fmt::print("step {}/{} | loss {:.4f} | {}grad norm {:.3g} | {:.0f} tok/s | {:.1f} ms\n", index + 1, steps_, r.loss, aux,
               r.grad_norm, static_cast<double>(r.tokens) / r.ms * 1e3, r.ms);
    std::fflush(stdout);
  }
  if (terminal && index + 1 < steps_) progress("training", index, r.ms);
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
