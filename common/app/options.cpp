#include "common/app/options.h"

#include "common/app/command_line.h"

namespace ref5d {
namespace {

// Largest sizes that leave room for products of several of them in 64 bits.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = 100'000;
constexpr IntegerRange kSize{1, kMaxSize};
constexpr IntegerRange kCount{1, 1'000'000'000};
constexpr NumberRange kAtLeastZero{.min = 0};
constexpr NumberRange kTimeout{.min = 1e-3, .max = 1e8};
constexpr NumberRange kCapacity{.min = 0, .max = 1e6};
constexpr NumberRange kAboveZero{.min = 0, .open_min = true};
constexpr NumberRange kBelowOne{.min = 0, .max = 1, .open_max = true};
// Where fp32 still tells them from 1 and from 0.
constexpr NumberRange kDropout{.min = 0, .max = 0.999};
constexpr NumberRange kEpsilon{.min = 1e-30};

void add_model_flags(CommandLine& line, Options& o) {
  line.group("Model (a preset, and what overrides its fields)");
  line.add_option("--model", o.model, "preset: tiny, tiny-gpt2, llama-1b, ...; a name that is none of them lists all", "NAME");
  line.add_option("--layers", o.layers, "L, decoder layers", {1, kMaxLayers});
  line.add_option("--hidden", o.hidden, "H, width of the residual stream", kSize);
  line.add_option("--heads", o.heads, "N, query heads", kSize);
  line.add_option("--kv-heads", o.kv_heads, "K, key and value heads; divides N", kSize);
  line.add_option("--ffn", o.ffn, "F, inner width of the MLP (of one expert in an MoE)", kSize);
  line.add_option("--vocab", o.vocab, "V, entries of the vocabulary", kSize);
  line.add_option("--seq", o.seq, "S, tokens per sequence", kSize);
  line.add_choice("--norm", o.norm, "before each sublayer and the head", {"rmsnorm", "layernorm"});
  line.add_choice("--position", o.position, "how tokens know their place", {"rope", "learned"});
  line.add_choice("--mlp", o.mlp, "with a gate, or without", {"swiglu", "gelu"});
  line.add_switch("--qk-norm", o.qk_norm, "a norm over the head dim of queries and keys");
  line.add_switch("--biases", o.biases, "a bias on every linear layer of a block");
  line.add_switch("--tied", o.tied, "the head's weight is the embedding's");
  line.add_option("--norm-eps", o.norm_eps, "added to the variance in a norm", kEpsilon);
  line.add_option("--rope-theta", o.rope_theta, "base of RoPE's wavelengths", kAboveZero);
  line.add_option("--init-std", o.init_std, "standard deviation of initial weights", kAtLeastZero);
  line.add_option("--dropout", o.dropout, "probability of dropping a value", kDropout);
}

void add_batch_flags(CommandLine& line, Options& o) {
  line.group("Batch");
  line.add_option("--micro-batch", o.micro_batch, "B, sequences per micro-batch", kSize);
  line.add_option("--grad-accum", o.grad_accum, "micro-batches added up before each optimizer step", kSize);
  line.add_option("--steps", o.steps, "optimizer steps", kCount);
  line.add_option("--data", o.data, "text (bytes are tokens), or llm.c or nanoGPT .bin; default: the lesson pages", "FILE");
  line.add_option("--seed", o.seed, "of weights, data order and dropout", {0, IntegerRange{}.max});
  line.add_choice("--documents", o.documents, "documents ignored, packed into a sequence, or padded to it",
                  {"none", "pack", "pad"});
}

void add_optimizer_flags(CommandLine& line, Options& o) {
  line.group("Optimizer (AdamW)");
  line.add_option("--lr", o.lr, "learning rate", kAtLeastZero);
  line.add_option("--weight-decay", o.weight_decay, "decoupled decay of matrices", kAtLeastZero);
  line.add_option("--clip", o.clip, "largest global gradient norm; 0: no clipping", kAtLeastZero);
  line.add_option("--beta1", o.beta1, "decay of the first moment", kBelowOne);
  line.add_option("--beta2", o.beta2, "decay of the second moment", kBelowOne);
  line.add_option("--eps", o.eps, "added to the root of the second moment", kEpsilon);
}

void add_numerics_flags(CommandLine& line, Options& o) {
  line.group("Numerics");
  line.add_choice("--dtype", o.dtype, "of weights and activations", {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16});
  line.add_choice("--recompute", o.recompute, "activations computed again in backward", {"none", "full", "selective"});
  line.add_choice("--gemm", o.gemm, "matrix products: blas is cuBLAS, or a packed kernel on the CPU",
                  {"blas", "hand", "tensor-core"});
  line.add_choice("--attention", o.attention, "without or with stored scores", {"flash", "naive"});
  line.add_flag("--fused-grad-accum", o.fused_grad_accum, "let the weight-gradient product add to the gradient itself");
  line.add_switch("--fp32-grads", o.fp32_grads, "accumulate gradients of bf16 weights in fp32");
}

void add_output_flags(CommandLine& line, Options& o) {
  line.group("Checks");
  line.add_switch("--verify", o.verify, "train the single-device baseline too and compare everything");
  line.add_option("--verify-steps", o.verify_steps, "at most this many steps are compared; later ones are chaotic", kCount);
  line.add_option("--sabotage", o.sabotage, "plant a classic mistake, which must be noticed; 'list' prints them", "NAME");
  line.group("Output");
  line.add_option("--json", o.json, "write the report", "FILE");
  line.add_option("--trace", o.trace, "write a timeline for Perfetto", "FILE");
  line.add_option("--dump", o.dump, "write tensors of the first step and the final weights (safetensors)", "FILE");
  line.add_choice("--dump-level", o.dump_level, "hidden states and gradients, or every sublayer too", {"basic", "full"});
  line.add_option("--sample", o.sample, "characters of text to generate at the end", {0, 1'000'000});
  line.add_option("--peak-tflops", o.peak_tflops,
                  "what one device could reach, for mfu (model flops utilization) in the report", kAboveZero);
  line.add_flag("--quiet", o.quiet, "no step lines, no tables");
  line.group("Weights");
  line.add_option("--load", o.load, "start from these weights (safetensors or llm.c)", "FILE");
  line.add_option("--save", o.save, "write a checkpoint after the last step", "DIR");
  line.add_option("--resume", o.resume, "continue from a checkpoint", "DIR");
}

void put_optional(ValueList& list, const char* key, const auto& value) {
  if (value) list.emplace_back(key, *value);
}

void put_text(ValueList& list, const char* key, const std::string& value) {
  if (!value.empty()) list.emplace_back(key, value);
}

void put_experts(ValueList& list, const MoeOptions& m) {
  put_optional(list, "experts", m.experts);
  put_optional(list, "top-k", m.top_k);
  put_optional(list, "shared-experts", m.shared_experts);
  put_optional(list, "score", m.score);
  put_optional(list, "renormalise", m.renormalise);
  put_optional(list, "routed-scale", m.routed_scale);
  put_optional(list, "groups", m.groups);
  put_optional(list, "top-groups", m.top_groups);
  put_optional(list, "correction-bias", m.correction_bias);
  put_optional(list, "aux-coef", m.aux_coefficient);
  put_optional(list, "aux-kind", m.aux_kind);
  put_optional(list, "z-coef", m.z_coefficient);
  put_optional(list, "bias-speed", m.bias_speed);
  put_optional(list, "capacity-factor", m.capacity_factor);
  put_optional(list, "pad-to-capacity", m.pad_to_capacity);
}

}  // namespace

void add_common_flags(CommandLine& line, Options& options) {
  add_model_flags(line, options);
  add_batch_flags(line, options);
  add_optimizer_flags(line, options);
  add_numerics_flags(line, options);
  add_output_flags(line, options);
}

void add_expert_flags(CommandLine& line, Options& o) {
  MoeOptions& m = o.moe;
  o.allows_experts = true;
  line.add_option("--experts", m.experts, "E, routed experts of a layer", kSize);
  line.add_option("--top-k", m.top_k, "k, experts that a token uses", kSize);
  line.add_option("--shared-experts", m.shared_experts, "that every token uses, as one MLP", {0, kMaxSize});
  line.add_choice("--score", m.score, "of an expert, from the router's logits", {"softmax", "sigmoid"});
  line.add_switch("--renormalise", m.renormalise, "divide the weights of a token's experts by their sum");
  line.add_option("--routed-scale", m.routed_scale, "of the routed experts' weights", kAboveZero);
  line.add_option("--groups", m.groups, "equal groups of experts; divides E", kSize);
  line.add_option("--top-groups", m.top_groups, "groups that a token's experts may be in", kSize);
  line.add_switch("--correction-bias", m.correction_bias, "a bias that takes part in the choice alone, and follows the load");
  line.add_option("--aux-coef", m.aux_coefficient, "of the balance loss; 0: none", kAtLeastZero);
  line.add_choice("--aux-kind", m.aux_kind, "what it keeps even", {"micro-batch", "sequence"});
  line.add_option("--z-coef", m.z_coefficient, "of the z-loss; 0: none", kAtLeastZero);
  line.add_option("--bias-speed", m.bias_speed, "by which a step moves each correction bias", kAtLeastZero);
  line.add_option("--capacity-factor", m.capacity_factor,
                  "an expert takes ceil(factor k T / E) of a micro-batch's T tokens and drops the rest; 0: dropless",
                  kCapacity);
  line.add_switch("--pad-to-capacity", m.pad_to_capacity, "experts compute that many rows whatever they got");
}

void add_communication_flags(CommandLine& line, Options& o) {
  o.mesh = true;
  line.add_choice("--comm", o.comm, "backend; auto: NCCL where every rank has its own GPU", {"auto", "mpi", "nccl"});
  line.add_choice("--reduce-dtype", o.reduce_dtype, "in which gradients of bf16 weights are reduced",
                  {Dtype::kFp32, Dtype::kBf16});
  line.add_option("--ranks-per-node", o.ranks_per_node, "instead of what the hosts' names say", kSize);
  line.add_flag("--check-order", o.check_order, "compare the order of communication calls over all ranks");
  line.add_option("--timeout", o.timeout, "seconds a rank waits for another", kTimeout);
}

ValueList to_config(const Options& o) {
  ValueList list;
  list.emplace_back("model", o.model);
  put_optional(list, "layers", o.layers);
  put_optional(list, "hidden", o.hidden);
  put_optional(list, "heads", o.heads);
  put_optional(list, "kv-heads", o.kv_heads);
  put_optional(list, "ffn", o.ffn);
  put_optional(list, "vocab", o.vocab);
  put_optional(list, "seq", o.seq);
  put_optional(list, "norm", o.norm);
  put_optional(list, "position", o.position);
  put_optional(list, "mlp", o.mlp);
  put_optional(list, "qk-norm", o.qk_norm);
  put_optional(list, "biases", o.biases);
  put_optional(list, "tied", o.tied);
  put_optional(list, "norm-eps", o.norm_eps);
  put_optional(list, "rope-theta", o.rope_theta);
  put_optional(list, "init-std", o.init_std);
  put_optional(list, "dropout", o.dropout);
  if (o.allows_experts) put_experts(list, o.moe);
  list.insert(list.end(), {{"micro-batch", o.micro_batch}, {"grad-accum", o.grad_accum}, {"steps", o.steps}});
  put_text(list, "data", o.data);
  list.insert(list.end(), {{"seed", o.seed}, {"documents", o.documents}, {"lr", o.lr}, {"weight-decay", o.weight_decay}});
  list.insert(list.end(), {{"clip", o.clip}, {"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}});
  list.emplace_back("dtype", std::string(dtype_name(o.dtype)));
  list.insert(list.end(), {{"recompute", o.recompute}, {"gemm", o.gemm}, {"attention", o.attention}});
  list.insert(list.end(), {{"fused-grad-accum", o.fused_grad_accum}, {"fp32-grads", o.fp32_grads}});
  if (o.mesh) {
    for (const auto& [axis, size] : o.axes) list.emplace_back(axis, size);
    list.insert(list.end(), {{"comm", o.comm}, {"reduce-dtype", std::string(dtype_name(o.reduce_dtype))}});
    put_optional(list, "ranks-per-node", o.ranks_per_node);
    list.insert(list.end(), {{"check-order", o.check_order}, {"timeout", o.timeout}});
  }
  list.insert(list.end(), {{"verify", o.verify}, {"verify-steps", o.verify_steps}});
  put_text(list, "sabotage", o.sabotage);
  put_text(list, "json", o.json);
  put_text(list, "trace", o.trace);
  put_text(list, "dump", o.dump);
  put_optional(list, "peak-tflops", o.peak_tflops);
  list.insert(list.end(), {{"dump-level", o.dump_level}, {"quiet", o.quiet}, {"sample", o.sample}});
  put_text(list, "load", o.load);
  put_text(list, "save", o.save);
  put_text(list, "resume", o.resume);
  return list;
}

}  // namespace ref5d
