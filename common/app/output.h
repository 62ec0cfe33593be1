// What a program leaves behind: dumps, traces, checkpoints, the report.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/app/options.h"
#include "common/io/trace.h"
#include "common/train/dump.h"
#include "common/train/run_record.h"
#include "common/train/trainer.h"
#include "common/verify/report.h"

namespace ref5d {

// A file that a flag asks for.
struct OutputFile {
  const char* flag;
  std::string path;
};
// Throws InputError if a file or folder that the options ask for, or one of `more`, cannot be written: before the training, not
// after it.
void check_output_paths(const Options& options, const std::vector<OutputFile>& more = {});

// Follows a run: dumps the first step and the end, records the trace, saves the checkpoint, generates the sample.
class RunOutputs {
 public:
  // Of a run over several ranks all construct it and make the same calls; one of them `writes`.
  RunOutputs(Trainer& trainer, const Dataset& data, const Options& options, std::int64_t global_batch, bool writes = true);
  // Call after every step (0-based), while its gradients are still there.
  void after_step(std::int64_t step, const StepResult& result);
  void finish(const RunRecord& record);
  // For traces of several ranks: all ranks' spans from this one's.
  std::function<std::vector<TraceSpan>(const std::vector<TraceSpan>&)> gather_spans;
  // The text that --sample asks for, under a line that says what it is; empty without.
  [[nodiscard]] std::string sample() const;

 private:
  Trainer& trainer_;
  const Options& options_;
  bool writes_;
  std::optional<DumpingRun> dump_;
};

// What the profiler has seen since it was started, as this rank's spans.
[[nodiscard]] std::vector<TraceSpan> profiled_spans(int rank);

// A report with its head filled in.
[[nodiscard]] Report new_report(const std::string& program, const Options& options, const GptConfig& model);
// Losses, memory, time, checks and claims of a finished run. mfu where the options say what a device could reach.
void fill_report(Report& report, const Options& options, const GptConfig& model, const RunRecord& record,
                 const Verdict& verdict);
// Writes --json, prints the tables, the verdict and the sample, and returns the exit status.
[[nodiscard]] int finish(const Report& report, const Options& options);

}  // namespace ref5d
