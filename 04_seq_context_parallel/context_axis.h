// The context-parallel axis as attention sees it, and the mistakes that can be planted in it.
#pragma once

#include <memory>
#include <string>

#include "04_seq_context_parallel/sequence_layout.h"
#include "common/comm/mesh.h"
#include "common/device/stream.h"

namespace ref5d::context_parallel {

// Mistakes to show (--sabotage).
struct Faults {
  bool local_positions = false;        // positions count a rank's own tokens (P31)
  bool labels_after_cut = false;       // a token's label is the next token on its rank (P30)
  bool merge_without_maximum = false;  // partial results are merged with exp(lse) as it is (P32)
  bool own_lse = false;                // backward takes each block's own log-sum-exp, not that of all keys (P34)
  bool rank_order = false;             // gathered tokens are taken to be in their sequence's order (P35)
  bool skip_by_rank = false;           // keys of later ranks are skipped, which is right for contiguous alone
  bool early_start = false;            // a hop computes before its keys have arrived
  bool trim = false;                   // tokens that 2N does not divide are dropped (P29)
  bool ignore_documents = false;       // whole rows are taken for one document
};

struct ContextParallelOptions {
  std::string kind = "ring";      // ring | allgather | ulysses
  std::string layout = "zigzag";  // contiguous | zigzag | striped
  // ulysses: how many neighbours exchange heads; groups of them are joined by a ring. 0: all ranks.
  int ulysses_size = 0;
  // ring: the next hop's keys and values travel while this one's are computed with.
  bool overlap = true;
  Faults faults;
};

[[nodiscard]] std::vector<std::string> kind_names();

// Shared by the attention of all layers of one model on one rank.
class ContextAxis {
 public:
  // The axis "cp" of a mesh that outlives this, and sequences of `length` tokens. InputError if they cannot be cut so.
  ContextAxis(Mesh& mesh, const ContextParallelOptions& options, std::int64_t length);

  [[nodiscard]] const ContextParallelOptions& options() const { return options_; }
  [[nodiscard]] const Faults& faults() const { return options_.faults; }
  [[nodiscard]] int rank() const { return rank_; }
  // Of all ranks of the axis.
  [[nodiscard]] const SequenceLayout& layout() const { return layout_; }
  // The ranks between which all tokens of a group meet: for allgather all of the axis, for ulysses those that exchange heads;
  // for ring each rank is a group of its own.
  [[nodiscard]] Communicator& group() { return *group_; }
  [[nodiscard]] const SequenceLayout& layout_of_group() const { return layout_of_group_; }
  // Groups that pass on keys and values.
  [[nodiscard]] Communicator& ring() { return *ring_; }
  [[nodiscard]] const SequenceLayout& layout_of_ring() const { return layout_of_ring_; }
  // On which all of the axis's communication runs, so that it has one order.
  [[nodiscard]] Stream& stream() { return *stream_; }

 private:
  ContextParallelOptions options_;
  int rank_;
  SequenceLayout layout_, layout_of_group_, layout_of_ring_;
  Communicator *group_, *ring_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace ref5d::context_parallel
