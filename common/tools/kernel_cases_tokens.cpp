// What is indexed by tokens or drawn at random: the embedding, the sort under its gradient, rows in another order, dropout,
// initial weights.
#include <fmt/format.h>

#include <memory>

#include "common/kernels/attention.h"
#include "common/kernels/dropout.h"
#include "common/kernels/embedding.h"
#include "common/kernels/random.h"
#include "common/kernels/rows.h"
#include "common/kernels/sort.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

struct EmbeddingSize {
  std::int64_t tokens, vocab, columns;
  [[nodiscard]] std::string name() const { return fmt::format("{}x{}x{}", tokens, vocab, columns); }
};

// A gradient in the accumulator's dtype, beside one of the case's own.
PreparedCase embedding(CaseInputs& in, const EmbeddingSize& z) {
  const Shape table_shape{z.vocab, z.columns}, shape{z.tokens, z.columns};
  // One beyond the table on either side.
  const Tensor index = in.integers({z.tokens}, -1, z.vocab + 1), table = in.normal(table_shape), dy = in.normal(shape);
  const Tensor y = in.target(shape), sum = in.normal(shape);
  const Tensor dtable = in.normal(table_shape), wide_dtable = in.normal_in(in.accumulator(), table_shape);
  PreparedCase c;
  // The rows that are looked up, not the whole table.
  c.step("embedding_forward", [=](Stream& s) { embedding_forward(s, y, table, index, false); }, {y, index}, {y});
  c.step("embedding_forward_add", [=](Stream& s) { embedding_forward(s, sum, table, index, true); }, {y, index, sum}, {sum});
  c.step("embedding_backward", [=](Stream& s) { embedding_backward(s, dtable, dy, index); }, {dy, index, dy}, {dy});
  c.step("embedding_backward_wide", [=](Stream& s) { embedding_backward(s, wide_dtable, dy, index); }, {dy, index, dy}, {dy});
  c.exact_output("y", y);
  c.output("sum", sum);
  c.output("dtable", dtable);
  c.output("wide_dtable", wide_dtable);
  return c;
}

// The second third of a table, with tokens that are beyond it on either side.
PreparedCase part_rows_case(CaseInputs& in, std::int64_t tokens, std::int64_t vocab) {
  const Tensor token = in.integers({tokens}, -1, vocab + 1), rows = in.target({tokens}), clamped = in.target({tokens});
  const std::int64_t first = vocab / 3, count = vocab / 3;
  PreparedCase c;
  c.step("part_rows", [=](Stream& s) { part_rows(s, rows, token, first, count); }, {token}, {rows});
  c.step("part_rows_clamped", [=](Stream& s) { part_rows(s, clamped, token, first, count, true); }, {token}, {clamped});
  c.exact_output("rows", rows);
  c.exact_output("clamped", clamped);
  return c;
}

PreparedCase sort_case(CaseInputs& in, std::int64_t count, std::int64_t limit) {
  const Tensor keys = in.integers({count}, 0, limit), order = in.target({count});
  PreparedCase c;
  c.step("stable_sort", [=](Stream& s) { stable_sort(s, order, keys, limit); }, {keys}, {order});
  c.exact_output("order", order);
  return c;
}

// As many rows are taken as there are, some of them twice, and some that are beyond on either side.
PreparedCase take_rows_case(CaseInputs& in, std::int64_t rows, std::int64_t columns) {
  const Tensor index = in.integers({rows}, -1, rows + 1), x = CaseInputs::inside(in.normal({rows, columns + 5}));
  const Tensor y = in.target({rows, columns});
  PreparedCase c;
  c.step("take_rows", [=](Stream& s) { take_rows(s, y, x, index); }, {x, index}, {y});
  c.exact_output("y", y);
  return c;
}

PreparedCase token_runs_case(CaseInputs& in, std::int64_t batch, std::int64_t length) {
  const Shape shape{batch, length};
  const Tensor q_order = in.integers(shape, 0, 1000), q_start = in.integers(shape, 0, 1000);
  const Tensor k_order = in.integers(shape, 0, 1000);
  const auto made = std::make_shared<AttentionTokens>();
  PreparedCase c;
  c.step("make_attention_tokens", [=](Stream& s) { *made = make_attention_tokens(s, q_order, q_start, k_order); },
         {q_order, q_start, k_order}, {});
  c.made_output(
      "q_runs", [=] { return made->q_runs; }, std::nullopt);
  c.made_output(
      "k_runs", [=] { return made->k_runs; }, std::nullopt);
  return c;
}

