// The tensor-parallel axis as the cut parts of a model see it, and the mistakes that can be planted in them.
#pragma once

#include <memory>

#include "03_tensor_parallel/cut.h"
#include "common/comm/mesh.h"
#include "common/device/device.h"

namespace ref5d::tensor_parallel {

// Mistakes to show (--sabotage).
struct Faults {
  bool no_input_sum = false;           // a column-parallel layer's input gradient is one rank's share
  bool bias_on_every_rank = false;     // a row-parallel bias is added before the sum (P24)
  bool kv_gradients_unsummed = false;  // of kv heads that several ranks hold (P23)
  bool qk_norm_unsummed = false;       // of norms that all heads share (P22)
  bool padding_leaks = false;          // the vocabulary's padding takes part in the softmax (P25)
  bool own_maximum = false;            // each rank's exponentials are relative to its own greatest logit (P26)
  bool clamp_without_mask = false;     // tokens of other ranks look up this rank's first row
  bool packed_as_one_block = false;    // a packed [q|k|v] weight is cut as if it were one matrix (P28)
  bool norm_counts_replicas = false;   // what every rank holds enters the norm on every rank (P17)
  bool drift = false;                  // the last rank's copies of what all hold change a little after each update (P12)
  bool norm_of_own_part = false;       // what other ranks hold does not enter the norm (P17)
};

struct TensorParallelOptions {
  // Column-parallel layers: the sum of the input gradient travels while the weight gradients are computed.
  bool overlap = true;
  Faults faults;
};

// Shared by all cut parts of one model on one rank.
class Axis {
 public:
  // The axis "tp" of a mesh that outlives this.
  Axis(Mesh& mesh, const TensorParallelOptions& options) : mesh_(mesh), communicator_(mesh["tp"]), options_(options) {
    // On the CPU the newest stream goes first, and communication should: so the one that computes must be there already.
    (void)device().compute();
    stream_ = std::make_unique<Stream>("tp");
  }

  [[nodiscard]] int size() const { return communicator_.size(); }
  [[nodiscard]] int rank() const { return communicator_.rank(); }
  [[nodiscard]] const TensorParallelOptions& options() const { return options_; }
  [[nodiscard]] const Faults& faults() const { return options_.faults; }
  // On which all of the axis's communication runs, so that it has one order.
  [[nodiscard]] Stream& stream() { return *stream_; }
  [[nodiscard]] Communicator& communicator() { return communicator_; }
  // Some of the axis's ranks, this one among them.
  [[nodiscard]] Communicator& communicator(const Range& holders) {
    return holders.size() == size() ? communicator_
                                    : mesh_.subgroup("tp", static_cast<int>(holders.begin), static_cast<int>(holders.end));
  }

 private:
  Mesh& mesh_;
  Communicator& communicator_;
  TensorParallelOptions options_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace ref5d::tensor_parallel
