// What a run reports: the JSON of --json (documented in common/docs/report.md) and the tables at the end of a run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/io/json.h"
#include "common/verify/check.h"
#include "common/verify/value_list.h"

namespace ref5d {

// One kind of communication: rank 0's share, and the sums over all ranks. Bytes; calls are operations started.
struct TrafficRow {
  std::string axis;   // "dp", "tp", "dp*cp", ...
  std::string op;     // "all_reduce", "p2p", ...
  std::string phase;  // "forward", "backward", "optimizer", ...
  std::int64_t calls = 0;
  std::int64_t payload_bytes = 0;  // of the tensors handed to the operation
  std::int64_t wire_bytes = 0;     // sent to other ranks
  std::int64_t total_calls = 0;
  std::int64_t total_payload_bytes = 0;
  std::int64_t total_wire_bytes = 0;
  bool wire_counted = true;                    // counted at the sends (MPI); false: from the formula (NCCL)
  std::int64_t total_between_nodes_bytes = 0;  // the part of total_wire_bytes that left a node
};

struct MemoryRow {
  std::int64_t rank = 0;
  std::string category;
  std::int64_t current_bytes = 0;  // at the end of the run
  std::int64_t peak_bytes = 0;     // of this category; categories peak at different times
};

// How the tokens of a step were shared out over the experts of a layer.
struct ExpertLoad {
  std::int64_t step = 0, layer = 0;     // from 0
  std::int64_t routed = 0;              // choices of all tokens, padding's too
  std::vector<std::int64_t> choices;    // of each expert, without padding's
  std::vector<std::int64_t> rows;       // that it was sent: all choices that were not dropped
  std::vector<std::int64_t> rank_rows;  // of the experts of each rank along ep together
  std::int64_t computed = 0;            // by all experts: rows, and padding where each computes as many
  [[nodiscard]] std::int64_t all_choices() const;
  [[nodiscard]] std::int64_t all_rows() const;
  // The busiest expert's choices, and the busiest rank's rows, in units of an even share: 1 if all have as many.
  [[nodiscard]] double imbalance() const;
  [[nodiscard]] double rank_imbalance() const;
  // The share of choices that were dropped, and that of computed rows that are padding.
  [[nodiscard]] double dropped() const;
  [[nodiscard]] double padding() const;
};

struct Report {
  std::string program;  // "02_ddp_zero"
  std::string version;
  std::string mode;  // "cpu", "cuda"
  ValueList config;
  std::vector<std::pair<std::string, std::int64_t>> mesh;  // axis and size, slowest first
  std::vector<double> loss;                                // cross-entropy of each step, nats per valid label
  std::vector<double> aux_loss;                            // auxiliary MoE loss of each step, else empty
  std::vector<double> baseline_loss;                       // of the single-device run; empty with --no-verify
  std::vector<Check> checks;
  std::vector<TrafficRow> traffic;
  std::vector<MemoryRow> memory;
  std::vector<ExpertLoad> experts;  // of a model with experts: of every layer in some steps, the first and the last among them
  ValueList values;                 // what else the program counted
  std::map<std::string, double> timing;  // "step_ms", "tokens_per_s", "mfu", ...
  std::vector<Claim> claims;
  std::string sample;  // text that the trained model generated, for the terminal: not in the file

  [[nodiscard]] Json to_json() const;
  // The inverse of to_json. InputError, in which `what` names the source, if a field is missing or of the wrong type.
  [[nodiscard]] static Report from_json(const Json& json, const std::string& what);
  // Writes to_json(), atomically. InputError for a path that cannot be created, RunError for a full disk.
  void write_json(const std::string& path) const;

  // The tables of checks, claims, traffic, memory and time, those that have rows.
  [[nodiscard]] std::string tables() const;
  void print_tables(std::FILE* out) const;

  // kExitOk if every check and every claim holds, else kExitCheckFailed.
  [[nodiscard]] int exit_status() const;
};

// Reads a file that write_json wrote. InputError if it is missing or not a report.
[[nodiscard]] Report read_report(const std::string& path);

}  // namespace ref5d
