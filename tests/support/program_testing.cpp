#include "tests/support/program_testing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include "common/io/file.h"
#include "common/io/json.h"
#include "common/io/safetensors.h"
#include "tests/support/io_testing.h"

namespace ref5d::testing {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Pipe {
  Pipe() {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
  }
  ~Pipe() {
    close(ends[0]);
    close_write();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_write() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }
  std::array<int, 2> ends{};
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::map<std::string, std::string> all{{"OMP_WAIT_POLICY", "passive"}};  // a test shares the cores
  auto put = [&](const std::string& entry) {
    const std::size_t equals = entry.find('=');
    all[entry.substr(0, equals)] = equals == std::string::npos ? "" : entry.substr(equals + 1);
  };
  for (char** e = environ; *e != nullptr; ++e) put(*e);
  // A test may itself run under a launcher, whose variables are not meant for what it starts.
  std::erase_if(all, [](const auto& e) {
    return e.first.starts_with("PMI_") || e.first.starts_with("OMPI_") || e.first.starts_with("SLURM_");
  });
  for (const std::string& entry : added) put(entry);
  std::vector<std::string> out;
  for (const auto& [name, value] : all) out.push_back(name + "=" + value);
  return out;
}

// Counts what happens in a folder.
class Watch {
 public:
  explicit Watch(const RunOptions::KillAt& at)
      : left_(at.event), fd_(at.folder.empty() ? -1 : inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (fd_ >= 0 && inotify_add_watch(fd_, at.folder.c_str(), IN_ALL_EVENTS & ~(IN_ACCESS | IN_OPEN)) < 0) std::abort();
  }
  ~Watch() {
    if (fd_ >= 0) close(fd_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  [[nodiscard]] int fd() const { return fd_; }
  // Takes what has happened; whether the awaited event is among it.
  [[nodiscard]] bool reached() {
    alignas(inotify_event) char buffer[4096];
    const ssize_t n = read(fd_, buffer, sizeof buffer);
    for (ssize_t at = 0; at < n; --left_)
      at += static_cast<ssize_t>(sizeof(inotify_event) + reinterpret_cast<const inotify_event*>(buffer + at)->len);
    return left_ <= 0;
  }

 private:
  int left_, fd_;
};

// In the child, between fork and exec: only plain system calls.
void prepare_child(const RunOptions& options, int out, int err) {
  const int null = open("/dev/null", O_RDONLY);
  if (dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0) _exit(127);
  if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) _exit(127);
  if (options.address_space_limit) {
    const auto bytes = static_cast<rlim_t>(*options.address_space_limit);
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(127);
  }
  if (options.file_size_limit) {
    const auto bytes = static_cast<rlim_t>(*options.file_size_limit);
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(127);
  }
  if (options.obey_permissions && geteuid() == 0) {  // what exec gives to root again is bounded by this set
    for (int capability : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) {
      if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) _exit(127);
    }
  }
  if (options.one_core) {
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0) _exit(127);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++c) {
      if (CPU_ISSET(c, &all)) CPU_SET(c, &one);
    }
    if (sched_setaffinity(0, sizeof one, &one) != 0) _exit(127);
  }
}

// Reads both pipes until they close; signals the child when its time is over.
void follow(pid_t child, Pipe& out, Pipe& err, const RunOptions& options, Clock::time_point begin, Outcome& outcome) {
  Watch watch(options.kill_at);
  std::array<pollfd, 3> open{{{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}, {watch.fd(), POLLIN, 0}}};
  std::string* const texts[] = {&outcome.out, &outcome.err};
  bool killed = false;
  while (open[0].fd >= 0 || open[1].fd >= 0) {
    const double left = (killed ? options.deadline : options.kill_after.value_or(options.deadline)) - seconds_since(begin);
    if (left <= 0 && options.kill_after && !killed) {
      kill(child, options.kill_signal);
      killed = true;
      continue;
    }
    if (left <= 0) {
      kill(child, SIGKILL);
      outcome.timed_out = true;
    }
    const double wait_ms = outcome.timed_out ? 1000 : std::max(1.0, left * 1e3);
    if (poll(open.data(), open.size(), static_cast<int>(wait_ms)) < 0 && errno != EINTR) std::abort();
    if (open[2].revents != 0 && watch.reached()) kill(child, options.kill_signal);
    for (std::size_t i = 0; i < 2; ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = read(open[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        texts[i]->append(buffer, static_cast<std::size_t>(n));
      } else {
        open[i].fd = -1;  // poll passes over it
      }
    }
  }
}

}  // namespace

