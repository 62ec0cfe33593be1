// Which elements of the weights an fp32 or bf16 run can be held to after training.
//
// Adam divides a gradient by its own magnitude. Where rounding is all that a gradient consists of (a key's bias, whose gradient
// is zero in exact arithmetic), it decides which way the element moves, and two right runs move it differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/verify/run_values.h"

namespace ref5d {

// The root mean square of the rounding errors in the run of kAround gradients that holds element i.
inline constexpr std::size_t kAround = 64;
[[nodiscard]] double rounding_around(const std::vector<double>& rounded, const std::vector<double>& exact, std::size_t i);

// ||a - b|| / ||b|| over all tensors together; 0 where b is 0.
[[nodiscard]] double error_of_all(const NamedValues& a, const NamedValues& b);

// `own` is the single-device run in the candidate's dtype, `truth` the one in fp64. An element is known if `own` has its first
// gradient right to a third. If own's gradients are wrong altogether (kMostYardstickError), every element is: such a run
// excuses nothing. Refers to both runs, which must outlive it.
class KnownElements {
 public:
  KnownElements(const RunValues& own, const RunValues& truth);
  [[nodiscard]] bool known(const std::string& name, std::size_t i) const;
  // Known, and so much larger than the rounding errors around it that no right run can have it as zero.
  [[nodiscard]] bool nonzero(const std::string& name, std::size_t i) const;
  // How many of a tensor's `size` elements are known.
  [[nodiscard]] std::int64_t count(const std::string& name, std::size_t size) const;
  // What is known of `values`: the other elements are left out, and tensors of which nothing remains.
  [[nodiscard]] NamedValues select(const NamedValues& values) const;

 private:
  const NamedValues &own_, &truth_;
  bool sound_;
  std::map<std::string, std::vector<bool>> known_;  // of the tensors that both have
};

}  // namespace ref5d
