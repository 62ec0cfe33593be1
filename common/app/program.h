// The start and the end of a program: cores, signals, errors to exit statuses, and the lines it prints as it goes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/train/trainer.h"

namespace ref5d {

// Runs body() and returns the process's exit status: what body returns, 2 for InputError, 3 for RunError and any other
// exception, with one line on stderr that starts with the program's name.
[[nodiscard]] int run_program(const std::string& name, char** argv, const std::function<int()>& body);

// What the exception that is being handled ends a program with. To be called in a catch block.
struct Failure {
  int status;
  std::string message;
};
[[nodiscard]] Failure current_failure();
// Prints its line on stderr and returns the status.
int report_failure(const std::string& name, const Failure& failure);

// The cores that each of `processes` on this machine may use, or what OMP_NUM_THREADS asks for.
[[nodiscard]] int threads_per_process(int processes);

// "PROGRAM: MESSAGE" and a newline, as one line whatever the message quotes, and of a length that can be read.
[[nodiscard]] std::string error_line(const std::string& program, std::string_view message);

// For programs of one process: InputError if a launcher (mpiexec, srun) started several, which would each train the same and
// overwrite each other's files. Ranks other than 0 end here, with status 2 and without a word.
void require_one_process(const std::string& name);

// Step lines on stdout, as the steps happen ("step 3/20 | loss 4.1234 | grad norm 1.02 | 12345 tok/s | 41 ms"), and on a
// terminal a progress line for what has no lines of its own. Quiet prints nothing.
class StepPrinter {
 public:
  StepPrinter(std::int64_t steps, bool quiet) : steps_(steps), quiet_(quiet) {}
  // At most about forty lines for a long run; the first and the last always. Between them progress(), if both outputs are the
  // terminal.
  void step(std::int64_t index, const StepResult& result) const;
  // "baseline fp64: step 3/20, 4 s left" on a terminal's stderr, overwritten in place; cleared by done().
  void progress(const std::string& what, std::int64_t index, double step_ms) const;
  void done() const;

 private:
  std::int64_t steps_;
  bool quiet_;
};

}  // namespace ref5d
