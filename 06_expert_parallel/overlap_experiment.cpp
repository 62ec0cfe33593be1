// What tokens under way hide behind: shared experts, and with DualPipe the other direction's passes. Ranks that share cores
// gain nothing from overlap on the clock, so the kernels' own times are replayed with a link of a stated speed
// (common/device/timeline.h), in which streams run side by side.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "06_expert_parallel/experiments.h"
#include "common/app/measure.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/verify/table.h"

namespace ref5d::expert_parallel {

namespace {

struct Setting {
  const char *name, *file;
  bool shared_beside;
  const char* schedule;  // empty: no pipeline
  [[nodiscard]] bool in_pipeline() const { return *schedule != '\0'; }
};
constexpr Setting kAfter{"shared experts when tokens are back", "after", false, ""};
constexpr Setting kMeanwhile{"shared experts meanwhile", "meanwhile", true, ""};
// Shared experts when tokens are back, so that pairs alone are compared.
constexpr Setting k1f1b{"pp 2, 1f1b", "1f1b", false, "1f1b"}, kDualPipe{"pp 2, dualpipe", "dualpipe", false, "dualpipe"};

std::string trace_file(const std::string& prefix, const Setting& s) { return fmt::format("{}.{}.json", prefix, s.file); }

// Messages along ep, and what of their time some stream computes in.
struct Hidden {
  double messages_us = 0, under_compute_us = 0;
  [[nodiscard]] double share() const { return messages_us == 0 ? 0 : under_compute_us / messages_us; }
};

// The time of [begin, end] in which something is computed, on however many streams at once: `work` by its begin.
double computed_in(double begin, double end, const std::vector<VirtualSpan>& work) {
  double covered = 0, reached = begin;
  for (const VirtualSpan& w : work) {
    const double to = std::min(w.start_us + w.duration_us, end);
    covered += std::max(0.0, to - std::max(w.start_us, reached));
    reached = std::max(reached, to);
  }
  return covered;
}

Hidden hidden_under_compute(const Measured& m, const VirtualRun& run) {
  const auto ep = std::find(m.streams.begin(), m.streams.end(), "ep") - m.streams.begin();
  std::vector<VirtualSpan> work;
  std::copy_if(run.spans.begin(), run.spans.end(), std::back_inserter(work),
               [](const VirtualSpan& s) { return !s.communication; });
  std::sort(work.begin(), work.end(), [](const VirtualSpan& a, const VirtualSpan& b) { return a.start_us < b.start_us; });
  Hidden h;
  for (const VirtualSpan& message : run.spans) {
    if (!message.communication || message.stream != ep) continue;
    h.messages_us += message.duration_us;
    h.under_compute_us += computed_in(message.start_us, message.start_us + message.duration_us, work);
  }
  return h;
}

// Always this model, whose layers are the same whatever the flags: what is compared is who waits for whom.
LayoutPlan plan_of(Experiment& e, const Setting& s, Mesh& mesh) {
  Options o;
  o.data = e.options.data;
  o.seed = e.options.seed;
  o.mesh = o.allows_experts = true;
  o.model = "tiny-deepseek";
  o.grad_accum = s.in_pipeline() ? 1 : 2;
  Lesson lesson = lesson_of_own("alltoall");
  lesson.expert.overlap = s.shared_beside;
  if (s.in_pipeline()) {
    lesson.pipeline.schedule.name = s.schedule;
    lesson.pipeline.schedule.ranks = static_cast<int>(mesh.size("pp"));
    lesson.pipeline.schedule.micro_batches = 8;
  }
  return plan_layout(o, lesson, e.world, mesh);
}

}  // namespace

std::vector<OutputFile> virtual_traces(const std::string& name, const std::string& prefix) {
  std::vector<OutputFile> files;
  if (prefix.empty() || (name != "overlap" && name != "all")) return files;
  for (const Setting* s : {&kAfter, &kMeanwhile, &k1f1b, &kDualPipe})
    files.push_back({"--virtual-trace", trace_file(prefix, *s)});
  return files;
}

void overlap_experiment(Experiment& e) {
  if (Device::mode() == "cuda")
    throw InputError("--experiment overlap replays times that MODE=cpu records; on GPUs --trace shows the overlap itself");
  const int ranks = e.mesh.everyone().size();
  if (ranks == 1 || ranks > 8) {
    if (e.prints()) fmt::print("\noverlap: left out; it is for 2 to 8 ranks\n");
    return;
  }
  std::vector<Setting> settings{kAfter, kMeanwhile};
  if (ranks % 2 == 0 && ranks >= 4) {
    settings.insert(settings.end(), {k1f1b, kDualPipe});
  }
  std::vector<std::vector<std::string>> table{{"setting", "messages along ep, us", "under computation, us", "of them"}};
  std::map<std::string, Hidden> hidden;
  std::map<std::string, std::string> fingerprints;
  for (const Setting& s : settings) {
    Mesh mesh(s.in_pipeline() ? MeshSizes{.pp = 2, .ep = ranks / 2} : MeshSizes{.ep = ranks}, e.mesh.everyone().ranks);
    const LayoutPlan plan = plan_of(e, s, mesh);
    const Measured m = measure("06_expert_parallel", plan.options, plan.settings, 5, e.world, mesh);
    const VirtualRun run = replay(m.timeline, e.link);
    const Hidden h = hidden_under_compute(m, run);
    if (!e.virtual_trace.empty() && e.world.is_root()) write_virtual_trace(trace_file(e.virtual_trace, s), m, run);
    hidden[s.name] = h;
    fingerprints[s.name] = m.fingerprint;
    table.push_back({s.name, fmt::format("{:.0f}", h.messages_us), fmt::format("{:.0f}", h.under_compute_us),
                     fmt::format("{:.0f}%", 100 * h.share())});
  }
  if (!e.world.is_root()) return;
  const auto claim_more = [&](const char* what, const char* with, const char* than) {
    const double more = hidden.at(with).share(), less = hidden.at(than).share();
    e.report.claims.push_back(make_claim(fmt::format("hidden in virtual time: more of the messages {}", what), 1,
                                         more > less ? 1 : 0, 0, "",
                                         fmt::format("{:.0f}% and {:.0f}%", 100 * more, 100 * less)));
  };
  claim_more("with shared experts meanwhile than after", kMeanwhile.name, kAfter.name);
  e.report.claims.push_back(make_claim("overlap: final weights that are the same bits", 1,
                                       fingerprints.at(kAfter.name) == fingerprints.at(kMeanwhile.name) ? 1 : 0));
  if (settings.size() > 2) claim_more("with F&B pairs than with 1f1b", kDualPipe.name, k1f1b.name);
  if (e.prints())
    fmt::print("\nTokens under way, rank 0 of {}, on a link of {:.0f} Mbit/s with {} us per exchange\n{}", ranks,
               e.link.bytes_per_us * 8, e.link.latency_us, format_table(table, "lrrr"));
}

}  // namespace ref5d::expert_parallel
