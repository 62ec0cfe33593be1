// Who computes how much at which hop: pairs counted, drawn and timed. The causal mask gives late tokens more to see than early
// ones, so which tokens a rank has decides how much it has to do.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "04_seq_context_parallel/experiments.h"
#include "04_seq_context_parallel/hop_times.h"
#include "04_seq_context_parallel/ring_work.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/io/file.h"
#include "common/io/trace.h"
#include "common/verify/table.h"

namespace ref5d::seq_context_parallel {

using namespace context_parallel;

namespace {

using Pairs = ByHop<std::int64_t>;

void claim(Experiment& e, const std::string& name, double expected, double measured, double tolerance = 0,
           const std::string& note = "") {
  e.report.claims.push_back(make_claim(name, expected, measured, tolerance, "", note));
}

// Ranks of the ring that is counted: the run's, or four.
int ring_of(const Experiment& e) { return e.mesh.size("cp") > 1 ? static_cast<int>(e.mesh.size("cp")) : 4; }

// Keys and values of a rank's tokens.
std::int64_t bytes_of_hop(const Experiment& e) {
  const GptConfig c = model_config(e.options);
  const int n = ring_of(e);
  return (c.seq + n - 1) / n * 2 * c.kv_heads * c.head_dim() * static_cast<std::int64_t>(dtype_size(e.options.dtype));
}

// A table of a layout: a row for each rank, a column for each hop.
std::string table_of(const Pairs& pairs) {
  std::vector<std::vector<std::string>> table{{"rank"}};
  const int n = static_cast<int>(pairs.size());
  for (int hop = 0; hop < n; ++hop) table[0].push_back(fmt::format("hop {}", hop));
  for (const char* heading : {"pairs", "of the mean", "hops with work"}) table[0].emplace_back(heading);
  const double mean = static_cast<double>(pairs_of_all(pairs)) / n;
  for (int r = 0; r < n; ++r) {
    std::vector<std::string>& row = table.emplace_back(std::vector{fmt::format("{}", r)});
    for (const std::int64_t p : pairs[static_cast<std::size_t>(r)]) row.push_back(p == 0 ? "-" : grouped_digits(p));
    row.push_back(grouped_digits(pairs_of(pairs, r)));
    row.push_back(fmt::format("{:.3f}", static_cast<double>(pairs_of(pairs, r)) / mean));
    row.push_back(fmt::format("{}", hops_with_work(pairs, r)));
  }
  return format_table(table, std::string(table[0].size(), 'r'));
}

// The layouts' squares side by side: a row for a query, a column for a key, and in it the hop at which its rank computes the
// pair.
std::string squares(const std::vector<std::string>& names, std::int64_t length, int ranks) {
  // Each row: the rank of the query, and the hops.
  std::string text = "rank";
  for (const std::string& name : names) text += fmt::format("    {:<{}}", name, length);
  while (text.ends_with(' ')) text.pop_back();
  text += "\n";
  for (std::int64_t q = 0; q < length; ++q) {
    text += "    ";
    for (const std::string& name : names) {
      const SequenceLayout layout = make_layout(name, length, ranks);
      const auto rank_of = [&](std::int64_t place) {
        for (int r = 0; r < ranks; ++r)
          if (std::binary_search(layout.of(r).begin(), layout.of(r).end(), static_cast<std::int32_t>(place))) return r;
        return -1;
      };
      text += fmt::format("{}  ", rank_of(q));
      for (std::int64_t k = 0; k < length; ++k)
        text += k > q ? " " : fmt::format("{}", (rank_of(q) - rank_of(k) + ranks) % ranks);
      text += " ";
    }
    while (text.ends_with(' ')) text.pop_back();
    text += "\n";
  }
  return text;
}

// The same for a picture: one line for each visible pair.
std::string squares_file(const std::string& name, std::int64_t length, int ranks) {
  const SequenceLayout layout = make_layout(name, length, ranks);
  std::string text = "query,key,rank,hop\n";
  for (int r = 0; r < ranks; ++r)
    for (int hop = 0; hop < ranks; ++hop)
      for (const std::int32_t q : layout.of(r))
        for (const std::int32_t k : layout.of((r - hop + ranks) % ranks))
          if (k <= q) text += fmt::format("{},{},{},{}\n", q, k, r, hop);
  return text;
}

// Sequences of `length` tokens over n ranks: 2 n divides the length, so that the formulas are exact.
void claim_counts_of_layouts(Experiment& e, int n, std::int64_t length) {
  const std::int64_t each = length / n;
  const auto count = [&](const char* name) { return count_pairs(make_layout(name, length, n), one_document(length)); };
  const Pairs contiguous = count("contiguous"), zigzag = count("zigzag"), striped = count("striped");
  const std::string of = fmt::format("{} ranks, {} tokens", n, length);
  claim(e, "contiguous: hops with work, last rank to first, " + of, n,
        static_cast<double>(hops_with_work(contiguous, n - 1)) / hops_with_work(contiguous, 0));
  // c^2 at each of the N-1 hops and c (c + 1) / 2 at home, to the latter alone.
  claim(e, "contiguous: pairs, last rank to first, " + of,
        static_cast<double>(2 * (n - 1) * each + each + 1) / static_cast<double>(each + 1),
        static_cast<double>(pairs_of(contiguous, n - 1)) / static_cast<double>(pairs_of(contiguous, 0)), 1e-12);
  claim(e, "contiguous: rate, of a balanced ring's, " + of, contiguous_balance(n, each), balance(contiguous), 1e-12);
  claim(e, "zigzag: pairs by which ranks differ at a hop, " + of, 0, static_cast<double>(unevenness(zigzag)));
  // A diagonal more or less: a rank sees as many of the keys before its own as of those after them, but for the same places.
  claim(e, "striped: pairs by which ranks differ at a hop, " + of, static_cast<double>(n > 1 ? each : 0),
        static_cast<double>(unevenness(striped)));
  for (const auto& [name, pairs] : {std::pair{"contiguous", &contiguous}, {"zigzag", &zigzag}, {"striped", &striped}})
    claim(e, fmt::format("{}: pairs of all ranks and hops, {}", name, of), static_cast<double>(length * (length + 1) / 2),
          static_cast<double>(pairs_of_all(*pairs)));
}

// (N / 2) / (N - 1/2), which ring-flash-attention publishes as 53.3% at N = 8.
void claim_bound(Experiment& e, int n) {
  const std::int64_t length = n * 4096;
  const Pairs pairs = count_pairs(make_layout("contiguous", length, n), one_document(length));
  claim(e, fmt::format("contiguous: rate, of a balanced ring's, {} ranks of 4096 tokens", n), contiguous_balance(n),
        balance(pairs), 1e-3, fmt::format("{:.2f}%", 100 * balance(pairs)));
}

// The row that pairs are counted and timed in beside claims: the first of the data, with its documents.
Row first_row(Experiment& e) {
  const GptConfig model = model_config(e.options);
  const Dataset data(dataset_options(e.options, model));
  return data.sample(0);
}

// Of all ranks and hops, for each rank.
double mean_of(const ByHop<double>& us) {
  double all = 0;
  for (const auto& hops : us) all = std::accumulate(hops.begin(), hops.end(), all);
  return all / static_cast<double>(us.size());
}

void print_times(Experiment& e, const std::vector<std::string>& names, const std::vector<ByHop<double>>& us,
                 const std::vector<RingTimeline>& timelines) {
  std::vector<std::vector<std::string>> table{
      {"layout", "attention of the rank with least, us", "with most, us", "of all / ranks, us", "the ring, us", "rate"}};
  // Rates are against what the kernels take where they take least: more than that is work that a layout causes.
  double least = std::numeric_limits<double>::max();
  for (const ByHop<double>& of_layout : us) least = std::min(least, mean_of(of_layout));
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::vector<double> of_rank;
    for (const auto& hops : us[i]) of_rank.push_back(std::accumulate(hops.begin(), hops.end(), 0.0));
    table.push_back({names[i], fmt::format("{:.0f}", *std::min_element(of_rank.begin(), of_rank.end())),
                     fmt::format("{:.0f}", *std::max_element(of_rank.begin(), of_rank.end())),
                     fmt::format("{:.0f}", mean_of(us[i])), fmt::format("{:.0f}", timelines[i].total_us),
                     fmt::format("{:.0f}%", 100 * least / timelines[i].total_us)});
  }
  fmt::print("\nThe ring in virtual time: kernels' own times for one layer, forward, {} a hop on the link\n{}",
             fmt::format("{:.0f} us", e.link.us(bytes_of_hop(e))), format_table(table, "lrrrrr"));
}

void write_timeline(const std::string& path, const RingTimeline& timeline) {
  std::vector<TraceSpan> spans;
  for (const RingSpan& s : timeline.spans)
    spans.push_back({s.rank,
                     s.communication ? "link" : "compute",
                     s.communication ? fmt::format("keys of hop {}", s.hop) : fmt::format("attention_forward of hop {}", s.hop),
                     s.start_us,
                     s.duration_us,
                     s.communication ? "communication" : "compute",
                     {}});
  write_trace(path, spans);
}

}  // namespace

