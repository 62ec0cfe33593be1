// The part of a gradient norm's sums that other ranks add up than the rest: experts'.
#pragma once

#include <vector>

#include "common/train/optimizer.h"

namespace ref5d::data_parallel {

class ExpertPartials {
 public:
  // partials: those of all states, joined.
  ExpertPartials(const std::vector<OptimizerState>& states, const Tensor& partials);
  [[nodiscard]] bool empty() const { return numel_ == 0; }
  // A copy of the experts', side by side.
  [[nodiscard]] Tensor joined(Stream& stream) const;
  // Writes them back to their places.
  void replace(Stream& stream, const Tensor& joined) const;

 private:
  std::vector<Tensor> stretches_;  // of the partials
  std::int64_t numel_ = 0;
};

}  // namespace ref5d::data_parallel
