#include "common/tools/dump_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ref5d {
namespace {

using Names = std::vector<std::string>;

// Sorting must restore the expected order from any other.
void expect_order(const Names& expected) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 5; ++trial) {
    Names shuffled = expected;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    EXPECT_EQ(sort_by_depth(shuffled), expected);
  }
}

TEST(DumpOrderTest, ForwardFollowsTheComputation) {
  expect_order({"sub/0/attn_norm", "sub/0/q", "sub/0/k", "sub/0/v", "sub/0/attn", "sub/0/o_proj", "sub/0/mlp_norm",
                "sub/0/mlp_in", "sub/0/router_probs", "sub/0/chosen_experts", "sub/0/mlp_out", "hidden/0", "sub/1/attn_norm",
                "sub/1/mlp_out", "hidden/1", "logits", "loss", "aux_loss"});
}

TEST(DumpOrderTest, ARouterChoosesByItsScores) {
  expect_order({"sub/0/mlp_in", "sub/0/router_scores", "sub/0/experts", "sub/0/mlp_out", "sub_grad/0/mlp_out",
                "sub_grad/0/router_logits", "sub_grad/0/mlp_in"});
}

TEST(DumpOrderTest, OneHiddenStateMoreThanLayersMeansInputs) {
  expect_order(
      {"hidden/0", "sub/0/attn_norm", "sub/0/mlp_out", "hidden/1", "sub/1/attn_norm", "sub/1/mlp_out", "hidden/2", "logits"});
  expect_order({"hidden/0", "hidden/1", "hidden/2", "logits", "grad/model.layers.1.mlp.up_proj.weight"});
}

TEST(DumpOrderTest, LayersAreNumbersNotText) {
  Names expected;
  for (int layer = 0; layer < 12; ++layer) expected.push_back("hidden/" + std::to_string(layer));
  expect_order(expected);
  Names backward;
  for (int layer = 11; layer >= 0; --layer)
    backward.push_back("grad/model.layers." + std::to_string(layer) + ".mlp.up_proj.weight");
  expect_order(backward);
}

TEST(DumpOrderTest, BackwardReadsForwardUpwards) {
  expect_order({"loss",
                "grad/lm_head.weight",
                "grad/model.norm.weight",
                "sub_grad/1/mlp_out",
                "grad/model.layers.1.mlp.down_proj.weight",
                "grad/model.layers.1.mlp.up_proj.weight",
                "grad/model.layers.1.mlp.gate_proj.weight",
                "sub_grad/1/mlp_in",
                "sub_grad/1/mlp_norm",
                "grad/model.layers.1.post_attention_layernorm.weight",
                "sub_grad/1/o_proj",
                "grad/model.layers.1.self_attn.o_proj.weight",
                "sub_grad/1/attn",
                "sub_grad/1/v",
                "grad/model.layers.1.self_attn.v_proj.weight",
                "sub_grad/1/k",
                "grad/model.layers.1.self_attn.k_norm.weight",
                "grad/model.layers.1.self_attn.k_proj.weight",
                "sub_grad/1/q",
                "grad/model.layers.1.self_attn.q_norm.weight",
                "grad/model.layers.1.self_attn.q_proj.weight",
                "sub_grad/1/attn_norm",
                "grad/model.layers.1.input_layernorm.weight",
                "sub_grad/0/mlp_out",
                "grad/model.layers.0.input_layernorm.weight",
                "grad/model.embed_tokens.weight",
                "grad_norm"});
}

TEST(DumpOrderTest, Gpt2NamesHaveTheirPlacesToo) {
  expect_order({"grad/transformer.ln_f.weight", "grad/transformer.h.1.mlp.c_proj.weight",
                "grad/transformer.h.1.mlp.c_fc.weight", "grad/transformer.h.1.ln_2.weight",
                "grad/transformer.h.1.attn.c_proj.weight", "grad/transformer.h.1.attn.c_attn.weight",
                "grad/transformer.h.1.ln_1.weight", "grad/transformer.h.0.mlp.c_proj.weight", "grad/transformer.wpe.weight",
                "grad/transformer.wte.weight"});
}

TEST(DumpOrderTest, ExpertsAreOrderedByNumber) {
  const std::string moe = "final/model.layers.0.block_sparse_moe.";
  expect_order({moe + "gate.weight", moe + "experts.2.w1.weight", moe + "experts.10.w1.weight", moe + "experts.2.w3.weight",
                moe + "experts.2.w2.weight", moe + "experts.10.w2.weight"});
}

TEST(DumpOrderTest, SectionsFollowEachOther) {
  expect_order({"hidden/0", "logits", "loss", "grad/lm_head.weight", "grad/model.embed_tokens.weight", "grad_norm",
                "final/model.embed_tokens.weight", "final/model.layers.0.input_layernorm.weight", "final/model.norm.weight",
                "final/lm_head.weight", "init/model.embed_tokens.weight", "init/lm_head.weight", "doc_ids", "labels",
                "step_loss", "tokens"});
  const DumpOrder order(Names{});
  EXPECT_EQ(order.place("grad/x").section, DumpSection::kBackward);
  EXPECT_EQ(order.place("sub_grad/0/q").section, DumpSection::kBackward);
  EXPECT_EQ(order.place("sub/x/q").section, DumpSection::kOther) << "not a layer number";
  EXPECT_EQ(order.place("").section, DumpSection::kOther);
}

TEST(DumpOrderTest, NoTwoNamesShareAPlace) {
  const Names names{"sub/0/router", "sub/0/router_logits",   "sub/0/something",       "sub/0/else", "a",       "b", "grad/a",
                    "grad/b",       "grad/model.layers.0.x", "grad/model.layers.0.y", "hidden/x",   "hidden/y"};
  const DumpOrder order(names);
  for (const std::string& x : names) {
    for (const std::string& y : names) EXPECT_EQ(order.place(x) == order.place(y), x == y) << x << " " << y;
  }
}

}  // namespace
}  // namespace ref5d
