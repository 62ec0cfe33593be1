// The context-parallel axis as attention sees it, and the mistakes that can be planted in it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "04_seq_context_parallel/sequence_layout.h"
#include "common/comm/mesh.h"
#include "common/device/stream.h"
#include "common/model/context.h"

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
// Ranks between which all tokens of a group meet: with allgather all `ranks` of the axis, with ulysses those that exchange
// heads; with a ring each rank is a group of its own. InputError if they do not divide the axis.
[[nodiscard]] int group_size(const ContextParallelOptions& options, int ranks);
// The largest size of equal groups of `ranks`, of at most so many.
[[nodiscard]] int largest_divisor(int ranks, std::int64_t most);

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
  // The group's ranks, and this one's place among them. A group of one has no communicator.
  [[nodiscard]] int group_size() const { return layout_of_group_.ranks(); }
  [[nodiscard]] int place_in_group() const { return rank_ % group_size(); }
  [[nodiscard]] Communicator& group() const { return *group_; }
  [[nodiscard]] const SequenceLayout& layout_of_group() const { return layout_of_group_; }
  // The groups, which pass on keys and values, and this one's place on the ring. A ring of one has no communicator.
  [[nodiscard]] int ring_size() const { return layout_of_ring_.ranks(); }
  [[nodiscard]] int place_on_ring() const { return rank_ / group_size(); }
  [[nodiscard]] Communicator& ring() const { return *ring_; }
  [[nodiscard]] const SequenceLayout& layout_of_ring() const { return layout_of_ring_; }
  // On which all of the axis's communication runs, so that it has one order.
  [[nodiscard]] Stream& stream() const { return *stream_; }
  // Runs an operation there, for which the model's stream waits. `phase`: what its traffic is entered under.
  void communicate(Context& ctx, const char* phase, const std::function<void(Stream&)>& operation) const;

 private:
  ContextParallelOptions options_;
  int rank_;
  SequenceLayout layout_, layout_of_group_, layout_of_ring_;
  Communicator *group_ = nullptr, *ring_ = nullptr;
  std::unique_ptr<Stream> stream_;
};

// What a forward's traffic is entered under: that of one that runs again is told apart.
[[nodiscard]] inline const char* forward_phase(const Context& ctx) { return ctx.recomputing ? "recomputation" : "forward"; }

}  // namespace ref5d::context_parallel
