// What a ring's messages add to a step, beside the computation and before it, with as many kv heads as query heads and with
// fewer. Ranks that share cores gain nothing from overlap on the clock, so the kernels' own times are replayed with a link of a
// stated speed (common/device/timeline.h). With zigzag and rows of one document all ranks have the same to
// do at every hop, so rank 0 speaks for all. Only the ring is on the link: what gradients' reductions take is lesson 02's.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "04_seq_context_parallel/experiments.h"
#include "common/app/cost_claims.h"
#include "common/app/measure.h"
#include "common/app/settings.h"
#include "common/comm/transport.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/verify/table.h"

namespace ref5d::seq_context_parallel {

namespace {

std::string overlap_trace(const std::string& prefix, bool grouped, bool overlap) {
  return fmt::format("{}.{}.{}.json", prefix, grouped ? "gqa" : "mha", overlap ? "overlap" : "no-overlap");
}

struct RingRun {
  std::int64_t kv_heads = 0, ring_bytes = 0;  // sent over cp by all ranks in a step
  Measured measured;
  VirtualRun replayed;
};

// The entries without what other communication consists of: messages, and the kernels on their streams that add them up.
std::vector<TimelineEntry> of_ring(const Measured& m) {
  std::vector<TimelineEntry> entries;
  for (const TimelineEntry& entry : m.timeline) {
    using Kind = TimelineEntry::Kind;
    const std::string& stream = m.streams[static_cast<std::size_t>(entry.stream)];
    const bool of_others = (entry.kind == Kind::kCommunication && stream != "cp") ||
                           (entry.kind == Kind::kWork && stream != "cp" && entry.stream != 0);
    if (!of_others) entries.push_back(entry);
  }
  return entries;
}

// Both ways of a ring run the same kernels in the same order, and differ in what waits for what: they are replayed with the
// same times, those of the first.
void take_times_of(std::vector<TimelineEntry>& entries, const std::vector<TimelineEntry>& first) {
  const auto is_work = [](const TimelineEntry& e) { return e.kind == TimelineEntry::Kind::kWork && e.stream == 0; };
  auto from = first.begin();
  for (TimelineEntry& entry : entries) {
    if (!is_work(entry)) continue;
    from = std::find_if(from, first.end(), is_work);
    if (from == first.end() || from->name != entry.name) throw std::logic_error("the two rings run different kernels");
    entry.us = (from++)->us;
  }
}

RingRun run_ring(Experiment& e, std::int64_t kv_heads, bool overlap) {
  constexpr std::int64_t kSteps = 5;
  Options options = e.options;
  options.kv_heads = kv_heads;
  options.documents = "none";
  options.load.clear();  // weights of other shapes; what they are does not matter
  Lesson lesson = e.lesson;
  lesson.sabotage = nullptr;
  lesson.context.kind = "ring";  // what the others send, attention waits for
  lesson.context.layout = "zigzag";
  lesson.context.overlap = lesson.tensor.overlap = overlap;
  const TrainerOptions settings = layout_settings(options, lesson, e.world, e.mesh);
  RingRun run{kv_heads, 0, measure("04_seq_context_parallel", options, settings, kSteps, e.world, e.mesh), {}};
  run.measured.timeline = of_ring(run.measured);
  for (const TrafficRow& row : run.measured.report.traffic)
    if (is_of_axis(row, "cp")) run.ring_bytes += row.total_wire_bytes / kSteps;
  return run;
}

// The largest number of kv heads that divides the heads, of a quarter of them at most.
std::int64_t quarter_of(std::int64_t heads) {
  std::int64_t few = std::max<std::int64_t>(heads / 4, 1);
  while (heads % few != 0) --few;
  return few;
}

std::vector<std::string> row_of(const RingRun& run, bool overlap) {
  const VirtualRun& v = run.replayed;
  const double share = v.communication_us > 0 ? v.exposed_us() / v.communication_us : 0;
  return {fmt::format("{}", run.kv_heads),       overlap ? "beside the hop before" : "before its hop",
          fmt::format("{:.0f}", v.compute_us),   fmt::format("{:.0f}", v.communication_us),
          fmt::format("{:.0f}", v.exposed_us()), fmt::format("{:.0f}%", 100 * share),
          fmt::format("{:.0f}", v.total_us)};
}

}  // namespace

std::vector<OutputFile> overlap_traces(const std::string& prefix) {
  if (prefix.empty()) return {};
  std::vector<OutputFile> files;
  for (const bool grouped : {false, true})
    for (const bool overlap : {false, true}) files.push_back({"--virtual-trace", overlap_trace(prefix, grouped, overlap)});
  return files;
}

void overlap_experiment(Experiment& e) {
  if (Device::mode() == "cuda")
    throw InputError("--experiment overlap replays times that MODE=cpu records; on GPUs --trace shows the overlap itself");
  const GptConfig model = model_config(e.options);
  if (e.mesh.size("cp") == 1 || model.family == Family::kGpt2) {
    if (e.prints())
      fmt::print("\noverlap: left out, since {}; --cp 2 and a model with grouped queries show it\n",
                 model.family == Family::kGpt2 ? "this model has as many kv heads as query heads" : "one rank sends nothing");
    return;
  }
  // The model's own kv heads, or a quarter of its heads where these are all of them.
  const std::int64_t tp = e.mesh.size("tp"), few = model.kv_heads < model.heads ? model.kv_heads : quarter_of(model.heads);
  std::vector<std::vector<std::string>> table{
      {"kv heads", "keys travel", "computation, us", "on the link, us", "exposed, us", "of it", "virtual step, us"}};
  RingRun runs[2][2];
  for (const bool grouped : {false, true}) {
    for (const bool overlap : {false, true}) {
      RingRun& run = runs[grouped ? 1 : 0][overlap ? 1 : 0];
      run = run_ring(e, grouped ? few : model.heads, overlap);
      if (overlap) take_times_of(run.measured.timeline, runs[grouped ? 1 : 0][0].measured.timeline);
      run.replayed = replay(run.measured.timeline, e.link);
      if (!e.virtual_trace.empty() && e.world.is_root())
        write_virtual_trace(overlap_trace(e.virtual_trace, grouped, overlap), run.measured, run.replayed);
      table.push_back(row_of(run, overlap));
    }
  }
  if (!e.world.is_root()) return;
  const auto exposed = [&](int grouped, int overlap) { return runs[grouped][overlap].replayed.exposed_us(); };
  const auto claim_less = [&](const std::string& name, double less, double more) {
    e.report.claims.push_back(make_claim(name, 1, less < more ? 1 : 0, 0, "", fmt::format("{:.0f} and {:.0f} us", less, more)));
  };
  if (e.default_link) {
    // The attention of a few tokens takes less than a message.
    if (model.seq >= 8 * e.mesh.size("cp"))
      claim_less("exposed in virtual time: less than half beside the hop before", exposed(1, 1), exposed(1, 0) / 2);
    claim_less("exposed in virtual time: less with grouped queries", exposed(1, 0), exposed(0, 0));
  }
  for (const int grouped : {0, 1})
    e.report.claims.push_back(
        make_claim(fmt::format("overlap, {} kv heads: final weights that are the same bits", runs[grouped][0].kv_heads), 1,
                   runs[grouped][0].measured.fingerprint == runs[grouped][1].measured.fingerprint ? 1 : 0));
  if (transport_counts_wire() && model.heads % few == 0 && few % tp == 0)
    e.report.claims.push_back(
        make_claim("sent over cp, grouped queries to as many kv heads as heads",
                   static_cast<double>(few) / static_cast<double>(model.heads),
                   static_cast<double>(runs[1][1].ring_bytes) / static_cast<double>(runs[0][1].ring_bytes), 1e-12));
  if (e.prints())
    fmt::print("\nThe ring in a step, rank 0, on a link of {:.0f} Mbit/s with {} us per exchange\n{}", e.link.bytes_per_us * 8,
               e.link.latency_us, format_table(table, "rlrrrrr"));
}

}  // namespace ref5d::seq_context_parallel
