// Private to the kernel cases: tensors with the same bits in every build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/tools/kernel_cases.h"

namespace ref5d {

// Makes one case's tensors. Each has a seed of its own, by the case's name and the tensor's number in it; the values do not
// depend on the dtype but for their rounding.
class CaseInputs {
 public:
  CaseInputs(const KernelCase& one, CaseFill fill);
  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] Dtype accumulator() const { return accumulator_of(dtype_); }

  // About normal, of mean 0, in the case's dtype or another.
  [[nodiscard]] Tensor normal(const Shape& shape, double deviation = 1);
  [[nodiscard]] Tensor normal_in(Dtype dtype, const Shape& shape, double deviation = 1);
  // From 0.5 to 1.5.
  [[nodiscard]] Tensor positive_in(Dtype dtype, const Shape& shape);
  // Whole numbers from `low` up to but without `limit`.
  [[nodiscard]] Tensor integers(const Shape& shape, std::int64_t low, std::int64_t limit);
  [[nodiscard]] Tensor constants(const std::vector<double>& values, const Shape& shape, Dtype dtype);
  // For an operation to overwrite.
  [[nodiscard]] Tensor target(const Shape& shape) { return target_in(dtype_, shape); }
  [[nodiscard]] Tensor target_in(Dtype dtype, const Shape& shape);
  // The columns in the middle of a wider matrix, so that the leading dim is larger than the row.
  [[nodiscard]] static Tensor inside(const Tensor& wide) { return wide.columns(3, wide.dim(1) - 2); }

 private:
  [[nodiscard]] std::uint64_t next_seed();
  Dtype dtype_;
  CaseFill fill_;
  std::string name_;
  int tensors_ = 0;
};

// The parts of the list, in files of their own.
using CaseList = std::vector<KernelCase>;
void add_row_cases(CaseList& list, CaseSize size);          // norms, softmax, bias, rope
void add_token_cases(CaseList& list, CaseSize size);        // embedding, sort, rows, dropout, random numbers
void add_elementwise_cases(CaseList& list, CaseSize size);  // sums, casts, activations, the optimizer
void add_gemm_cases(CaseList& list, CaseSize size);
void add_attention_cases(CaseList& list, CaseSize size);
void add_router_cases(CaseList& list, CaseSize size);
void add_expert_cases(CaseList& list, CaseSize size);    // rows of a mixture of experts
void add_moe_part_cases(CaseList& list, CaseSize size);  // what else is around its experts

// A case in each floating-point dtype.
void add_case(CaseList& list, const std::string& name, const std::function<PreparedCase(CaseInputs&)>& prepare);

}  // namespace ref5d
