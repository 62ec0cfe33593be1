// Sequence parallelism: what tensor parallelism leaves whole on every rank of its axis is cut, too.
//
// Norms, residual additions and dropout compute each token for itself. So between two pairs of cut layers a rank needs only
// some of the tokens, and the all-reduce that made the sum whole everywhere is taken apart into its halves:
//
//                  tensor parallel                with sequence parallelism
//      norm        T rows on every rank           T/N rows on each
//       |          copy                           all-gather            (backward: reduce-scatter)
//      q k v, o    T rows, a rank's heads         T rows, a rank's heads
//       |          reduce = all-reduce            reduce-scatter        (backward: all-gather)
//      x +         T rows on every rank           T/N rows on each
//
// An all-reduce sends as much as a reduce-scatter and an all-gather, so the bytes are the same and the activations an Nth. Only
// the layers' inputs cost something: for the weight gradients they are needed with all T rows, so they are either kept so
// (--sp-keep gathered), or kept as T/N rows and gathered once more in backward (--sp-keep shard): 10 units of T H e (N-1)/N a
// layer instead of 8, for an Nth of the memory.
//
// What acts on the rows of a rank alone gets only these rows' part of its gradient: the weights of the norms, the biases that
// are added after a sum, learned positions. Their gradients are summed over the axis (pitfall P21).
//
// Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "03_tensor_parallel/axis.h"
#include "common/model/gpt.h"
#include "common/train/trainer.h"

namespace ref5d::sequence_parallel {

// Mistakes to show (--sabotage).
struct Faults {
  bool norms_unsummed = false;  // each rank keeps its own tokens' part of norms' and biases' gradients (P21)
  bool dropout_by_row = false;  // masks are drawn by a rank's own rows, so that ranks draw the same ones (P27)
};

struct SequenceParallelOptions {
  std::string keep = "shard";  // shard | gathered: what is kept of the layers' inputs
  Faults faults;
};

[[nodiscard]] std::vector<std::string> keep_names();

// The seam around cut layers: gather on the way in, reduce-scatter on the way out. The phases are what traffic is entered
// under.
[[nodiscard]] std::unique_ptr<Region> make_region(const std::shared_ptr<tensor_parallel::Axis>& axis,
                                                  const SequenceParallelOptions& options, const char* forward_phase,
                                                  const char* backward_phase);

// Puts reduce-scatters and all-gathers where tensor parallelism, which has been applied already, has its all-reduces, and sums
// the gradients of what acts on a rank's rows.
void apply(Gpt& gpt, const std::shared_ptr<tensor_parallel::Axis>& axis, const SequenceParallelOptions& options);

// Turns the settings of a tensor-parallel run over this axis of the mesh into those of a sequence-parallel one.
// tokens_per_sequence: on this rank, fewer than the model's where context parallelism cuts sequences; fewest_tokens: on the
// rank that has fewest of them, by which all ranks refuse what one must. Before context_parallel::apply. InputError if some
// rank would have no row.
void apply(TrainerOptions& settings, Mesh& mesh, const std::shared_ptr<tensor_parallel::Axis>& axis,
           const SequenceParallelOptions& options, std::int64_t tokens_per_sequence, std::int64_t fewest_tokens);

}  // namespace ref5d::sequence_parallel
