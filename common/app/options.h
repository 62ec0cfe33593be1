// The settings that all programs share, as the command line fills them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/tensor/dtype.h"
#include "common/verify/value_list.h"

namespace ref5d {

// What overrides a preset's experts, in programs that allow them (CommandLine::allow_experts); see MoeConfig.
struct MoeOptions {
  std::optional<std::int64_t> experts, top_k, shared_experts, groups, top_groups;
  std::optional<std::string> score, aux_kind;  // softmax | sigmoid, micro-batch | sequence
  std::optional<bool> renormalise, correction_bias, pad_to_capacity;
  std::optional<double> routed_scale, aux_coefficient, z_coefficient, bias_speed, capacity_factor;
};

struct Options {
  // Model: a preset, and what overrides its fields.
  std::string model = "tiny";
  std::optional<std::int64_t> layers, hidden, heads, kv_heads, ffn, vocab, seq;
  std::optional<std::string> norm, position, mlp;  // rmsnorm | layernorm, rope | learned, swiglu | gelu
  std::optional<bool> qk_norm, biases, tied;
  std::optional<double> norm_eps, rope_theta, init_std, dropout;
  bool allows_experts = false;  // else a model that has some is refused
  MoeOptions moe;
  bool replay_routes = true;  // of the fp64 baseline, in fp32 and bf16

  // Batch.
  std::int64_t micro_batch = 2;  // sequences per micro-batch
  std::int64_t grad_accum = 1;   // micro-batches (or runs of a pipeline schedule) per optimizer step
  std::int64_t steps = 10;
  std::string data;  // a file; empty: the suite's own lesson pages
  std::int64_t seed = 1234;
  std::string documents = "none";  // none | pack | pad

  // Optimizer.
  double lr = 1e-3;
  double weight_decay = 0.1;
  double clip = 1.0;  // largest global gradient norm; 0: no clipping
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;

  // Numerics.
  Dtype dtype = Dtype::kFp32;
  std::string recompute = "none";   // none | full | selective
  std::string gemm = "blas";        // blas | hand | tensor-core
  std::string attention = "flash";  // flash | naive
  bool fused_grad_accum = false;
  bool fp32_grads = true;  // accumulate gradients of bf16 weights in fp32

  // Mesh and communication, in programs that allow an axis (CommandLine::allow_axis).
  bool mesh = false;
  std::map<std::string, std::int64_t> axes;  // those that were given
  std::string comm = "auto";                 // auto | mpi | nccl
  Dtype reduce_dtype = Dtype::kFp32;         // of gradients of bf16 weights: fp32 or bf16
  std::optional<std::int64_t> ranks_per_node;
  bool check_order = false;
  double timeout = 300;  // seconds a rank waits for another

  // Checks.
  bool verify = true;
  // Steps that are compared with the baseline. Training is chaotic: rounding grows with every step, so a comparison of late
  // steps says nothing about the arithmetic.
  std::int64_t verify_steps = 20;
  std::string sabotage;        // empty: none
  std::string sabotage_flags;  // that it chose: " --steps 3 --grad-accum 4"

  // Output; empty paths: not written.
  std::string json, trace, dump;
  std::string dump_level = "basic";  // basic | full
  bool quiet = false;
  std::optional<double> peak_tflops;  // of one device, for mfu
  std::int64_t sample = 0;            // characters of text generated at the end

  // Weights: files and folders; empty: not used.
  std::string load, save, resume;
};

class CommandLine;

// Adds the flags of all fields except the mesh to `line`, with the values in `options` as their defaults; parsing writes to
// `options`, which must outlive `line`.
void add_common_flags(CommandLine& line, Options& options);
// Adds the flags of experts, and sets options.allows_experts.
void add_expert_flags(CommandLine& line, Options& options);
// Adds --comm, --reduce-dtype, --ranks-per-node, --check-order and --timeout, and sets options.mesh.
void add_communication_flags(CommandLine& line, Options& options);

// The settings as keys (flags without dashes) and values, for the report. Model fields appear where they override the preset,
// paths and sabotage where given, communication where there is a mesh.
[[nodiscard]] ValueList to_config(const Options& options);

}  // namespace ref5d
