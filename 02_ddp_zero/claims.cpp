#include "02_ddp_zero/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "02_ddp_zero/replicas.h"

namespace ref5d::data_parallel {

namespace {

bool shards_weights(const StrategyOptions& s) { return s.kind == "zero3" || s.kind == "hsdp"; }
bool shards_gradients(const StrategyOptions& s) { return shards_weights(s) || (s.kind == "zero2" && !s.keep_full_gradients); }
bool shards_optimizer(const StrategyOptions& s) { return s.kind != "naive" && s.kind != "ddp"; }

// Elements of a kind's groups, with padding.
std::int64_t padded_of(const Layout& l, bool expert) {
  std::int64_t n = 0;
  for (const FlatGroup& g : l.groups)
    if (g.expert == expert) n += g.padded_numel();
  return n;
}

// Those that are gathered in one pass over the units in this order: a group stays as long as the next unit uses it.
std::int64_t gathered(const Layout& l, bool backward, bool expert) {
  std::int64_t n = 0;
  std::vector<std::size_t> before;
  const auto units = static_cast<std::ptrdiff_t>(l.of_unit.size());
  for (std::ptrdiff_t i = 0; i < units; ++i) {
    const auto& now = l.of_unit[static_cast<std::size_t>(backward ? units - 1 - i : i)];
    for (std::size_t g : now)
      if (l.groups[g].expert == expert && std::find(before.begin(), before.end(), g) == before.end())
        n += l.groups[g].padded_numel();
    before = now;
  }
  return n;
}

// Elements of whole weights that are on a rank at the same time, at most: a unit's and, with prefetch, the next one's.
std::int64_t most_whole_weights(const Layout& l, bool prefetch) {
  std::int64_t most = 0;
  for (std::size_t u = 0; u < l.of_unit.size(); ++u) {
    std::set<std::size_t> here(l.of_unit[u].begin(), l.of_unit[u].end());
    if (prefetch && u + 1 < l.of_unit.size()) here.insert(l.of_unit[u + 1].begin(), l.of_unit[u + 1].end());
    std::int64_t n = 0;
    for (std::size_t g : here) n += l.groups[g].padded_numel();
    most = std::max(most, n);
  }
  return most;
}

// Elements of whole gradients that are on a rank at the same time, at most: a unit's that is being filled and the one's before
// it that is on its way. One that the first and the last unit use (a tied weight's) is there all along.
std::int64_t most_whole_gradients(const Layout& l, std::size_t begin, std::size_t end) {
  std::int64_t most = 0, before = 0, standing = 0;
  std::set<std::size_t> opened(l.across_stages.begin(), l.across_stages.end());
  const auto& first = l.of_unit[begin];
  for (std::size_t u = end; u-- > begin;) {
    std::int64_t filled = 0;
    for (std::size_t g : l.of_unit[u]) {
      if (!opened.insert(g).second) continue;
      const bool stays = u > begin && std::find(first.begin(), first.end(), g) != first.end();
      (stays ? standing : filled) += l.groups[g].padded_numel();
    }
    most = std::max(most, standing + before + filled);
    if (filled > 0) before = filled;
  }
  return most;
}

std::int64_t most_whole_gradients(const Layout& l) {
  std::int64_t most = 0;
  for (const Units& units : l.passes) {
    const std::size_t end = units.end < 0 ? l.of_unit.size() : static_cast<std::size_t>(units.end);
    most = std::max(most, most_whole_gradients(l, static_cast<std::size_t>(units.begin), end));
  }
  return most;
}

// Elements of gradients that stay whole over a step, with padding and without. (They are no experts.)
std::int64_t padded_across_stages(const Layout& l) {
  std::int64_t n = 0;
  for (std::size_t g : l.across_stages) n += l.groups[g].padded_numel();
  return n;
}
std::int64_t across_stages(const Layout& l) {
  std::int64_t n = 0;
  for (std::size_t g : l.across_stages) n += l.groups[g].numel;
  return n;
}

}  // namespace

Layout layout_of(const Options& o, const GptConfig& model, const StrategyOptions& s, int ranks, int shard) {
  return layout_of(o, Gpt(model), s, ranks, shard);
}

Layout layout_of(const Options& o, const Gpt& gpt, const StrategyOptions& s, int ranks, int shard) {
  return layout_of(o, gpt, s, {ranks, shard}, {ranks, shard});
}

Layout layout_of(const Options& o, const Gpt& gpt, const StrategyOptions& s, const RanksOf& ordinary, const RanksOf& experts) {
  const bool bf16 = o.dtype == Dtype::kBf16;
  Layout l;
  l.ordinary = ordinary;
  l.experts = experts;
  l.micro_batches = o.grad_accum;
  l.masters = bf16;
  l.separate_sum = bf16 && o.fp32_grads && !o.fused_grad_accum;
  l.fused_sum = bf16 && o.fp32_grads && o.fused_grad_accum;
  const auto bytes = [](Dtype d) { return static_cast<std::int64_t>(dtype_size(d)); };
  l.weight_bytes = bytes(o.dtype);
  l.wide_bytes = bytes(accumulator_of(o.dtype));
  l.sum_bytes = l.separate_sum || l.fused_sum ? 4 : l.weight_bytes;
  l.reduce_bytes = bf16 ? bytes(s.reduce_dtype) : l.weight_bytes;
  const ByKind shards(ordinary.shard, experts.shard);
  if (shards_gradients(s)) {
    l.groups = make_units(gpt, s.whole_model_unit, shards);
  } else if (s.kind == "naive") {
    l.groups = make_units(gpt, true, 1);
  } else {
    l.groups = make_buckets(gpt, s.bucket_bytes, static_cast<std::size_t>(l.sum_bytes), shards_optimizer(s) ? shards : 1);
  }
  l.of_unit = groups_of_units(gpt, l.groups);
  for (std::size_t g = 0; g < l.groups.size() && shards_gradients(s); ++g)
    if (l.groups[g].members.front().parameter->across_stages) l.across_stages.push_back(g);
  std::vector<FlatGroup> sizes;
  for (const FlatGroup& g : l.groups) sizes.push_back({.members = {}, .numel = g.numel, .ranks = g.ranks, .expert = g.expert});
  l.groups = FlatGroups(std::move(sizes));
  l.parameters = l.groups.numel();
  for (const Parameter* p : gpt.buffers()) l.buffer_bytes += p->local_numel() * l.wide_bytes;
  return l;
}

namespace {

// What the ranks that have a kind's parameters send for them. A collective over N ranks sends B (N-1)/N bytes from each, B
// (N-1) in all: a reduce-scatter or a gather of B bytes. An all-reduce is one of each.
StepTraffic traffic_of(const Layout& l, const StrategyOptions& s, bool expert) {
  const std::int64_t padded = padded_of(l, expert), replicas = l.ranks_of(expert).replicas();
  const std::int64_t others = l.ranks_of(expert).shard - 1;
  StepTraffic t;
  if (shards_gradients(s)) {
    const std::int64_t once = expert ? 0 : padded_across_stages(l);
    t.gradients = replicas * (l.micro_batches * (padded - once) + once) * l.reduce_bytes * others;
    t.between_replicas = 2 * padded * l.reduce_bytes * (replicas - 1);  // once, whatever the micro-batches
  } else {
    const std::int64_t halves = shards_optimizer(s) && !s.all_reduce_gradients ? 1 : 2;
    t.gradients = (s.sync_every_micro_batch ? l.micro_batches : 1) * halves * padded * l.reduce_bytes * others;
  }
  if (shards_weights(s)) {
    t.forward = replicas * l.micro_batches * gathered(l, false, expert) * l.weight_bytes * others;
    t.backward = replicas * l.micro_batches * gathered(l, true, expert) * l.weight_bytes * others;
  } else if (shards_optimizer(s)) {
    t.weights = padded * l.weight_bytes * others;
  }
  return t;
}

}  // namespace

StepTraffic expected_traffic(const Layout& l, const StrategyOptions& s) { return expected_traffic(std::vector{l}, s); }

StepTraffic expected_traffic(const std::vector<Layout>& layouts, const StrategyOptions& s) {
  StepTraffic all, experts;
  for (const Layout& l : layouts) {
    all += traffic_of(l, s, false);
    experts += traffic_of(l, s, true);
  }
  all /= layouts.front().ordinary.ranks / layouts.front().experts.ranks;  // as many have the same ordinary groups
  return all += experts;
}

StepTraffic measured_traffic(const Report& report, std::int64_t steps) {
  StepTraffic t;
  for (const TrafficRow& row : report.traffic) {
    if (!is_data_parallel(row.axis)) continue;
    const std::int64_t bytes = row.total_wire_bytes / steps;
    if (row.phase == "gradients") (row.axis.ends_with("/outer") ? t.between_replicas : t.gradients) += bytes;
    if (row.phase == "weights") t.weights += bytes;
    if (row.phase == "forward") t.forward += bytes;
    if (row.phase == "backward") t.backward += bytes;
  }
  return t;
}

RankMemory expected_memory(const Layout& l, const StrategyOptions& s, ByKind rank) {
  std::int64_t shards = 0, own = 0;  // with padding, and without
  for (const FlatGroup& g : l.groups) {
    shards += g.shard_numel();
    own += g.own_numel(rank.of(g.expert));
  }
  RankMemory m;
  m.parameters = m.parameters_peak = (shards_optimizer(s) ? l.groups.padded_numel() : l.parameters) * l.weight_bytes;
  if (shards_weights(s)) {
    m.parameters = shards * l.weight_bytes;
    m.parameters_peak = m.parameters + most_whole_weights(l, s.prefetch) * l.weight_bytes;
  }
  m.parameters += l.buffer_bytes;
  m.parameters_peak += l.buffer_bytes;
  const std::int64_t updated = shards_optimizer(s) ? own : l.parameters;
  m.optimizer = 2 * l.wide_bytes * updated;
  if (l.masters) m.master = 4 * updated;

  const bool wide_sum = l.separate_sum || l.fused_sum;
  std::int64_t& sum = wide_sum ? m.accumulation : m.gradients;
  std::int64_t& sum_peak = wide_sum ? m.accumulation_peak : m.gradients_peak;
  if (shards_gradients(s)) {
    sum = (shards + padded_across_stages(l)) * l.sum_bytes;
    if (l.separate_sum) m.gradients = across_stages(l) * l.weight_bytes;
    m.gradients_peak = m.gradients;
    m.accumulation_peak = m.accumulation;
    (l.fused_sum ? m.accumulation_peak : m.gradients_peak) +=
        most_whole_gradients(l) * (l.fused_sum ? l.sum_bytes : l.weight_bytes);
  } else {
    sum = sum_peak = l.groups.padded_numel() * l.sum_bytes;
    if (l.separate_sum) m.gradients = m.gradients_peak = l.parameters * l.weight_bytes;
  }
  return m;
}

RankMemory measured_memory(const Report& report, std::int64_t rank) {
  RankMemory m;
  for (const MemoryRow& row : report.memory) {
    if (row.rank != rank) continue;
    if (row.category == "parameters") m.parameters = row.current_bytes, m.parameters_peak = row.peak_bytes;
    if (row.category == "master") m.master = row.peak_bytes;
    if (row.category == "optimizer") m.optimizer = row.peak_bytes;
    if (row.category == "gradients") m.gradients = row.current_bytes, m.gradients_peak = row.peak_bytes;
    if (row.category == "gradient accumulation") m.accumulation = row.current_bytes, m.accumulation_peak = row.peak_bytes;
  }
  return m;
}

namespace {

struct NamedBytes {
  const char* name;
  std::int64_t expected, measured;
};

std::vector<NamedBytes> compare(const RankMemory& e, const RankMemory& m) {
  return {{"parameters", e.parameters, m.parameters},
          {"parameters, peak", e.parameters_peak, m.parameters_peak},
          {"master", e.master, m.master},
          {"gradients", e.gradients, m.gradients},
          {"gradients, peak", e.gradients_peak, m.gradients_peak},
          {"gradient accumulation", e.accumulation, m.accumulation},
          {"gradient accumulation, peak", e.accumulation_peak, m.accumulation_peak},
          {"optimizer", e.optimizer, m.optimizer}};
}

void claim_bytes(Report& report, const std::string& name, std::int64_t expected, std::int64_t measured) {
  report.claims.push_back(make_claim(name, static_cast<double>(expected), static_cast<double>(measured), 0, "bytes"));
}

void claim_traffic(Report& report, const std::vector<Layout>& layouts, const StrategyOptions& s, const std::string& axis) {
  const auto steps = static_cast<std::int64_t>(report.loss.size());
  const StepTraffic expected = expected_traffic(layouts, s), measured = measured_traffic(report, steps);
  const NamedBytes rows[] = {{"gradients", expected.gradients, measured.gradients},
                             {"gradients between replicas", expected.between_replicas, measured.between_replicas},
                             {"weights after the update", expected.weights, measured.weights},
                             {"weights for forward", expected.forward, measured.forward},
                             {"weights for backward", expected.backward, measured.backward}};
  for (const NamedBytes& row : rows) {
    if (row.expected > 0 || row.measured > 0)
      claim_bytes(report, fmt::format("{}sent in a step by all ranks: {}", axis, row.name), row.expected, row.measured);
  }
  std::int64_t everything = 0;  // under whatever phase
  for (const TrafficRow& row : report.traffic)
    if (is_data_parallel(row.axis) && row.phase != "loss" && row.phase != "norm" && row.phase != "router load")
      everything += row.total_wire_bytes;
  claim_bytes(report, axis + "sent in all steps by all ranks, but for loss and norm", steps * expected.total(), everything);
  const Layout& l = layouts.front();
  if (layouts.size() > 1 || l.ordinary.ranks == 1 || l.weight_bytes != l.reduce_bytes || l.ordinary.replicas() > 1) return;
  // In units of Psi (N-1)/N bytes for each rank, padding included in Psi.
  const double unit = static_cast<double>(l.groups.padded_numel() * l.weight_bytes * (l.ordinary.ranks - 1));
  report.claims.push_back(make_claim(axis + "sent in a step by a rank, in units of all parameters x (N-1)/N",
                                     static_cast<double>(expected.total()) / unit, static_cast<double>(measured.total()) / unit,
                                     0, ""));
}

}  // namespace

void claim_costs(Report& report, const std::vector<Layout>& layouts, const StrategyOptions& s) {
  const std::size_t parts = layouts.size();
  std::vector<RankPart> ranks;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(layouts.front().ordinary.ranks) * parts; ++rank)
    ranks.push_back({rank % parts, static_cast<int>(rank / parts)});
  claim_costs(report, layouts, ranks, s, parts > 1 ? "dp, " : "");
}