PreparedCase dropout_case(CaseInputs& in, std::int64_t rows, std::int64_t columns) {
  const DropoutKey key{1234, 5, 2, DropoutSite::kMlp};
  const double probability = 0.3;
  const Shape shape{rows, columns};
  const Tensor x = in.normal(shape), y = in.target(shape), in_place = in.normal(shape);
  const Tensor sample = in.integers({rows}, 0, 100), order = in.integers({rows}, 0, 4096);
  PreparedCase c;
  c.step("dropout", [=](Stream& s) { dropout(s, y, x, sample, order, key, probability); }, {x, sample, order}, {y});
  c.step("dropout_in_place", [=](Stream& s) { dropout(s, in_place, in_place, sample, order, key, probability); },
         {in_place, sample, order}, {in_place});
  c.exact_output("y", y);
  c.exact_output("in_place", in_place);
  return c;
}

// The normal numbers are rounded to fp32 from an fp64 value, of which another library's logarithm may change the last bit; that
// changes one fp32 in 2^28.
PreparedCase random_case(CaseInputs& in, std::int64_t rows, std::int64_t columns) {
  const Tensor normal = in.target({rows, columns}), constant = in.target({rows, columns});
  const GlobalWindow window{2, 3, columns + 4};  // an odd column first: half a pair at either end
  PreparedCase c;
  c.step("fill_normal", [=](Stream& s) { fill_normal(s, normal, window, 42, 7, 0.1, 2); }, {}, {normal});
  c.step("fill_constant", [=](Stream& s) { fill_constant(s, constant, 0.3); }, {}, {constant});
  c.exact_output("normal", normal);
  c.exact_output("constant", constant);
  return c;
}

}  // namespace

void add_token_cases(CaseList& list, CaseSize size) {
  using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const bool large = size == CaseSize::kLarge;
  using EmbeddingSizes = std::vector<EmbeddingSize>;
  for (const EmbeddingSize& z :
       large ? EmbeddingSizes{{16384, 32768, 1024}} : EmbeddingSizes{{37, 11, 33}, {5, 300, 300}, {269, 7, 3}})
    add_case(list, "embedding/" + z.name(), [=](CaseInputs& in) { return embedding(in, z); });

  const auto add = [&](const std::string& op, PreparedCase (*make)(CaseInputs&, std::int64_t, std::int64_t), bool integers,
                       const Pairs& sizes) {
    for (const auto& [a, b] : sizes) {
      const std::string name = fmt::format("{}/{}x{}", op, a, b);
      const auto prepare = [make, a = a, b = b](CaseInputs& in) { return make(in, a, b); };
      if (integers) {
        list.push_back({name, Dtype::kInt32, false, prepare});
      } else {
        add_case(list, name, prepare);
      }
    }
  };
  add("part_rows", part_rows_case, true, large ? Pairs{{16384, 32768}} : Pairs{{37, 11}, {1061, 300}});
  // More than one chunk of 1024 keys; one pass of 8 bits, and two.
  add("sort", sort_case, true, large ? Pairs{{32768, 32768}} : Pairs{{37, 5}, {1061, 300}});
  add("take_rows", take_rows_case, false, large ? Pairs{{16384, 1024}} : Pairs{{37, 33}, {3, 300}});
  add("token_runs", token_runs_case, true, large ? Pairs{{64, 4096}} : Pairs{{3, 37}, {2, 2100}});
  // A row of more than four channels for each of a block's threads, and none of a multiple of four.
  add("dropout", dropout_case, false, large ? Pairs{{16384, 1024}} : Pairs{{5, 33}, {2, 1027}});
  add("random", random_case, false, large ? Pairs{{4096, 1024}} : Pairs{{5, 33}, {2, 517}});
}

}  // namespace ref5d
