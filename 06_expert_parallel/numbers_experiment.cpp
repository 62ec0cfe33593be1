// Mixtures of experts in numbers: what published models have and use, what a rank of many holds, what a token sends, and how
// many nodes it reaches.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "06_expert_parallel/calculator.h"
#include "06_expert_parallel/experiments.h"
#include "06_expert_parallel/expert_shares.h"
#include "common/verify/table.h"

namespace ref5d::expert_parallel {

namespace {

using NumberTable = std::vector<std::vector<std::string>>;

// As published, in units of 1e9 parameters, rounded to `digit`.
struct PublishedCount {
  const char* what;
  double billions, digit;
  std::int64_t counted;
};

std::string in_billions(std::int64_t parameters) { return fmt::format("{:.3f}", static_cast<double>(parameters) / 1e9); }

void claim_published(Experiment& e, const PublishedCount& p) {
  e.report.claims.push_back(make_claim(fmt::format("numbers: {}, as published", p.what), p.billions,
                                       static_cast<double>(p.counted) / 1e9, p.digit / 2 / p.billions, "1e9"));
}

void parameter_table(Experiment& e) {
  const ModelSizes deepseek = deepseek_v3(), mixtral = mixtral_8x7b();
  const ParameterParts all[] = {parameters(deepseek), parameters(mixtral)};
  const ParameterParts active[] = {active_parameters(deepseek), active_parameters(mixtral)};
  NumberTable rows{{"1e9 parameters", deepseek.name, "of a token", mixtral.name, "of a token"}};
  const auto row = [&](const char* part, const auto& of) {
    rows.push_back({part});
    for (int m = 0; m < 2; ++m) {
      rows.back().push_back(in_billions(of(all[m])));
      rows.back().push_back(in_billions(of(active[m])));
    }
  };
  row("embedding", [](const ParameterParts& p) { return p.embedding; });
  row("head", [](const ParameterParts& p) { return p.head; });
  row("attention", [](const ParameterParts& p) { return p.attention; });
  row("dense MLPs", [](const ParameterParts& p) { return p.dense_mlps; });
  row("routed experts", [](const ParameterParts& p) { return p.routed; });
  row("shared experts", [](const ParameterParts& p) { return p.shared; });
  row("routers", [](const ParameterParts& p) { return p.routers; });
  row("norms", [](const ParameterParts& p) { return p.norms; });
  row("all", [](const ParameterParts& p) { return p.all(); });
  row("without the embedding", [](const ParameterParts& p) { return p.all() - p.embedding; });
  if (e.prints()) fmt::print("\nParameters of a model, and those that a token meets\n{}", format_table(rows, "lrrrr"));

  // DeepSeek-V3's abstract, and the description of its weights; Mixtral's announcement, and its paper's abstract.
  claim_published(e, {"DeepSeek-V3, all parameters", 671, 1, all[0].all()});
  claim_published(e, {"DeepSeek-V3, a token's without the embedding", 37, 1, active[0].all() - active[0].embedding});
  claim_published(
      e, {"DeepSeek-V3, a token's without the embedding, to a digit more", 36.6, 0.1, active[0].all() - active[0].embedding});
  claim_published(e, {"Mixtral 8x7B, all parameters", 46.7, 0.1, all[1].all()});
  claim_published(e, {"Mixtral 8x7B, a token's with the embedding", 12.9, 0.1, active[1].all()});
}

std::string share_sizes(std::int64_t experts, int ranks) {
  const std::int64_t most = experts_of(experts, ranks, 0).size(), least = experts_of(experts, ranks, ranks - 1).size();
  return most == least ? fmt::format("{}", most) : fmt::format("{} or {}", most, least);
}

void rank_parameters_table(Experiment& e) {
  NumberTable rows{{"model", "ep", "experts", "1e9 parameters", "of them routed", "of the model"}};
  for (const auto& [model, ranks] : {std::pair{deepseek_v3(), 1},
                                     {deepseek_v3(), 8},
                                     {deepseek_v3(), 48},
                                     {deepseek_v3(), 64},
                                     {mixtral_8x7b(), 1},
                                     {mixtral_8x7b(), 3},
                                     {mixtral_8x7b(), 8}}) {
    const ParameterParts parts = parameters(model);
    const std::int64_t first = parameters_of_rank(model, ranks, 0);
    rows.push_back({model.name, fmt::format("{}", ranks), share_sizes(model.experts, ranks), in_billions(first),
                    in_billions(first - parts.without_routed()),
                    fmt::format("{:.1f}%", 100 * static_cast<double>(first) / static_cast<double>(parts.all()))});
    if (ranks == 1) continue;
    std::int64_t sum = 0;
    for (int r = 0; r < ranks; ++r) sum += parameters_of_rank(model, ranks, r) - parts.without_routed();
    e.report.claims.push_back(make_claim(fmt::format("numbers: {}, routed parameters of all {} ranks", model.name, ranks),
                                         static_cast<double>(parts.routed), static_cast<double>(sum)));
  }
  e.report.claims.push_back(make_claim("numbers: 64 experts on 8 ranks, expert 12's rank", 1, rank_of_expert(12, 64, 8)));
  e.report.claims.push_back(make_claim("numbers: 64 experts on 8 ranks, expert 60's rank", 7, rank_of_expert(60, 64, 8)));
  if (e.prints())
    fmt::print("\nParameters of the first rank: its share of the experts, and all else\n{}", format_table(rows, "lrrrrr"));
}

constexpr NodeChoice kOnEveryNode{256, 8, 8, 8}, kOnFourNodes{256, 8, 8, 4};  // DeepSeek-V3's experts, on 8 nodes
constexpr int kSimulatedTokens = 1 << 14;
constexpr std::uint64_t kSimulationSeed = 6;

// A mean over kSimulatedTokens that is further from its expectation than this many of its standard deviations is so by chance
// once in 1.7 million seeds.
constexpr double kDeviationsAllowed = 5;

void claim_mean(Experiment& e, const std::string& what, double expected, double deviation, double measured) {
  e.report.claims.push_back(
      make_claim("numbers: " + what, expected, measured,
                 kDeviationsAllowed * deviation / std::sqrt(static_cast<double>(kSimulatedTokens)) / expected));
}

NodeCounts node_table(Experiment& e) {
  const NodeCounts every = simulate_nodes(kOnEveryNode, NodeRule::kScores, kSimulatedTokens, kSimulationSeed);
  const NodeCounts lot = simulate_nodes(kOnFourNodes, NodeRule::kLot, kSimulatedTokens, kSimulationSeed);
  const NodeCounts scores = simulate_nodes(kOnFourNodes, NodeRule::kScores, kSimulatedTokens, kSimulationSeed);
  const NodesPerToken any = expected_nodes(kOnEveryNode), of_four = expected_nodes(kOnFourNodes);
  NumberTable rows{{"nodes of a token", "computed", "counted", "most", "of its 8 best experts"}};
  const auto row = [&](const char* what, const std::string& computed, const NodeCounts& c) {
    rows.push_back(
        {what, computed, fmt::format("{:.3f}", c.mean()), fmt::format("{}", c.most()), fmt::format("{:.2f}", c.kept)});
  };
  row("no limit", fmt::format("{:.3f}", any.mean), every);
  row("4, drawn by lot", fmt::format("{:.3f}", of_four.mean), lot);
  row("4, by their two greatest scores", "", scores);
  if (e.prints())
    fmt::print("\n8 of 256 experts on 8 nodes, {} tokens of random scores\n{}", grouped_digits(kSimulatedTokens),
               format_table(rows, "lrrrr"));

  claim_mean(e, "nodes of a token without a limit, on average", any.mean, any.deviation, every.mean());
  claim_mean(e, "nodes of a token on 4 drawn by lot, on average", of_four.mean, of_four.deviation, lot.mean());
  e.report.claims.push_back(make_claim("numbers: nodes of a token that may use 4, at most", 4, scores.most()));
  // Of k best experts of E, each on a drawn node with probability p = 1/2: k p on average, with the variance
  // k p (1-p) (E-k)/(E-1) of draws without putting back.
  const double k = 8, p = 0.5, experts = 256;
  claim_mean(e, "best experts that 4 nodes drawn by lot have, on average", k * p,
             std::sqrt(k * p * (1 - p) * (experts - k) / (experts - 1)), lot.kept);
  // Technical report, section 3.2.2: a row to 4 nodes takes InfiniBand (50 GB/s) as long as NVLink (160 GB/s) takes for 3.2
  // rows in each of them.
  e.report.claims.push_back(make_claim("numbers: experts of a token that NVLink serves while InfiniBand serves 4 nodes", 13,
                                       4 * 160.0 / 50, 0.5 / 13, "", "as published, rounded"));
  return scores;
}

// What a token sends in each of four ways, from all ranks together, and of it between nodes.
struct WayOfTokens {
  const char* name;
  double rows;
  std::string between_nodes;
};

void sent_rows_table(Experiment& e, const ModelSizes& m, int ranks, int nodes, double limited_nodes) {
  const int of_node = ranks / nodes;
  const double inside = all_to_all_rows(m.top_k, of_node), each = all_to_all_rows(m.top_k, ranks);
  const double any = rows_to_other_nodes(expected_nodes({m.experts, nodes, m.top_k, nodes}).mean, nodes);
  // Two all-reduces for four ways.
  const double cut = ranks * tensor_parallel_rows(ranks) / 2;
  std::vector<WayOfTokens> ways{{"all-to-all", each, fmt::format("{:.3f}", all_to_all_rows(m.top_k, nodes))},
                                {"hierarchical", any + inside, fmt::format("{:.3f}", any)}};
  if (limited_nodes > 0) {
    const double limited = rows_to_other_nodes(limited_nodes, nodes);
    ways.push_back({"hierarchical, 4 nodes", limited + inside, fmt::format("{:.3f}", limited)});
  }
  ways.push_back({"all-gather", all_gather_rows(ranks), ""});
  ways.push_back({"every expert cut", cut, ""});
  NumberTable rows{{"dispatcher", "rows", "between nodes", "KiB of a layer", "MiB of all layers"}};
  for (const WayOfTokens& way : ways) {
    const double bytes = 4 * way.rows * static_cast<double>(m.hidden) * 2;  // bf16
    rows.push_back({way.name, fmt::format("{:.3f}", way.rows), way.between_nodes, fmt::format("{:.0f}", bytes / 1024),
                    fmt::format("{:.2f}", bytes * static_cast<double>(m.expert_layers()) / (1024 * 1024))});
  }
  if (e.prints())
    fmt::print("\n{} on {} ranks of {} nodes: rows that a token sends in each of four ways, and bytes in all four (bf16)\n{}",
               m.name, ranks, nodes, format_table(rows, "lrrrr"));
  const double ratio = static_cast<double>(ranks) / static_cast<double>(m.top_k);
  const auto claim = [&](const char* what, double sent) {
    e.report.claims.push_back(make_claim(fmt::format("numbers: {} on {} ranks, {} beside all-to-all: N/k", m.name, ranks, what),
                                         ratio, sent / each, 1e-12, "x"));
  };
  claim("all-gather", all_gather_rows(ranks));
  claim("every expert cut", cut);
}

}  // namespace

void numbers_experiment(Experiment& e) {
  if (!e.world.is_root()) return;
  parameter_table(e);
  rank_parameters_table(e);
  const NodeCounts limited = node_table(e);
  sent_rows_table(e, deepseek_v3(), 64, 8, limited.mean());
  sent_rows_table(e, mixtral_8x7b(), 8, 2, 0);
}

}  // namespace ref5d::expert_parallel
