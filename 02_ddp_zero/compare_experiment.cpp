// Every strategy, and what forgetting one of its points costs, on the same model and batch.
#include <fmt/format.h>

#include <map>

#include "02_ddp_zero/claims.h"
#include "02_ddp_zero/experiments.h"
#include "02_ddp_zero/measure.h"
#include "common/app/settings.h"
#include "common/verify/table.h"

namespace ref5d::data_parallel {

namespace {

constexpr std::int64_t kSteps = 5;

struct CompareVariant {
  std::string name;
  StrategyOptions strategy;
};

std::vector<CompareVariant> variants(const StrategyOptions& given, std::int64_t micro_batches) {
  const auto make = [&](const char* name, const char* kind, void (*change)(StrategyOptions&) = nullptr) {
    StrategyOptions s;
    s.kind = kind;
    s.bucket_bytes = given.bucket_bytes;
    s.reduce_dtype = given.reduce_dtype;
    if (change != nullptr) change(s);
    return CompareVariant{name, s};
  };
  std::vector<CompareVariant> all{make("naive", "naive"), make("ddp", "ddp")};
  if (micro_batches > 1)
    all.push_back(make("ddp, no no_sync", "ddp", [](StrategyOptions& s) { s.sync_every_micro_batch = true; }));
  all.push_back(make("zero1", "zero1"));
  all.push_back(make("zero1, all-reduce", "zero1", [](StrategyOptions& s) { s.all_reduce_gradients = true; }));
  all.push_back(make("zero2", "zero2"));
  if (micro_batches > 1)
    all.push_back(make("zero2, full gradients", "zero2", [](StrategyOptions& s) { s.keep_full_gradients = true; }));
  all.push_back(make("zero3", "zero3"));
  all.push_back(make("zero3, one unit", "zero3", [](StrategyOptions& s) { s.whole_model_unit = true; }));
  all.push_back(make("hsdp", "hsdp"));
  return all;
}

struct CompareRow {
  double sent = 0, between_nodes = 0;         // by all ranks in a step
  double state_peak = 0;                      // of rank 0: the categories' peaks, added
  double calls = 0, step_ms = 0, tokens = 0;  // a step's
};

CompareRow row_of(const Measured& m) {
  CompareRow row;
  for (const TrafficRow& t : m.report.traffic) {
    if (t.phase == "loss" || t.phase == "norm") continue;
    row.sent += static_cast<double>(t.total_wire_bytes) / kSteps;
    row.between_nodes += static_cast<double>(t.total_between_nodes_bytes) / kSteps;
    row.calls += static_cast<double>(t.calls) / kSteps;
  }
  const RankMemory memory = measured_memory(m.report, 0);
  row.state_peak = static_cast<double>(memory.parameters_peak + memory.master + memory.gradients_peak +
                                       memory.accumulation_peak + memory.optimizer);
  row.step_ms = m.step_ms;
  row.tokens = m.report.timing.at("tokens_per_s") * m.step_ms / 1e3;
  return row;
}

void claim_ratio(Experiment& e, const std::map<std::string, CompareRow>& rows, const char* a, const char* b, double expected,
                 const std::string& note = "") {
  if (!rows.contains(a) || !rows.contains(b)) return;
  e.report.claims.push_back(
      make_claim(fmt::format("sent: {} / {}", a, b), expected, rows.at(a).sent / rows.at(b).sent, 0, "", note));
}

// Where a node's ranks share a copy, hsdp sends between nodes what its replicas add up, once. Under zero3 a rank sends to each
// of the others alike, of whom N - S are elsewhere.
void claim_between_nodes(Experiment& e, const std::map<std::string, CompareRow>& rows, int shard) {
  const int ranks = e.mesh["dp"].size(), nodes = e.world.node_count();
  if (nodes < 2 || shard * nodes != ranks || !groups_are_within_nodes(e.world, e.mesh["dp"].group().ranks, shard)) return;
  StrategyOptions s;
  s.kind = "hsdp";
  s.reduce_dtype = e.lesson.strategy.reduce_dtype;
  const Layout layout = layout_of(e.options, model_config(e.options), s, ranks, shard);
  e.report.claims.push_back(make_claim("between nodes: hsdp, by all ranks",
                                       static_cast<double>(expected_traffic(layout, s).between_replicas),
                                       rows.at("hsdp").between_nodes, 0, "bytes"));
  e.report.claims.push_back(make_claim("between nodes: zero3, by all ranks",
                                       rows.at("zero3").sent * (ranks - shard) / (ranks - 1), rows.at("zero3").between_nodes,
                                       1e-12, "bytes"));
}

// Of links between nodes that are the bottleneck, the ratio of bytes is what to expect of the speed.
void print_advantage(const std::map<std::string, CompareRow>& rows, const char* a, const char* b) {
  const CompareRow &x = rows.at(a), &y = rows.at(b);
  fmt::print("{} against {}: {:.2f}x the tokens per second, with 1/{:.2f} of the bytes between nodes\n", a, b,
             y.step_ms / x.step_ms, y.between_nodes / x.between_nodes);
}

// Sent by all ranks, of one layout and another, both from the formulas.
double formula(const Experiment& e, const StrategyOptions& s, int shard) {
  const Layout layout = layout_of(e.options, model_config(e.options), s, e.mesh["dp"].size(), shard);
  return static_cast<double>(expected_traffic(layout, s).total());
}

}  // namespace

void compare_experiment(Experiment& e) {
  const int ranks = e.mesh["dp"].size(), shard = hsdp_shard_size(e.lesson.shard_size, e.world, e.mesh);
  std::map<std::string, CompareRow> rows;
  std::map<std::string, double> formulas;
  std::vector<std::vector<std::string>> table{{"strategy", "sent per rank and step", "x (N-1)/N Psi", "between nodes", "calls",
                                               "state, peak", "per parameter", "ms", "tok/s"}};
  const auto parameters = static_cast<double>(model_config(e.options).parameter_count());
  const double unit = parameters * static_cast<double>(dtype_size(e.options.dtype)) * (ranks - 1) / ranks;
  for (const CompareVariant& v : variants(e.lesson.strategy, e.options.grad_accum)) {
    const CompareRow row = row_of(measure(e.options, v.strategy, shard, kSteps, e.world, e.mesh));
    rows[v.name] = row;
    formulas[v.name] = formula(e, v.strategy, v.strategy.kind == "hsdp" ? shard : ranks);
    table.push_back({v.name, grouped_digits(static_cast<std::int64_t>(row.sent / ranks)),
                     ranks == 1 ? "" : fmt::format("{:.3f}", row.sent / ranks / unit),
                     grouped_digits(static_cast<std::int64_t>(row.between_nodes / ranks)), fmt::format("{:.0f}", row.calls),
                     human_bytes(static_cast<std::int64_t>(row.state_peak)),
                     fmt::format("{:.2f} B", row.state_peak / parameters), fmt::format("{:.1f}", row.step_ms),
                     fmt::format("{:.0f}", row.tokens / row.step_ms * 1e3)});
  }
  if (e.prints())
    fmt::print("\n{} ranks, {} micro-batches, {}: what each strategy sends and holds\n{}", ranks, e.options.grad_accum,
               dtype_name(e.options.dtype), format_table(table, "lrrrrrrrr"));
  if (!e.world.is_root() || ranks == 1 || !transport_counts_wire()) return;
  if (e.prints() && e.world.node_count() > 1) {
    print_advantage(rows, "hsdp", "zero3");
    print_advantage(rows, "zero2", "zero3");
  }
  const auto expect = [&](const char* a, const char* b, const std::string& note = "") {
    if (formulas.contains(a) && formulas.contains(b)) claim_ratio(e, rows, a, b, formulas[a] / formulas[b], note);
  };
  claim_ratio(e, rows, "ddp, no no_sync", "ddp", static_cast<double>(e.options.grad_accum), "forgetting no_sync");
  expect("zero1, all-reduce", "zero1", "an all-reduce where a reduce-scatter would do");
  expect("zero3", "zero2");
  expect("zero2", "zero2, full gradients");
  expect("hsdp", "zero3");
  claim_between_nodes(e, rows, shard);
}

}  // namespace ref5d::data_parallel
