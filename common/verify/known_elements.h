// Which elements of the weights a run can be held to after training.
//
// Adam divides a gradient by its own magnitude. Where rounding is all that a gradient consists of (a key's bias, whose gradient
// is zero in exact arithmetic), it decides which way the element moves, and two right runs move it differently. In fp64 such an
// element moves by lr * (rounding / eps), which is 1e-11 or more of a weight as soon as lr / eps is above 10^6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/verify/run_values.h"

namespace ref5d {

// The root mean square of the rounding errors in the run of kAround gradients that holds element i.
inline constexpr std::size_t kAround = 64;
[[nodiscard]] double rounding_around(const std::vector<double>& rounded, const std::vector<double>& exact, std::size_t i);

// ||a - b|| / ||b|| over all tensors together; 0 where b is 0.
[[nodiscard]] double error_of_all(const NamedValues& a, const NamedValues& b);

// Judged by the first gradients. `truth` is the single-device run in fp64, `own` the one in the candidate's dtype; the object
// refers to both, which must outlive it.
class KnownElements {
 public:
  // fp32, bf16: an element is known if `own` has its gradient right to a third. If own's gradients are wrong altogether
  // (kMostYardstickError), every element is: such a run excuses nothing.
  KnownElements(const RunValues& own, const RunValues& truth);
  // fp64: if its gradient is above what the check of gradients lets its whole tensor be off, 1e-11 * max(||tensor||, floor), so
  // that that check says something about it; or exactly 0, as that of a token that did not occur (but not
  // beside an unknown one, where it is rounding that happened to be 0).
  explicit KnownElements(const RunValues& truth);
  [[nodiscard]] bool known(const std::string& name, std::size_t i) const;
  // Known, and so much larger than the rounding errors around it that no right run can have it as zero.
  [[nodiscard]] bool nonzero(const std::string& name, std::size_t i) const;
  // How many of a tensor's `size` elements are known.
  [[nodiscard]] std::int64_t count(const std::string& name, std::size_t size) const;
  // What is known of two sets that are to be compared: unknown elements are left out of both, and tensors of which nothing
  // remains. Tensors that the two do not share, or of another size, stay as they are, for compare_sets to say.
  [[nodiscard]] std::pair<NamedValues, NamedValues> select(const NamedValues& a, const NamedValues& b) const;

 private:
  const NamedValues &own_, &truth_;
  bool sound_;
  std::map<std::string, std::vector<bool>> known_;  // of the tensors that both have
};

}  // namespace ref5d