std::vector<OutputFile> balance_traces(const std::string& prefix) {
  if (prefix.empty()) return {};
  std::vector<OutputFile> files;
  for (const std::string& name : layout_names()) {
    files.push_back({"--virtual-trace", fmt::format("{}.{}.json", prefix, name)});
    files.push_back({"--virtual-trace", fmt::format("{}.{}.squares.csv", prefix, name)});
  }
  return files;
}

void balance_experiment(Experiment& e) {
  if (Device::mode() == "cuda" && !e.virtual_trace.empty())
    throw InputError("--virtual-trace replays times that MODE=cpu records; on GPUs --trace shows the ring itself");
  if (!e.world.is_root()) return;
  const int n = ring_of(e);
  claim_counts_of_layouts(e, n, 64 * n);
  claim_bound(e, n);
  if (n != 8) claim_bound(e, 8);
  const GptConfig model = model_config(e.options);
  const std::vector<std::string> names = layout_names();
  const Row row = first_row(e);
  if (e.prints()) {
    fmt::print("\nThe hop at which each pair of a query (row) and a key (column) is computed, {} tokens over {} ranks\n{}",
               4 * n, n, squares(names, 4 * n, n));
    for (const std::string& name : names)
      fmt::print("\nVisible pairs, {} tokens over {} ranks, {}\n{}", model.seq, n, name,
                 table_of(count_pairs(make_layout(name, model.seq, n), row)));
  }
  if (Device::mode() == "cuda") return;  // --trace shows the times
  std::vector<ByHop<double>> us;
  std::vector<RingTimeline> timelines;
  for (const std::string& name : names) {
    us.push_back(time_hops(model, e.options.dtype, make_layout(name, model.seq, n), row));
    timelines.push_back(ring_timeline(us.back(), e.link, bytes_of_hop(e)));
    if (e.virtual_trace.empty()) continue;
    write_timeline(fmt::format("{}.{}.json", e.virtual_trace, name), timelines.back());
    write_file(fmt::format("{}.{}.squares.csv", e.virtual_trace, name), squares_file(name, 4 * n, n));
  }
  if (e.prints()) print_times(e, names, us, timelines);
}

}  // namespace ref5d::seq_context_parallel
