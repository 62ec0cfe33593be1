// How far two tensors, or two sets of named tensors, are apart. Plain host code on fp64 values.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/tensor/dtype.h"

namespace ref5d {

using NamedValues = std::map<std::string, std::vector<double>>;

// Tensors with fewer elements than this are pooled by kind: a relative error over a handful of elements is a lottery.
inline constexpr std::int64_t kPoolBelow = 32;

struct TensorError {
  double relative = 0;           // ||a - b||_2 / max(||b||_2, floor); infinite if the two cannot be compared
  double max_abs = 0;            // max |a - b|; infinite with `relative`
  std::int64_t worst_index = 0;  // flat index of max_abs, or of the first value that is not finite; -1 for unequal sizes
};

// The error of a against the reference b, of which `relative` leaves out the share `trim` of elements that are furthest off
// (rounded up to a whole number of them, but never all). A NaN or an infinity anywhere, unequal sizes or a floor that is not
// finite give infinity. Where ||b|| and floor are both 0, the error is 0 for equal tensors and infinite otherwise.
[[nodiscard]] TensorError tensor_error(std::span<const double> a, std::span<const double> b, double floor, double trim = 0);

struct NamedError {
  std::string name;          // of the tensor, or of the kind for pooled ones ("model.layers.*.input_layernorm.weight")
  TensorError error;         // for a pool: over its tensors laid end to end, in order of name
  std::int64_t tensors = 1;  // how many tensors it covers
  std::string note;          // why the two could not be compared; else empty
};

// The norm and the number of all finite values added, without overflow; for sets too large to hold at once.
class NormSum {
 public:
  void add(std::span<const double> values);
  [[nodiscard]] double norm() const { return norm_; }  // sqrt of the sum of squares
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  double norm_ = 0;
  std::int64_t count_ = 0;
};

enum class CompareKind { kGradient, kParameter, kActivation, kUpdate };

// Updates (final - initial weights) are compared without the 1% of a tensor's elements that are furthest off. Adam divides a
// gradient by its own magnitude, so an element whose gradient is no larger than its rounding error moves by the learning rate
// in a direction that is chance. There are a handful of them in a model, and in a sum of squares they outweigh all others:
// two right runs' errors then differ by any factor. A fault in more than 1% of a tensor still stands out by orders of
// magnitude; of the rest check_run asks that it moved, and not too far.
inline constexpr double kUpdateTrim = 0.01;

// The floor of a tensor with `numel` elements in the reference set `b`. It only matters for a tensor much smaller than its set,
// typically one that is zero in exact arithmetic and holds rounding in practice.
//   gradient, activation: 2.2e-5 * ||all of b||. Clipping and the global norm see a gradient at the scale of all gradients, and
//     what cancels to zero was computed from terms of that scale: it keeps their rounding, eps * ||all||, which relative to
//     the floor must pass fp64's tolerance of 1e-11. Hence the factor, eps / 1e-11.
//   parameter, update: sqrt(numel) * rms(all of b), the norm of a typical tensor of that size. Adam divides a gradient by its
//     own magnitude, so that a gradient of pure rounding still moves each element by about the learning rate: the error of an
//     element is absolute, the same in every tensor, and is measured against a typical element.
// Values of b that are not finite do not enter; the tensors that hold them fail on their own.
class Floors {
 public:
  Floors(CompareKind kind, const NamedValues& b);
  Floors(CompareKind kind, const NormSum& all_of_b) : kind_(kind), all_(all_of_b) {}
  [[nodiscard]] double of(std::int64_t numel) const;

 private:
  CompareKind kind_;
  NormSum all_;
};

// The name with its layer and expert numbers replaced: "model.layers.3.mlp.experts.0.w1" -> "model.layers.*.mlp.experts.*.w1".
[[nodiscard]] std::string kind_of(std::string_view name);

// Compares every tensor of the candidate `a` with the reference `b`, sorted by name. Tensors of fewer than kPoolBelow elements
// are pooled by kind. A name that only one side has, or whose sizes differ, is an entry of its own with an infinite error.
[[nodiscard]] std::vector<NamedError> compare_sets(const NamedValues& a, const NamedValues& b, CompareKind kind);

// One entry per step ("step 1", "step 2", ...), in order: |a - b| / max(|b|, floor). A series that ends early counts as
// infinitely wrong from there on. For losses and gradient norms.
[[nodiscard]] std::vector<NamedError> compare_series(std::span<const double> a, std::span<const double> b, double floor = 1e-6);

// a - b by name: the update (final - initial weights). Names and sizes must agree, else std::invalid_argument.
[[nodiscard]] NamedValues difference(const NamedValues& a, const NamedValues& b);

// The least tolerance of a dtype: 1e-11 (fp64), 1e-6 (fp32), 4e-3 (bf16). std::invalid_argument for int32.
[[nodiscard]] double least_tolerance(Dtype dtype);

// The yardstick of fp32 and bf16: a candidate's error against the fp64 truth may be 3 times `own_error`, the single-device
// run's own error against that truth in the same dtype, and never less than least_tolerance. Parallelism may reorder a sum; it
// may not lose precision. In fp64 there is no better truth: the tolerance is 1e-11 whatever own_error is. An own error that is
// not finite (a broken reference) excuses nothing: least_tolerance.
//
// Never more than kMostTolerance: a tensor that stayed zero has an error of exactly 1, and must fail by whatever yardstick.
// Where right runs come near it (many steps at a high learning rate), there is nothing left to compare.
inline constexpr double kMostTolerance = 0.5;
// An own error above this has nothing to say: three times it is more than kMostTolerance.
inline constexpr double kMostYardstickError = kMostTolerance / 3;
[[nodiscard]] double yardstick_tolerance(Dtype dtype, double own_error);

// yardstick_tolerance of every entry of `own`, by name.
[[nodiscard]] std::map<std::string, double> yardstick_tolerances(Dtype dtype, std::span<const NamedError> own);

}  // namespace ref5d
