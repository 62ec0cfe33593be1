#include "common/train/loader.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace ref5d {

Loader::Loader(const GptConfig& config, Dtype dtype, Stream& compute, LoaderHooks hooks)
    : config_(config), dtype_(dtype), compute_(compute), hooks_(std::move(hooks)) {}

std::vector<Row> Loader::cut(std::span<const Row> whole) const {
  std::vector<Row> here;
  for (const Row& row : whole) here.push_back(hooks_.cut(row));
  return here;
}

namespace {

// Which of the sequences whose load is balanced each token of the rows is of, -1 for padding, and their lengths.
struct Sequences {
  std::vector<std::int32_t> of_token;
  std::vector<std::int64_t> lengths;
};

Sequences sequences_of(std::span<const Row> rows, AuxKind kind) {
  Sequences all;
  if (kind == AuxKind::kMicroBatch) all.lengths = {0};
  for (const Row& row : rows) {
    for (std::size_t t = 0; t < row.tokens.size(); ++t) {
      const bool padding = static_cast<std::int64_t>(t) >= row.useful;
      if (kind == AuxKind::kSequence && !padding && row.start[t] == row.order[t]) all.lengths.push_back(0);
      all.of_token.push_back(padding ? -1 : static_cast<std::int32_t>(all.lengths.size()) - 1);
      if (!padding) ++all.lengths.back();
    }
  }
  return all;
}

}  // namespace

// place and, after it, sequence of each token that is here.
void Loader::put_places(Slot& slot, std::span<const Row> whole, std::span<const Row> here, std::int32_t* place) const {
  Sequences sequences = sequences_of(whole, config_.moe.aux_kind);
  const auto length = static_cast<std::int32_t>(whole.front().tokens.size());
  std::int32_t* sequence = place + slot.batch * slot.seq;
  for (std::int32_t b = 0; b < static_cast<std::int32_t>(here.size()); ++b) {
    for (const std::int32_t order : here[static_cast<std::size_t>(b)].order) {
      const std::int32_t at = b * length + order;
      *place++ = at;
      *sequence++ = sequences.of_token[static_cast<std::size_t>(at)];
    }
  }
  slot.sequence_lengths = std::move(sequences.lengths);
  slot.all_tokens = static_cast<std::int64_t>(sequences.of_token.size());
}

void Loader::start(std::span<const Row> given, std::int64_t first_sample) {
  if (started_ - taken_ == slots_.size()) throw std::logic_error("both slots of the loader are in use");
  Slot& slot = slots_[started_++ % slots_.size()];
  const std::vector<Row> here = hooks_.cut ? cut(given) : std::vector<Row>();
  const std::span<const Row> rows = hooks_.cut ? std::span<const Row>(here) : given;
  if (hooks_.cut) slot.whole.assign(given.begin(), given.end());
  slot.batch = static_cast<std::int64_t>(rows.size());
  slot.seq = static_cast<std::int64_t>(rows.front().tokens.size());
  slot.visible_pairs = 0;
  const std::int64_t tokens = slot.batch * slot.seq;
  const std::int64_t fields = config_.has_experts() ? kFieldsWithExperts : kFields;
  const std::size_t bytes = static_cast<std::size_t>(fields * tokens) * sizeof(std::int32_t);
  slot.copied.synchronize();
  if (!slot.pinned || slot.pinned->bytes() < bytes) slot.pinned = std::make_unique<PinnedBuffer>(bytes);

  auto* const field = reinterpret_cast<std::int32_t*>(slot.pinned->data());
  for (std::int64_t b = 0; b < slot.batch; ++b) {
    const Row& row = rows[static_cast<std::size_t>(b)];
    const std::int64_t at = b * slot.seq;
    auto put = [&](int f, std::span<const std::int32_t> values) {
      std::copy(values.begin(), values.end(), field + f * tokens + at);
    };
    put(0, row.tokens);
    put(1, row.labels);
    put(2, row.order);
    put(3, row.start);
    std::fill_n(field + 4 * tokens + at, slot.seq, static_cast<std::int32_t>(first_sample + b));
    for (std::int64_t s = 0; s < slot.seq; ++s)
      field[5 * tokens + at + s] = row.order[static_cast<std::size_t>(s)] - row.start[static_cast<std::size_t>(s)];
    slot.visible_pairs += ref5d::visible_pairs(row.order, row.start, row.order, 1);
  }
  if (config_.has_experts()) put_places(slot, given, rows, field + kFields * tokens);
  slot.device = Tensor::empty({fields, tokens}, Dtype::kInt32, MemoryCategory::kWorkspace, copy_);
  copy_pinned_to_device(copy_, slot.device.raw(), slot.pinned->data(), bytes);
  slot.copied.record(copy_);
}

MicroBatch Loader::take(double loss_scale) {
  if (started_ == taken_) throw std::logic_error("no micro-batch was started");
  Slot& slot = slots_[taken_++ % slots_.size()];
  rows_taken_ += slot.batch;
  wait(compute_, slot.copied);
  MicroBatch b;
  b.batch = slot.batch;
  b.seq = slot.seq;
  b.loss_scale = loss_scale;
  b.visible_pairs = slot.visible_pairs;
  // The compute stream reads it; a copy owned by that stream keeps the buffer's end in that stream's order.
  const Tensor all = Tensor::empty(slot.device.shape(), Dtype::kInt32, MemoryCategory::kWorkspace, compute_);
  copy_on_device(compute_, all.raw(), slot.device.raw(), all.bytes());
  order(compute_, copy_);
  slot.device = {};
  const std::int64_t tokens = b.token_count();
  auto field = [&](std::int64_t f) { return all.rows(f, f + 1).view({tokens}); };
  b.tokens = field(0);
  b.labels = field(1);
  b.order = field(2);
  b.start = field(3);
  b.residual = {field(4), b.order, field(5), {}, {}};
  if (config_.has_experts()) {
    b.residual.place = field(6);
    b.residual.sequence = field(7);
    const std::vector<double> lengths(slot.sequence_lengths.begin(), slot.sequence_lengths.end());
    const auto sequences = static_cast<std::int64_t>(lengths.size());
    b.balance.lengths = Tensor::from_host(HostTensor::from_doubles(lengths, {sequences}, Dtype::kFp64), Dtype::kFp64,
                                          MemoryCategory::kWorkspace, compute_);
    b.balance.tokens = std::accumulate(slot.sequence_lengths.begin(), slot.sequence_lengths.end(), std::int64_t{0});
    b.balance.all_tokens = slot.all_tokens;
  }
  const Shape rows{b.batch, b.seq};
  b.attention = make_attention_tokens(compute_, b.order.view(rows), b.start.view(rows), b.order.view(rows));
  if (config_.position == PositionKind::kRope)
    b.rope = make_rope_table(compute_, b.order, b.start, config_.head_dim(), config_.rope_theta, dtype_);
  if (hooks_.plan_attention) hooks_.plan_attention(b, slot.whole, compute_);
  b.rows = b.residual;
  if (hooks_.scatter_residual) hooks_.scatter_residual(b);
  return b;
}

}  // namespace ref5d