std::string Outcome::description() const {
  const std::string tail = out.size() > 2000 ? "..." + out.substr(out.size() - 2000) : out;
  return "status " + std::to_string(exit_status) + " after " + std::to_string(seconds) + " s\nstderr: " + err +
         "\nstdout: " + tail;
}

Outcome run_binary(const std::string& name, const std::vector<std::string>& arguments, const RunOptions& options) {
  const std::string path = std::string(REF5D_BUILD_DIR) + "/" + name;
  Outcome outcome;
  if (access(path.c_str(), X_OK) != 0) {
    ADD_FAILURE() << path << " cannot be run; build it first (make all)";
    return outcome;
  }
  std::vector<std::string> argument_texts{path}, environment_texts = environment_with(options.environment);
  if (options.ranks > 1) argument_texts = {"mpiexec", "-n", std::to_string(options.ranks), path};
  argument_texts.insert(argument_texts.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = pointers(argument_texts), envp = pointers(environment_texts);

  Pipe out, err;
  const int redirected = options.out_file.empty() ? -1 : open(options.out_file.c_str(), O_WRONLY | O_CLOEXEC);
  const Clock::time_point begin = Clock::now();
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child == 0) {
    prepare_child(options, redirected >= 0 ? redirected : out.ends[1], err.ends[1]);
    execvpe(argv[0], argv.data(), envp.data());  // mpiexec is on PATH
    _exit(127);
  }
  if (redirected >= 0) close(redirected);
  out.close_write();
  err.close_write();
  follow(child, out, err, options, begin, outcome);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  outcome.seconds = seconds_since(begin);
  outcome.exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  EXPECT_FALSE(outcome.timed_out) << name << " was killed at its deadline: " << outcome.description();
  EXPECT_NE(outcome.exit_status, 127) << name << " could not be started";
  return outcome;
}

std::vector<std::string> words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> out;
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

namespace {
std::vector<std::string> tiny_arguments(std::string_view flags) {
  std::vector<std::string> arguments = words(flags);
  // A text that does not change when a page does.
  const auto defaults =
      words("--data " REF5D_SOURCE_DIR
            "/LICENSE "
            "--layers 1 --hidden 16 --heads 2 --kv-heads 1 --ffn 24 --seq 16 --vocab 256 --steps 2 --grad-accum 2");
  const bool gpt2 = flags.find("--model tiny-gpt2") != std::string_view::npos;  // its kv heads follow its heads
  for (std::size_t i = 0; i < defaults.size(); i += 2) {
    if (std::find(arguments.begin(), arguments.end(), defaults[i]) != arguments.end()) continue;
    if (gpt2 && defaults[i] == "--kv-heads") continue;
    arguments.insert(arguments.end(), {defaults[i], defaults[i + 1]});
  }
  return arguments;
}
}  // namespace

Outcome run_tiny(std::string_view flags, const RunOptions& options) {
  return run_binary("01_grad_accum", tiny_arguments(flags), options);
}

Outcome run_tiny_on(int ranks, const std::string& program, std::string_view flags, RunOptions options) {
  options.ranks = ranks;
  return run_binary(program, tiny_arguments(flags), options);
}

void expect_one_error(const Outcome& outcome, int status, const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.exit_status, status) << outcome.description();
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(outcome.err.ends_with('\n')) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("01_grad_accum: ") || outcome.err.starts_with("02_ddp_zero: ") ||
              outcome.err.starts_with("03_tensor_parallel: ") || outcome.err.starts_with("04_seq_context_parallel: ") ||
              outcome.err.starts_with("05_pipeline: ") || outcome.err.starts_with("06_expert_parallel: ") ||
              outcome.err.starts_with("compare: ") || outcome.err.starts_with("bench: ") ||
              outcome.err.starts_with("kernels: ") || outcome.err.starts_with("plots: ") ||
              outcome.err.starts_with("bench_comm: "))
      << outcome.err;
  for (const std::string& part : parts) expect_contains(outcome.err, part);
  for (const char* success : {"checks hold", "claims hold", "checks and"})
    EXPECT_EQ(outcome.out.find(success), std::string::npos) << outcome.out;
}