void claim_costs(Report& report, const std::vector<Layout>& layouts, const std::vector<RankPart>& parts,
                 const StrategyOptions& s, const std::string& axis) {
  // What NCCL sends is not counted, but taken from the same formulas.
  const bool alone = layouts.size() > 1 && layouts.front().ordinary.ranks == 1;
  if (!report.loss.empty() && transport_counts_wire() && !alone) claim_traffic(report, layouts, s, axis);
  const auto ranks = static_cast<int>(parts.size());
  std::int64_t others = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const RankPart& part = parts[static_cast<std::size_t>(rank)];
    const Layout& l = layouts[part.layout];
    const ByKind shard(part.place.ordinary % l.ordinary.shard, part.place.experts % l.experts.shard);
    for (const NamedBytes& row : compare(expected_memory(l, s, shard), measured_memory(report, rank))) {
      if (rank > 0) {
        others += row.expected == row.measured ? 0 : 1;
      } else if (row.expected > 0 || row.measured > 0) {
        claim_bytes(report, fmt::format("memory of rank 0: {}", row.name), row.expected, row.measured);
      }
    }
  }
  if (ranks > 1)
    report.claims.push_back(make_claim("memory of the other ranks: categories that differ from the formulas", 0,
                                       static_cast<double>(others), 0, ""));
}

}  // namespace ref5d::data_parallel
