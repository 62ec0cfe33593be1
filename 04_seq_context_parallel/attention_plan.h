// What attention must know of a micro-batch whose sequences are cut: which tokens the keys are that come from elsewhere. Orders
// and starts of documents are known from the rows, which every rank reads whole, so none of this travels. The keys' orders are
// all that a rank has of the whole sequence, 4 bytes for each token, and a few for every 16.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "04_seq_context_parallel/context_axis.h"
#include "common/model/context.h"

namespace ref5d::context_parallel {

// Keys that this rank's queries are computed with in one piece.
struct KeyBlock {
  AttentionTokens tokens;
  std::int64_t length = 0;         // of each sequence
  std::int64_t visible_pairs = 0;  // 0: nothing to compute, since the causal mask or documents hide all of it
};

struct AttentionPlan {
  std::vector<KeyBlock> blocks;  // by place on the ring; a single one where all keys meet
  // Between the ranks' order and the sequence's, int32 (sequence_layout.h); undefined where groups have one rank.
  Tensor to_sequence, to_ranks;
};

// That of a micro-batch of these rows.
[[nodiscard]] AttentionPlan make_plan(const ContextAxis& axis, std::span<const Row> rows, Stream& stream);

// The plan of the micro-batch that is computed, or null if it has none: a text that is being generated, of which every rank has
// all tokens.
[[nodiscard]] const AttentionPlan* plan_of(const Context& ctx);

}  // namespace ref5d::context_parallel
