#include "04_seq_context_parallel/hop_times.h"

#include <algorithm>
#include <cmath>

#include "common/device/device.h"
#include "common/kernels/attention.h"
#include "common/kernels/attention_merge.h"
#include "common/kernels/random.h"

namespace ref5d::context_parallel {

namespace {

constexpr int kRepeats = 5;

// Attention of one part's queries over another's keys.
class Hop {
 public:
  Hop(const GptConfig& c, Dtype dtype, const Row& queries, const Row& keys)
      : shape_{1, length(queries), length(keys), c.heads, c.kv_heads, c.head_dim(), 1 / std::sqrt(double(c.head_dim()))},
        tokens_(make_attention_tokens(stream_, ints(queries.order), ints(queries.start), ints(keys.order))),
        q_(filled(shape_.q_len, c.heads * c.head_dim(), dtype)),
        k_(filled(shape_.k_len, c.kv_heads * c.head_dim(), dtype)),
        sum_(filled(shape_.q_len, c.heads * c.head_dim(), accumulator_of(dtype))),
        part_(filled(shape_.q_len, c.heads * c.head_dim(), accumulator_of(dtype))) {
    for (Tensor* t : {&sum_lse_, &part_lse_})
      *t = Tensor::zeros({1, c.heads, shape_.q_len}, accumulator_of(dtype), MemoryCategory::kActivations, stream_);
  }

  // The least of several: what else runs on the machine only adds to it.
  [[nodiscard]] double us(bool merges) {
    std::vector<double> all;
    for (int i = 0; i < kRepeats; ++i) {
      Timeline& timeline = device().timeline();
      stream_.synchronize();
      timeline.start();
      attention_forward(stream_, AttentionKind::kFlash, shape_, tokens_, part_, part_lse_, q_, k_, k_);
      if (merges) attention_merge(stream_, shape_, sum_, sum_lse_, part_, part_lse_);
      stream_.synchronize();
      timeline.stop();
      double total = 0;
      for (const TimelineEntry& entry : timeline.entries()) total += entry.us;
      all.push_back(total);
    }
    return *std::min_element(all.begin(), all.end());
  }

 private:
  static std::int64_t length(const Row& row) { return static_cast<std::int64_t>(row.order.size()); }
  [[nodiscard]] Tensor ints(const std::vector<std::int32_t>& values) const {
    const HostTensor host =
        HostTensor::from_doubles({values.begin(), values.end()}, {1, static_cast<std::int64_t>(values.size())}, Dtype::kInt32);
    return Tensor::from_host(host, Dtype::kInt32, MemoryCategory::kWorkspace, stream_);
  }
  [[nodiscard]] Tensor filled(std::int64_t rows, std::int64_t columns, Dtype dtype) const {
    Tensor t = Tensor::empty({rows, columns}, dtype, MemoryCategory::kActivations, stream_);
    fill_constant(stream_, t, 0.5);
    return t;
  }

  Stream& stream_ = device().compute();
  AttentionShape shape_;
  AttentionTokens tokens_;
  Tensor q_, k_, sum_, part_, sum_lse_, part_lse_;
};

}  // namespace

ByHop<double> time_hops(const GptConfig& model, Dtype dtype, const SequenceLayout& layout, const Row& row) {
  const int ranks = layout.ranks();
  const ByHop<std::int64_t> pairs = count_pairs(layout, row);
  ByHop<double> us(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    for (int hop = 0; hop < ranks; ++hop) {
      const bool visible = pairs[static_cast<std::size_t>(r)][static_cast<std::size_t>(hop)] > 0;
      const Places& keys = layout.of((r - hop + ranks) % ranks);
      us[static_cast<std::size_t>(r)].push_back(
          visible ? Hop(model, dtype, part_of(row, layout.of(r)), part_of(row, keys)).us(hop > 0) : 0);
    }
  }
  return us;
}

}  // namespace ref5d::context_parallel
