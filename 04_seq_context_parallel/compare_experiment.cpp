// Sequence and context parallelism side by side, and the kinds of context parallelism: what each cuts, sends and keeps.
#include <fmt/format.h>

#include "04_seq_context_parallel/experiments.h"
#include "common/app/measure.h"
#include "common/app/settings.h"
#include "common/comm/transport.h"
#include "common/verify/table.h"

namespace ref5d::seq_context_parallel {

namespace {

// One way to use all ranks.
struct Way {
  const char *name, *cuts, *sends;
  MeshSizes sizes;
  Lesson lesson;
};

struct Counted {
  Layout layout;
  std::int64_t calls = 0;       // of rank 0, over tp or cp, in the layers of a step
  std::int64_t sent = 0;        // by all ranks there
  std::int64_t kept = 0;        // by a layer, on rank 0
  std::int64_t parameters = 0;  // bytes on rank 0
  std::int64_t peak = 0;        // of activations and communication on rank 0
};

bool in_layers(const std::string& phase) { return phase == "forward" || phase == "backward" || phase == "recomputation"; }

std::int64_t peak_of(const Report& report, const std::string& category) {
  for (const MemoryRow& row : report.memory)
    if (row.rank == 0 && row.category == category) return row.peak_bytes;
  return 0;
}

Counted count(Experiment& e, const Way& way) {
  constexpr std::int64_t kSteps = 2;
  Mesh mesh(way.sizes, e.world.everyone().ranks);
  TrainerOptions settings = layout_settings(e.options, way.lesson, e.world, mesh);
  tensor_parallel::ActivationMeter meter(settings.model.layers);
  settings.cut = [&meter, before = settings.cut](Gpt& gpt) {
    if (before) before(gpt);
    gpt.hooks.push_back(&meter);
  };
  const Measured m = measure("04_seq_context_parallel", e.options, settings, kSteps, e.world, mesh);
  Counted c{layout_of(e.options, way.lesson, mesh)};
  for (const TrafficRow& row : m.report.traffic) {
    if (!in_layers(row.phase) || !(is_of_axis(row, "tp") || is_of_axis(row, "cp"))) continue;
    c.calls += row.calls / kSteps;
    c.sent += row.total_wire_bytes / kSteps;
  }
  c.kept = meter.bytes_per_layer();
  c.parameters = peak_of(m.report, "parameters");
  c.peak = peak_of(m.report, "activations") + peak_of(m.report, "communication");
  return c;
}

// Of the formulas, the same sums.
std::int64_t expected_bytes(const Layout& l) {
  std::int64_t bytes = 0;
  for (const auto& phases : {l.tp > 1 ? traffic_of_tp(l) : std::vector<PhaseTraffic>(), traffic_of_cp(l)})
    for (const PhaseTraffic& p : phases)
      if (in_layers(p.phase)) bytes += p.bytes;
  return bytes;
}

void claim_way(Experiment& e, const Way& way, const Counted& c) {
  if (!e.world.is_root()) return;
  const auto claim = [&](const char* what, std::int64_t expected, std::int64_t measured) {
    e.report.claims.push_back(make_claim(fmt::format("compare, {}: {}", way.name, what), static_cast<double>(expected),
                                         static_cast<double>(measured), 0, "bytes"));
  };
  claim("a layer keeps", kept_of_layer(c.layout, 0, 0).total(), c.kept);
  if (transport_counts_wire()) claim("sent by the layers of all ranks in a step", expected_bytes(c.layout), c.sent);
}

void claim_ratio(Experiment& e, const std::string& name, double expected, std::int64_t a, std::int64_t b) {
  if (e.world.is_root())
    e.report.claims.push_back(make_claim(name, expected, static_cast<double>(a) / static_cast<double>(b), 1e-12));
}

std::vector<std::string> row_of(const Experiment& e, const Way& way, const Counted& c) {
  const std::int64_t per_layer = c.layout.model.layers * e.options.grad_accum;
  return {way.name,
          way.cuts,
          way.sends,
          fmt::format("{}", c.calls / per_layer),
          grouped_digits(c.sent / per_layer / e.mesh.everyone().size()),
          grouped_digits(c.kept),
          grouped_digits(c.peak),
          grouped_digits(c.parameters)};
}

const std::vector<std::string> kHeadings{"", "cuts", "sends", "calls", "sent by a rank", "kept", "peak", "parameters"};

// Ranks along tp, with and without sequence parallelism, and along cp; replicas beside them, which cut nothing of a
// micro-batch.
void side_by_side(Experiment& e) {
  const std::int64_t n = e.mesh.everyone().size();
  const GptConfig model = model_config(e.options);
  Lesson plain = e.lesson;
  plain.sp = false;
  plain.context.kind = "ring";
  plain.strategy.kind = "naive";  // no buffers of gradients, which are the same whatever is cut
  Lesson gathered = plain, shard = plain;
  gathered.sp = shard.sp = true;
  gathered.sequence.keep = "gathered";
  shard.sequence.keep = "shard";
  std::vector<Way> ways{{"dp", "samples", "gradients", {.edp = n}, plain}};
  const bool heads_suffice = n <= std::min(model.heads, model.ffn);
  if (heads_suffice) {
    ways.push_back({"tp", "matrices", "all-reduce", {.tp = n}, plain});
    ways.push_back({"tp, sp, gathered", "and norms' tokens", "gather, scatter", {.tp = n}, gathered});
    ways.push_back({"tp, sp", "and norms' tokens", "gather, scatter", {.tp = n}, shard});
  }
  ways.push_back({"cp", "all tokens", "keys, values", {.cp = n}, plain});
  std::vector<std::vector<std::string>> table{kHeadings};
  std::vector<Counted> counts;
  for (const Way& way : ways) {
    counts.push_back(count(e, way));
    claim_way(e, way, counts.back());
    table.push_back(row_of(e, way, counts.back()));
  }
  const std::int64_t tokens = e.options.micro_batch * model.seq;
  if (heads_suffice && tokens % n == 0 && e.options.recompute == "none" && transport_counts_wire()) {
    claim_ratio(e, "compare, sp, gathered inputs kept: bytes of tensor parallelism's", 1, counts[2].sent, counts[1].sent);
    claim_ratio(e, "compare, sp, inputs gathered again: 10 units for 8", 1.25, counts[3].sent, counts[1].sent);
  }
  if (model.seq % n == 0)
    claim_ratio(e, "compare, cp: a layer keeps, of what it keeps uncut", 1.0 / static_cast<double>(n), counts.back().kept,
                counts.front().kept);
  if (e.prints())
    fmt::print("\nA layer and a micro-batch, forward and backward, over {} ranks; bytes\n{}", n,
               format_table(table, "lllrrrrr"));
}

void kinds(Experiment& e) {
  const std::int64_t n = e.mesh.everyone().size();
  const GptConfig model = model_config(e.options);
  const auto way = [&](const char* name, const char* cuts, const char* sends, const char* kind, int ulysses_size) {
    Way w{name, cuts, sends, {.cp = n}, e.lesson};
    w.lesson.sp = false;
    w.lesson.strategy.kind = "naive";
    w.lesson.context.kind = kind;
    w.lesson.context.ulysses_size = ulysses_size;
    return w;
  };
  std::vector<Way> ways{way("ring", "tokens", "keys, values", "ring", 0),
                        way("all-gather", "tokens", "keys, values", "allgather", 0)};
  if (n <= model.heads) ways.push_back(way("ulysses", "tokens, heads", "q, k, v, output", "ulysses", 0));
  if (n > 2 && n % 2 == 0 && model.heads >= 2) ways.push_back(way("ulysses 2 x ring", "tokens, heads", "both", "ulysses", 2));
  std::vector<std::vector<std::string>> table{kHeadings};
  for (const Way& w : ways) {
    const Counted c = count(e, w);
    claim_way(e, w, c);
    table.push_back(row_of(e, w, c));
  }
  if (e.prints())
    fmt::print("\nKinds of context parallelism, {} query heads and {} kv heads\n{}", model.heads, model.kv_heads,
               format_table(table, "lllrrrrr"));
}

}  // namespace

void compare_experiment(Experiment& e) {
  if (e.mesh.everyone().size() == 1) {
    if (e.prints()) fmt::print("\ncompare: left out, since one rank cuts nothing; mpiexec -n 4 shows it\n");
    return;
  }
  side_by_side(e);
  kinds(e);
}

}  // namespace ref5d::seq_context_parallel
