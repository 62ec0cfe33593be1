// What the tests of programs share: starting a binary, and what it left behind.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/tensor/host_tensor.h"
#include "common/verify/report.h"

namespace ref5d::testing {

struct RunOptions {
  double deadline = 60;              // seconds, after which it is killed
  std::optional<double> kill_after;  // seconds, after which it is killed on purpose
  struct KillAt {
    std::string folder;                  // empty: do not
    int event = 0;                       // counted from 1: a file made, written, closed, renamed or removed in the folder
  } kill_at;                             // killed on purpose when the folder's nth event has happened
  int kill_signal = 9;                   // with kill_after and kill_at
  std::vector<std::string> environment;  // "NAME=value", added to the test's own
  std::string directory;                 // where it runs; empty: here
  std::optional<std::int64_t> file_size_limit;      // bytes (RLIMIT_FSIZE): a write beyond it fails, as on a full disk
  std::optional<std::int64_t> address_space_limit;  // bytes (RLIMIT_AS)
  bool obey_permissions = false;                    // also as root, who may otherwise write everywhere
  bool one_core = false;
  int ranks = 1;         // more: under mpiexec
  std::string out_file;  // where stdout goes; empty: to Outcome::out
};

struct Outcome {
  int exit_status = -1;  // as a shell gives it: 128 + the signal if one ended it
  std::string out, err;
  double seconds = 0;
  bool timed_out = false;

  // "status 2, stderr: ..." for failure messages.
  [[nodiscard]] std::string description() const;
};

// Runs build/<mode>/NAME. Fails the test if the binary cannot be started or has to be killed at the deadline.
[[nodiscard]] Outcome run_binary(const std::string& name, const std::vector<std::string>& arguments,
                                 const RunOptions& options = {});

// "a b  c" -> {"a", "b", "c"}.
[[nodiscard]] std::vector<std::string> words(std::string_view text);

// 01_grad_accum on a model of one layer for two steps, with these flags as well, or in place of the same ones.
[[nodiscard]] Outcome run_tiny(std::string_view flags, const RunOptions& options = {});
// Another lesson's program likewise, on several ranks.
[[nodiscard]] Outcome run_tiny_on(int ranks, const std::string& program, std::string_view flags, RunOptions options = {});

// Expects the status, exactly one line on stderr that begins with the program's name, and each of `parts` in it. Words of a
// step line, a table or a verdict on stdout fail too: nothing may look like a success.
void expect_one_error(const Outcome& outcome, int status, const std::vector<std::string>& parts);

// Usage that cannot be: run_tiny_on of the program must refuse each with one line that has the parts, print nothing else, and
// end on all ranks.
struct Refusal {
  int ranks;
  const char* flags;
  std::vector<std::string> parts;
};
void expect_refusals(const std::string& program, const std::vector<Refusal>& refusals);

// Names of the checks (or claims) that do not hold.
[[nodiscard]] std::vector<std::string> failing(const Report& report);
[[nodiscard]] bool has_claim(const Report& report, const std::string& name);

// run_tiny_on of a program, which must find that everything holds, and what it reported.
[[nodiscard]] Report passing_report(int ranks, const std::string& program, const std::string& flags);

// Runs every mistake that the program can plant, on two ranks but for those in `ranks`, and expects its entry in `noticed_by`
// among the checks that fail: one that shows the mistake itself (the beginning of its name). Mistakes and entries must be the
// same ones. (The default model is large enough for several buckets, which some mistakes need.)
void expect_sabotages_noticed(const std::string& program, std::map<std::string, std::string> noticed_by,
                              const std::string& model = "--layers 2", const std::map<std::string, int>& ranks = {});

struct TraceEvent {
  std::string name;
  double begin, end;
};
// What a rank's streams did, by their name, in order.
[[nodiscard]] std::map<std::string, std::vector<TraceEvent>> events_by_stream(const std::string& path, int rank = 0);

// All tensors of a safetensors file.
[[nodiscard]] NamedTensors read_tensors(const std::string& path);
// Those whose name begins with `prefix`, without it.
[[nodiscard]] NamedTensors with_prefix(const NamedTensors& tensors, const std::string& prefix);
// Expects equal names, dtypes, shapes and bytes.
void expect_identical(const NamedTensors& a, const NamedTensors& b);

}  // namespace ref5d::testing