std::vector<std::string> failing(const Report& report) {
  std::vector<std::string> names;
  for (const Check& c : report.checks) {
    if (!c.pass) names.push_back(c.name);
  }
  for (const Claim& c : report.claims) {
    if (!c.pass) names.push_back(c.name);
  }
  return names;
}

bool has_claim(const Report& report, const std::string& name) {
  return std::any_of(report.claims.begin(), report.claims.end(), [&](const Claim& c) { return c.name == name; });
}

Report passing_report(int ranks, const std::string& program, const std::string& flags) {
  const TempDir dir;
  const Outcome run = run_tiny_on(ranks, program, flags + " --quiet --json " + dir.path("r.json"));
  EXPECT_EQ(run.exit_status, 0) << flags << " on " << ranks << ": " << run.description();
  EXPECT_EQ(run.out, "");
  if (run.exit_status > 1) return {};
  Report report = read_report(dir.path("r.json"));
  EXPECT_EQ(failing(report), std::vector<std::string>{}) << flags << " on " << ranks;
  return report;
}

void expect_refusals(const std::string& program, const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.flags);
    const Outcome run = run_tiny_on(refusal.ranks, program, refusal.flags);
    expect_one_error(run, 2, refusal.parts);
    EXPECT_EQ(run.out, "");
    EXPECT_LT(run.seconds, 10);
  }
}

void expect_sabotages_noticed(const std::string& program, std::map<std::string, std::string> noticed_by,
                              const std::string& model, const std::map<std::string, int>& ranks) {
  const Outcome list = run_binary(program, {"--sabotage", "list"});
  std::istringstream lines(list.out);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = words(line)[0];
    const TempDir dir;
    RunOptions options;
    options.ranks = ranks.contains(name) ? ranks.at(name) : 2;
    const Outcome run =
        run_binary(program, words("--quiet " + model + " --sabotage " + name + " --json " + dir.path("r.json")), options);
    expect_one_error(run, 1, {"check failed: "});
    if (run.exit_status != 1) continue;
    const std::vector<std::string> failed = failing(read_report(dir.path("r.json")));
    const std::string& check = noticed_by[name];
    EXPECT_TRUE(!check.empty() &&
                std::any_of(failed.begin(), failed.end(), [&](const std::string& f) { return f.starts_with(check); }))
        << name << " fails no " << check << " but " << (failed.empty() ? "nothing" : failed[0]);
    noticed_by.erase(name);
  }
  EXPECT_TRUE(noticed_by.empty()) << noticed_by.begin()->first << " is not in the list";
}

std::map<std::string, std::vector<TraceEvent>> events_by_stream(const std::string& path, int rank) {
  const Json trace = Json::parse(read_file(path), path);
  std::map<std::int64_t, std::string> streams;
  std::map<std::string, std::vector<TraceEvent>> events;
  for (const Json& e : trace.at("traceEvents").items()) {
    if (e.at("name").as_string() == "thread_name") streams[e.at("tid").as_int()] = e.at("args").at("name").as_string();
  }
  for (const Json& e : trace.at("traceEvents").items()) {
    if (e.at("ph").as_string() != "X" || e.at("pid").as_int() != rank) continue;
    const double begin = e.at("ts").as_double();
    events[streams.at(e.at("tid").as_int())].push_back({e.at("name").as_string(), begin, begin + e.at("dur").as_double()});
  }
  for (auto& [stream, list] : events) {
    std::stable_sort(list.begin(), list.end(), [](const TraceEvent& a, const TraceEvent& b) { return a.begin < b.begin; });
  }
  return events;
}

NamedTensors read_tensors(const std::string& path) {
  const SafetensorsFile file(path);
  NamedTensors tensors;
  for (const std::string& name : file.names()) tensors[name] = file.read(name);
  return tensors;
}

NamedTensors with_prefix(const NamedTensors& tensors, const std::string& prefix) {
  NamedTensors some;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) some[name.substr(prefix.size())] = tensor;
  }
  return some;
}

void expect_identical(const NamedTensors& a, const NamedTensors& b) {
  EXPECT_EQ(a.size(), b.size());
  EXPECT_FALSE(a.empty());
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    if (other == b.end()) {
      ADD_FAILURE() << name << " is only in one of the two";
      continue;
    }
    EXPECT_EQ(tensor.dtype, other->second.dtype) << name;
    EXPECT_EQ(tensor.shape, other->second.shape) << name;
    EXPECT_TRUE(tensor.data == other->second.data) << name << " differs";
  }
}

}  // namespace ref5d::testing
